"""How long the page of `intently play` takes for a sentence, in Chromium's worker.

    python benchmarks/play.py

Prints medians of 30 translations: the embedded translator on 12 words, greedy and with five beams,
without and with a change, and a random Transformer of 20 million parameters. Needs Chromium and
Playwright.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from intently.models import Transformer, TransformerOptions
from intently.play import save_play
from intently.translation import Translator

WORDS = "The animal didn't cross the road because it was too wide ."
RUNS = 30

ASKED = """async ([beams, changes, runs, text]) => {
  const code = document.querySelector("#intently-worker").textContent;
  const worker = new Worker(URL.createObjectURL(new Blob([code])));
  const heard = () => new Promise(done => worker.addEventListener(
    "message", ({ data }) => done(data), { once: true }));
  const description = JSON.parse(document.querySelector("#intently-translator").textContent);
  const blocks = [...document.querySelectorAll("script[data-block]")].map(x => x.textContent);
  worker.postMessage({ kind: "load", description, blocks });
  await heard();
  const times = [];
  for (let n = 0; n < runs + 3; n++) {
    // another text each time, so that nothing is remembered
    worker.postMessage({ kind: "translate", id: n, text: text + " ".repeat(n), beams, changes });
    times.push((await heard()).milliseconds);
  }
  worker.terminate();
  return times.slice(3);
}"""

OFF = [{"kind": "off", "layer": "encoder.1.self_attention", "head": 0}]


def large(like: Translator) -> Translator:
    """Return a random translator of about 20 million parameters over the same words."""
    torch.manual_seed(0)
    sizes = like.source_tokenizer.size, like.target_tokenizer.size
    shape = {"width": 512, "heads": 8, "inner": 1536, "encoder_layers": 3, "decoder_layers": 3}
    model = Transformer(TransformerOptions(*sizes, **shape))
    count = sum(x.numel() for x in model.parameters())
    print(f"the large one has {count / 1e6:.1f} million parameters")
    return Translator(model, like.source_tokenizer, like.target_tokenizer, max_length=48)


def main() -> None:
    """Print the medians."""
    from playwright.sync_api import sync_playwright

    small = Translator.load()
    cases: list[tuple[str, Translator, int, list[dict[str, Any]], int]] = [
        ("greedy", small, 1, [], RUNS),
        ("greedy, a head off (two translations)", small, 1, OFF, RUNS),
        ("5 beams", small, 5, [], RUNS),
        ("20 million, greedy", large(small), 1, [], 5),
    ]
    with sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, translator, beams, changes, runs in cases:
            path = save_play(translator, Path(folder) / "play.html")
            page = browser.new_page()
            page.goto(path.as_uri())
            times = page.evaluate(ASKED, [beams, changes, runs, WORDS])
            size = path.stat().st_size / 1e6
            print(
                f"{name}: median {statistics.median(times):.0f} ms, most {max(times):.0f} ms, "
                f"file {size:.1f} MB"
            )
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
