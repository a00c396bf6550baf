"""Make pictures of the pages and of some results: ``python docs/make_pictures.py``.

Screenshots need Playwright and Chromium; figures need neither.
"""

from __future__ import annotations

import ast
import doctest
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent / "pictures"
WIDE = "The animal didn't cross the road because it was too wide."
TIRED = "The animal didn't cross the road because it was too tired."
IN_CONTEXT = [
    ("it", "… too tired", TIRED),
    ("it", "… too wide", WIDE),
    ("her", "I see her.", "I see her."),
    ("her", "I see her dog.", "I see her dog."),
    ("tired", "The dog was tired.", "The dog was tired."),
    ("tired", "The cow was tired.", "The cow was tired."),
]
"""Words, each in two contexts: what is written on the map, and the sentence."""

SHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "page-heads": ("#view=overview", {}),
    "page-matrix": ("#view=head&entry=1&heads=0&row=7&column=5", {}),
    "page-words": ("#view=text&entry=5&heads=0", {}),
    "page-dark": ("#view=text&entry=1&heads=0&row=7", {"color_scheme": "dark"}),
    "page-phone": ("#view=text&entry=1&heads=0&row=7", {"viewport": {"width": 390, "height": 780}}),
}
"""Of the page of one text: the state that is shown, and what differs in the browser."""

CROSSED_OUT = "#view=head&entry=1&heads=0&row=7&column=5&edits=x~encoder.1.self_attention~0~7~5"
"""Of the live page: “it” may not look at “road”."""

COMPARED = "#view=text&item=1&entry=1&heads=0&row=7&pin=0.1.0.at.7"
"""Of the page of two: what *it* looks at in either."""


def look(out: Path, *texts: str) -> Path:
    """Write the page of some texts as ``intently look`` does."""
    command = [sys.executable, "-m", "intently", "look", *texts, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


@contextmanager
def browser() -> Iterator[Any]:
    """Debian's Chromium under Playwright."""
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    quiet += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=shutil.which("chromium"), args=quiet)
        try:
            yield opened
        finally:
            opened.close()


def film(opened: Any, page: Path, name: str) -> None:
    """Six seconds of the live page: one word typed anew, then one cell crossed out."""
    shown = opened.new_page(viewport={"width": 1120, "height": 820})
    shown.goto(f"{page.as_uri()}#view=head&entry=1&heads=0&row=7&column=5")
    shown.locator("#live-text").wait_for()
    shown.wait_for_timeout(2000)
    frames: list[tuple[bytes, int]] = []

    def frame(milliseconds: int, keys: str = "") -> None:
        if keys:
            shown.keyboard.press(keys)
        shown.wait_for_timeout(250)
        frames.append((shown.screenshot(), milliseconds))

    frame(800)
    shown.locator("#live-text").focus()
    for before, after in (("wide.", "tired."), ("tired.", "wide.")):
        shown.keyboard.press("Control+End")
        for _ in before:
            frame(40, "Backspace")
        for letter in after:
            frame(90, letter)
        frames[-1] = (frames[-1][0], 900)
    shown.get_by_role("button", name="Cross out").click()
    frame(2100)
    assemble(name, frames, (840, 615), colours=96)
    shown.close()


def assemble(
    name: str, frames: list[tuple[bytes, int]], size: tuple[int, int], colours: int
) -> None:
    """Write screenshots and their durations in milliseconds as one GIF, with one palette."""
    pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data, _ in frames]
    small = [x.resize(size, Image.Resampling.LANCZOS) for x in pictures]
    one = small[-1].quantize(colours, dither=Image.Dither.NONE)
    told = [x.quantize(palette=one, dither=Image.Dither.NONE) for x in small]
    durations = [milliseconds for _, milliseconds in frames]
    told[0].save(
        HERE / f"{name}.gif", save_all=True, append_images=told[1:], duration=durations, loop=0
    )


STEP, STEPS = 70, 6
"""Milliseconds of a frame between two scenes, and the frames of a movement."""


def film_story(opened: Any, story: Any, name: str) -> None:
    """The page of a story, from scene to scene: its clock goes on frame by frame."""
    with tempfile.TemporaryDirectory() as folder:
        page = story.save(Path(folder) / "story.html")
        wide = max(640, round(story.size[0]) + 40)
        shown = opened.new_page(viewport={"width": wide, "height": 900}, device_scale_factor=1.25)
        shown.clock.install(time=0)
        shown.goto(page.as_uri())
        shown.clock.pause_at(60_000)
        shown.keyboard.press("Home")
        shown.clock.run_for(STEP * STEPS)
        room = shown.locator("main").bounding_box()
        bottom = shown.locator("#stage").bounding_box()
        high = bottom["y"] + bottom["height"] + 8
        clip = {"x": room["x"], "y": 0, "width": room["width"], "height": high}
        frames = []
        for n, scene in enumerate(story.scenes):
            if n:
                shown.keyboard.press("ArrowRight")
                for _ in range(STEPS):
                    shown.clock.run_for(STEP)
                    frames.append((shown.screenshot(clip=clip), STEP))
            frames.append((shown.screenshot(clip=clip), round(1000 * scene.hold)))
        assemble(name, frames, (round(room["width"]), round(high)), colours=255)
        shown.close()


def shoot(opened: Any, page: Path, state: str, name: str, **options: Any) -> None:
    """Save what a page shows in a state."""
    about = {"viewport": {"width": 1280, "height": 740}, "device_scale_factor": 1.25, **options}
    view = opened.new_page(**about)
    view.goto(page.as_uri() + state)
    view.wait_for_selector("[data-wait]", state="hidden")
    view.wait_for_timeout(600)  # pictures are drawn frame by frame
    view.screenshot(path=HERE / f"{name}.png")
    view.close()


def screenshots() -> None:
    """The page of one text in several states, that of two texts, and a live one."""
    from intently.tasks.play import save_play
    from intently.tasks.translation import Translator

    with tempfile.TemporaryDirectory() as folder, browser() as opened:
        one = look(Path(folder) / "one.html", WIDE)
        for name, (state, options) in SHOTS.items():
            shoot(opened, one, state, name, **options)
        two = look(Path(folder) / "two.html", TIRED, WIDE)
        higher = {"viewport": {"width": 1280, "height": 700}}
        shoot(opened, two, COMPARED, "page-compare", **higher)
        checked = examination(Path(folder) / "check.html")
        shoot(opened, checked, "", "check-page", viewport={"width": 1000, "height": 800})
        played = save_play(Translator.load(), Path(folder) / "play.html")
        film(opened, played, "play")
        shoot(opened, played, CROSSED_OUT, "play", viewport={"width": 1440, "height": 820})


def examination(out: Path) -> Path:
    """Write the page of the first example of docs/checking.md."""
    text = (HERE.parent / "checking.md").read_text(encoding="utf-8")
    known: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(text):
        exec(compile(example.source, "checking.md", "single"), known)
        if "report" in known:
            return known["report"].page(out)
    raise ValueError("checking.md makes no report")


def figures() -> None:
    """What `intently.show` draws of one translation, of masks and of positions."""
    import intently as it
    from intently import show
    from intently.tasks.corpora import SHOWN
    from intently.tasks.runners import translated
    from intently.tasks.translation.translator import Translator

    seen = translated(Translator.load(), WIDE).seen
    cross = seen["decoder.1.cross_attention"][0]
    show.heads(seen, save=HERE / "heads.png")
    show.heatmap(cross, head=2, title="decoder.1.cross_attention", save=HERE / "heatmap.png")
    guided = seen["encoder.1.self_attention"][0]
    said = "encoder.1, guided to look from “it” at its noun"
    show.lines(guided, "it", head=0, title=said, save=HERE / "lines.png")
    show.text(guided, "it", head=0, title=said, save=HERE / "text.png")
    [pair] = (pair for pair in SHOWN if pair.source == WIDE)
    [made] = Translator.load().translate([WIDE])
    path = HERE / "alignment.png"
    show.heatmap(made.alignment, gold=pair.alignment, margins=False, save=path)
    show.mask(it.causal() & it.window(5, 0), save=HERE / "mask.png")
    show.bias(it.alibi(8), save=HERE / "bias.png")
    show.positions(
        it.sinusoidal(100, 64), title="Sinusoidal positions", save=HERE / "positions.png"
    )
    words_and_picture()
    diagrams()


def diagrams() -> None:
    """Models as boxes and arrows, drawn from the modules that are there."""
    import torch

    from intently import show
    from intently.nn import ImageAttention
    from intently.nn.models import (
        RecurrentOptions,
        RecurrentSeq2Seq,
        Transformer,
        TransformerOptions,
    )

    base = TransformerOptions(
        *(37_000, 37_000),
        width=512,
        heads=8,
        encoder_layers=6,
        decoder_layers=6,
        inner=2048,
        norm="post",
        share="all",
    )
    recurrent = RecurrentSeq2Seq(RecurrentOptions(8_000, 9_000, width=256))
    source, target = torch.arange(12)[None], torch.arange(10)[None]
    image = torch.randn(1, 32, 16, 16)
    show.architecture(Transformer(base), source, target, save=HERE / "transformer.svg")
    show.architecture(recurrent, source, target, save=HERE / "recurrent.svg")
    show.architecture(ImageAttention(32, heads=4), image, save=HERE / "image-attention.svg")


def tables() -> None:
    """What experiments measured: drawn from the tables that state it, without training again."""
    from intently import show

    def rows(page: str, heading: str) -> Iterator[list[str]]:
        text = (HERE.parent / page).read_text(encoding="utf-8")
        after = text[text.index(f"| {heading} |") :].split("\n\n")[0].splitlines()
        for line in (after[0], *after[2:]):
            yield [cell.strip() for cell in line.strip("|").split("|")]

    def numbers(cell: str) -> tuple[float, float, float]:
        mean, *ends = map(float, re.findall(r"[\d.]+", cell))
        return (mean, *ends) if len(ends) == 2 else (mean, mean - ends[0], mean + ends[0])

    (_, _, *models), *buckets = rows("benchmarks.md", "words | sentences | fixed vector")
    show.curves(
        {"BLEU": {m: [numbers(row[2 + n]) for row in buckets] for n, m in enumerate(models)}},
        [f"{words}\n{count}" for words, count, *_ in buckets],
        across="words of the source; below, how many sentences",
        title="Multi30k, de-en: what becomes of long sentences",
        save=HERE / "lengths-multi30k.png",
    )
    (_, *models), *ranges = rows("language.md", "tokens before")
    losses = {m: [numbers(row[n]) for row in ranges if row[n]] for n, m in enumerate(models, 1)}
    show.curves(
        {"loss, nats per token": losses},
        [name for name, *_ in ranges],
        across="tokens of context",
        title="stories: what context is worth",
        save=HERE / "context.png",
    )


def words_and_picture() -> None:
    """A sentence cut three ways, words in two contexts each, and a picture's patches."""
    import torch

    import intently as it
    from intently import show
    from intently.tasks.translation.translator import Translator

    translator = Translator.load()
    tokenizer = translator.source_tokenizer
    cutters = {"blanks": str.split, "translator": tokenizer, "characters": list}
    show.text(WIDE, cutters, save=HERE / "tokens.png")
    states = translator.states([text for _, _, text in IN_CONTEXT])
    words, contexts = [word for word, _, _ in IN_CONTEXT], [said for _, said, _ in IN_CONTEXT]
    before, after = (
        torch.stack([found[layer, word] for found, word in zip(states, words)])
        for layer in ("encoder.embedding", "encoder.output")
    )
    path = HERE / "embeddings.png"
    show.embeddings(before, words, after=after, contexts=contexts, save=path)

    image = torch.tensor(cat_on_a_mat(448))
    patches = image.reshape(14, 32, 14, 32, 3).mean((1, 3)).reshape(196, 3)
    like = (patches - patches.mean(0)) / patches.std(0)
    show.overlay(
        it.attend(like, like, scale=2.0),
        image,
        [(5, 7), (11, 2), (2, 11)],
        title="Patches look at patches of their colour",
        save=HERE / "overlay.png",
    )


def cat_on_a_mat(size: int) -> np.ndarray:
    """The cat that sat on the mat, (size, size, 3) between 0 and 1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Ellipse, Polygon, Rectangle

    figure = Figure(figsize=(1, 1), dpi=size)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 14), ylim=(0, 14))
    axes.axis("off")
    grey, green = "#5b6470", "#3f8f6b"
    for shape in (
        Rectangle((0, 0), 14, 14, color="#f1e3c6"),
        Rectangle((0, 0), 14, 4.2, color="#c9a26b"),
        Rectangle((9.5, 8.5), 3.4, 4.2, color="#8ec3e6"),
        Ellipse((6.5, 2.4), 11.5, 2.6, color="#b5483a"),
        Ellipse((6.5, 5), 4.4, 5.6, color=grey),
        Polygon([(5, 9), (4.9, 11.6), (6.4, 10)], color=grey),
        Polygon([(8, 9), (8.1, 11.6), (6.6, 10)], color=grey),
        Ellipse((6.5, 8.7), 3.8, 3.2, color=grey),
        Ellipse((5.7, 8.9), 0.7, 0.9, color=green),
        Ellipse((7.3, 8.9), 0.7, 0.9, color=green),
        Ellipse((9.4, 3.6), 4.2, 0.9, color=grey),
    ):
        axes.add_patch(shape)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), dtype=np.float32)[..., :3] / 255


def animations(*only: str) -> None:
    """The stories of docs/gallery.md, from the cells that stand there: each under its heading."""
    from intently.show.animate import Animation

    text = (HERE.parent / "gallery.md").read_text(encoding="utf-8")
    known: dict[str, Any] = {}
    heading = ""
    found: dict[str, Animation] = {}
    for title, cell in re.findall(
        r"^### ([^\n]+)$|^```{code-cell} python\n(.*?)^```$", text, re.M | re.S
    ):
        if title:
            heading = title
            continue
        *steps, last = ast.parse(cell).body
        exec(compile(ast.Module(steps, []), "gallery.md", "exec"), known)
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module([last], []), "gallery.md", "exec"), known)
            continue
        story = eval(compile(ast.Expression(last.value), "gallery.md", "eval"), known)
        if isinstance(story, Animation) and heading not in found:
            found[heading] = story
    with browser() as opened:
        for name, story in found.items():
            if not only or name in only:
                film_story(opened, story, name)


def main() -> None:
    """Make all of them."""
    HERE.mkdir(exist_ok=True)
    figures()
    tables()
    animations()
    screenshots()


if __name__ == "__main__":
    main()
