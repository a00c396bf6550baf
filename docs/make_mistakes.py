"""Write docs/mistakes.md and its pictures from the catalogue: ``python docs/make_mistakes.py``.

Each picture is of a small program that makes the mistake. `check` examines it, has to name the
mistake, and returns the weights that are drawn: as they should be, and as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from mistakes_beside import SHOWN, Block, in_steps
from torch import Tensor, nn

import intently as it
from intently.checker.catalogue import CHAPTERS, Entry
from intently.checker.report.examples import around
from intently.checker.report.finding import Example
from intently.show.cells import name_steps, paint
from intently.show.layout import Layout
from intently.show.style import ACCENT, style

HERE = Path(__file__).resolve().parent
PAGE, PICTURES = HERE / "mistakes.md", HERE / "pictures" / "mistakes"
PANEL, GAP = 1.5, 0.3
"""Inches: the side of a matrix, and the room between two."""

INTRODUCTION = """# Mistakes that attention makes

Attention goes wrong without anyone noticing: shapes agree, the loss falls, and the text is almost
right. [`it.check`](checking.md) knows each of these mistakes, hazards and conventions by name. A
formula says what the code computes in place of scores z = q·k / √d, weights w = softmax(z) and
outputs y = w v, with queries i, keys j, t and s of them, h heads of width d, and c = h · d.

In the pictures rows are queries, columns are keys. Left are the expected weights, right those of a
small program with the mistake; *influence* is how much each input moves each output. Hatched cells
are 0; the frame marks the cell that gives the mistake away.

*Written by `python docs/make_mistakes.py` from the table of the examiner.*
"""


# --- programs that make the mistakes ------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """A program with a mistake, and how it is examined."""

    call: Callable[..., Any]
    intent: dict[str, Any] = field(default_factory=dict)


Change = Callable[[Tensor], Tensor]
Turn = Callable[[Tensor, Tensor], Tensor]
"""From vectors and their positions to vectors."""


def attention(
    scale: Change = lambda z: z * 8**-0.5,
    hide: Change = lambda z: z,
    weigh: Change = lambda z: z.softmax(-1).nan_to_num(0.0),
) -> Callable[..., Tensor]:
    """Attention with its steps replaced."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weigh(hide(scale(q @ k.mT))) @ v

    return attend


class Layer(nn.Module):
    """A causal layer that splits heads and merges them."""

    def __init__(
        self,
        split: Change = lambda x: x.unflatten(-1, (4, 8)).transpose(1, 2),
        merge: Change = lambda y: y.transpose(1, 2).flatten(2),
        before: Change = lambda x: x,
        turn: tuple[Turn, Turn] | None = None,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(32, 96, dtype=torch.double)
        self.split, self.merge, self.before, self.turn = split, merge, before, turn

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(self.split, self.qkv(self.before(x)).chunk(3, -1))
        if self.turn is not None:
            at = torch.arange(x.shape[1])
            q, k = self.turn[0](q, at), self.turn[1](k, at)
        w = hidden(lower)(q @ k.mT * 8**-0.5).softmax(-1)
        self.weights = w.detach()
        return self.merge(w @ v)


class Apart(nn.Module):
    """A causal layer with a projection each, which are applied to given inputs."""

    def __init__(self, keys: str = "k") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(32, 32, dtype=torch.double) for _ in "qkv")
        self.keys = keys

    def forward(self, x: Tensor) -> Tensor:
        made = {n: getattr(self, n)(x).unflatten(-1, (4, 8)).transpose(1, 2) for n in "qkv"}
        q, k, v = made["q"], made[self.keys], made["v"]
        w = hidden(lower)(q @ k.mT * 8**-0.5).softmax(-1)
        self.weights = w.detach()
        return (w @ v).transpose(1, 2).flatten(2)


class Across(nn.Module):
    """Cross-attention whose queries come from the context."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(32, 32, dtype=torch.double) for _ in "qkv")

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (4, 8)).transpose(1, 2) for y in (self.q(context), self.k(x), self.v(x))
        )
        return ((q @ k.mT * 8**-0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def lower(z: Tensor, diagonal: int = 0) -> Tensor:
    """What a causal mask allows."""
    return torch.ones(z.shape[-2:]).tril(diagonal).bool()


def hidden(allowed: Callable[[Tensor], Tensor]) -> Change:
    """A mask before the softmax."""
    return lambda z: z.masked_fill(~allowed(z), -torch.inf)


def padded(hide: Callable[[Tensor, Tensor], Tensor]) -> Wrong:
    """A mistake with a padding mask, in which True means attend."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attention(hide=lambda z: hide(z, mask))(q, k, v)

    inputs = dict(zip("qkv", heads(6, 6)))
    mask = torch.arange(6) < torch.tensor([4, 5])[:, None]
    return Wrong(attend, {"inputs": {**inputs, "mask": mask}, "arguments": {"mask": "attend"}})


def heads(t: int, s: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of four heads of 8."""
    draw = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, 4, n, 8, generator=draw, dtype=torch.double) for n in (t, s, s))
    return q, k, v


def distances(z: Tensor) -> Tensor:
    """ALiBi for four heads, as it should be."""
    i, j = torch.arange(z.shape[-2])[:, None], torch.arange(z.shape[-1])
    return -torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None] * (i - j)


def turned(x: Tensor, at: Tensor) -> Tensor:
    """Vectors rotated by their positions, in halves."""
    return it.Rotary(8)(x, positions=at)


def unturned(x: Tensor, at: Tensor) -> Tensor:
    """Vectors as they are."""
    return x


CAUSAL = {"mask": it.causal()}
WINDOW = {"mask": it.causal() & it.window(2, 0)}
ALIBI = {**CAUSAL, "bias": it.alibi(4)}
hide = hidden(lower)
causal = attention(hide=hide)

WRONG: dict[str, Wrong] = {
    "no-scale": Wrong(attention(scale=lambda z: z)),
    "scale-one-over-d": Wrong(attention(scale=lambda z: z / 8)),
    "scale-model-width": Wrong(attention(scale=lambda z: z * 32**-0.5)),
    "scale-by-heads": Wrong(attention(scale=lambda z: z * 4**-0.5)),
    "scale-one-side": Wrong(attention(scale=lambda z: z * 8**-0.25)),
    "scale-inverted": Wrong(attention(scale=lambda z: z * 8**0.5)),
    "softmax-over-queries": Wrong(attention(weigh=lambda z: z.softmax(-2))),
    "softmax-over-heads": Wrong(attention(weigh=lambda z: z.softmax(1))),
    "softmax-over-batch": Wrong(attention(weigh=lambda z: z.softmax(0))),
    "not-normalised": Wrong(attention(weigh=lambda z: z.exp() / 3)),
    "mask-missing": Wrong(attention(), CAUSAL),
    "mask-inverted": Wrong(attention(hide=hidden(lambda z: ~lower(z))), CAUSAL),
    "mask-transposed": Wrong(attention(hide=hidden(lambda z: lower(z).mT)), CAUSAL),
    "mask-top-left": Wrong(
        attention(hide=hide), {**CAUSAL, "inputs": dict(zip("qkv", heads(3, 6)))}
    ),
    "causal-off-by-one": Wrong(attention(hide=hidden(lambda z: lower(z, 1))), CAUSAL),
    "mask-after-softmax": Wrong(attention(weigh=lambda z: z.softmax(-1).tril()), CAUSAL),
    "mask-too-weak": Wrong(attention(hide=lambda z: z - 2.0 * ~lower(z)), CAUSAL),
    "mask-boolean-added": Wrong(attention(hide=lambda z: z + lower(z)), CAUSAL),
    "mask-on-queries": padded(lambda z, m: z.masked_fill(~m[:, None, :, None], -torch.inf)),
    "mask-of-other-rows": padded(
        lambda z, m: z.masked_fill(~m.repeat(4, 1).view(2, 4, 1, 6), -torch.inf)
    ),
    "window-off-by-one": Wrong(attention(hide=hidden(lambda z: lower(z) & ~lower(z, -4))), WINDOW),
    "window-missing": Wrong(attention(hide=hide), WINDOW),
    "padding-attended": padded(lambda z, m: z),
    "padding-side": padded(lambda z, m: z.masked_fill(~m.flip(1)[:, None, None], -torch.inf)),
    "lengths-off-by-one": padded(
        lambda z, m: z.masked_fill(
            ~m.roll(1, 1)[:, None, None].index_fill(3, torch.tensor(0), True), -torch.inf
        )
    ),
    "split-by-reshape": Wrong(Layer(lambda x: x.reshape(len(x), 4, -1, 8)), CAUSAL),
    "keys-not-rotated": Wrong(Layer(turn=(turned, unturned)), CAUSAL),
    "keys-are-queries": Wrong(Apart("q"), CAUSAL),
    "rotary-direction": Wrong(Layer(turn=(turned, lambda x, at: turned(x, -at))), CAUSAL),
    "rotation-off-by-one": Wrong(Layer(turn=(lambda x, at: turned(x, at + 1), turned)), CAUSAL),
    "bias-sign": Wrong(attention(hide=lambda z: hide(z - distances(z))), ALIBI),
    "bias-missing": Wrong(attention(hide=hide), ALIBI),
    "bias-twice": Wrong(attention(hide=lambda z: hide(z + 2 * distances(z))), ALIBI),
}
"""By name in the catalogue, a program that makes this mistake and no other."""


INFLUENCE: dict[str, Wrong] = {
    "merged-by-reshape": Wrong(Layer(merge=lambda y: y.reshape(len(y), y.shape[2], -1)), CAUSAL),
    "leak-later": Wrong(Layer(before=lambda x: x - x.mean(1, keepdim=True)), CAUSAL),
    "values-of-other-keys": Wrong(lambda q, k, v: causal(q, k, v.roll(1, -2)), CAUSAL),
    "output-reordered": Wrong(lambda q, k, v: causal(q, k, v).flip(-2), CAUSAL),
    "output-changed": Wrong(lambda q, k, v: causal(q, k, v).cumsum(-2), CAUSAL),
}
"""The same where the weights are right: what is drawn is how much each input moves an output."""

UNDRAWN: dict[str, Wrong] = {
    "values-are-keys": Wrong(lambda q, k, v: causal(q, k, k) + 0 * v, CAUSAL),
    "values-are-queries": Wrong(lambda q, k, v: causal(q, k, q) + 0 * v, CAUSAL),
    "cross-exchanged": Wrong(Across()),
}
"""Programs whose mistakes no matrix shows."""

DRAWN = (*WRONG, *INFLUENCE, *SHOWN)
"""The entries with a picture."""


def example(name: str) -> Example | None:
    """The numbers that show a mistake; raises `AssertionError` if `check` names another."""
    wrong = next((x[name] for x in (WRONG, INFLUENCE, UNDRAWN) if name in x), None)
    subject, asked = SHOWN[name] if wrong is None else (wrong.call, wrong.intent)
    report = it.check(subject, **asked)
    named = [x for x in report.mistakes if x.name == name]
    others = [] if wrong is None else [x for x in report.mistakes if x.name != name]
    assert named and not others, f"{name}: {report}"
    if name in INFLUENCE:
        right, moved = (influence(x) for x in (Layer() if is_layer(subject) else causal, subject))
        return around((), right[None, None], moved[None, None])[1]
    return named[0].example or beside(subject)


def is_layer(subject: Any) -> bool:
    """Whether a program is a layer, and not a function of q, k and v."""
    return isinstance(subject, nn.Module)


def beside(subject: Any) -> Example | None:
    """The weights of a layer beside those of the right one; None for other programs."""
    if isinstance(subject, Block):
        layer = subject.attention
        return around((), *map(in_steps, (layer.whole(), layer)))[1]
    if not isinstance(subject, (Layer, Apart)):
        return None
    right = Apart()
    if isinstance(subject, Layer):
        right = Layer(turn=None if subject.turn is None else (turned, turned))
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    for layer in (right, subject):
        layer(x)
    return around((), right.weights, subject.weights)[1]


def influence(call: Callable[..., Any]) -> Tensor:
    """How much each input, or value, (column) moves each output (row), as a share of the row."""
    draw = torch.Generator().manual_seed(2)
    given = (torch.randn(1, 6, 32, generator=draw, dtype=torch.double),)
    if not is_layer(call):
        given = tuple(x[:1, :1] for x in heads(6, 6))
    slopes = torch.autograd.functional.jacobian(lambda x: call(*given[:-1], x), given[-1])
    assert isinstance(slopes, Tensor)
    sizes = slopes.reshape(6, -1, 6, given[-1].shape[-1]).norm(dim=(1, 3))
    return sizes / sizes.sum(-1, keepdim=True)


# --- pictures -----------------------------------------------------------------------------------


def draw(shown: Example, save: Path) -> None:
    """Two matrices on one scale, and a frame around the cell that tells."""
    sides = [np.array(x) for x in (shown.expected, shown.found)]
    t, s = sides[0].shape
    cell = PANEL / max(t, s)
    top = max(float(x.max()) for x in sides)
    with style():
        layout = Layout(GAP)
        for n, (title, weights) in enumerate(zip(("expected", "found"), sides)):
            axes = layout.panel(0, n, s * cell, t * cell)
            shaded = np.where(weights == 0, np.nan, weights)
            paint(axes, shaded, (t, s), Normalize(0, top), ruled=True)
            name_steps(axes, "top", s, s * cell, 6.5)
            name_steps(axes, "left", t, t * cell, 6.5)
            i, j = shown.queries.index(shown.cell[0]), shown.keys.index(shown.cell[1])
            corner = (j - 0.5, i - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, ec=ACCENT, lw=1.5, zorder=3))
            axes.set_title(title, size=8, loc="left")
        layout.finish("", "", save)


# --- the page -----------------------------------------------------------------------------------


def written() -> str:
    """The page as Markdown."""
    lines = [INTRODUCTION]
    lines.append(" · ".join(f"[{title}](#{_anchor(title)})" for title in CHAPTERS))
    for title, chapter in CHAPTERS.items():
        lines.append(f"\n## {title}")
        for name, entry in chapter.items():
            lines += _entry(name, entry)
    return "\n".join(lines) + "\n"


def _entry(name: str, x: Entry) -> Iterator[str]:
    kind = f" · *{x.kind}*" if x.kind != "mistake" else ""
    yield f"\n### {x.title}\n"
    yield f"`{name}`{kind}" + (f" · {x.formula}" if x.formula else "")
    if name in DRAWN:
        alt = "influence: " * (name in INFLUENCE) + "expected, found"
        yield f'\n<img src="pictures/mistakes/{name}.png" width="400" alt="{alt}">'
    if x.story:
        yield f"\n{x.story}"
    yield f"\n**Symptom.** {x.told} **Cure.** {x.cure}"
    if x.cases:
        yield f"\n**Seen in** {', '.join(f'[{_case(url)}]({url})' for url in x.cases)}."


def _anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _case(url: str) -> str:
    """An issue or a pull request as people write it: owner/repository#number."""
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/(?:pull|issues)/(\d+)", url)
    return f"{found[1]}#{found[2]}" if found else url


def main() -> None:
    """Write the page and every picture; fail where `check` names another mistake."""
    torch.manual_seed(0)
    PAGE.write_text(written(), encoding="utf-8")
    PICTURES.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in (*DRAWN, *UNDRAWN):
        try:
            shown = example(name)
        except AssertionError as error:
            failed.append(str(error))
            continue
        if name in DRAWN:
            assert shown is not None, name
            draw(shown, PICTURES / f"{name}.png")
    if failed:
        raise SystemExit("\n\n".join(failed))


if __name__ == "__main__":
    main()
