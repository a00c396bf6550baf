"""Make the subword tokenizer that is part of the package: ``python docs/make_tokenizer.py [FILE]``.

It is trained on what lies in this repository: the words of the built-in language, the prose of the
documentation and of the docstrings, and a list of ordinary English words. The same files give the
same tokenizer.
"""

from __future__ import annotations

import ast
import re
import string
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from intently.tasks.corpora import sample
from intently.tasks.text import Tokenizer
from intently.tasks.text.tokenizers import READY

ROOT = Path(__file__).resolve().parents[1]
SIZE = 9000
MOST = 8
"""The same chunk of text counts no more often, so that pieces are those of English, not of ours."""

PAIRS = 20_000
"""Sentences of the built-in language; its rarest word stands in one of some 3,000."""

PRINTABLE = string.punctuation + string.digits + "éèêëàâäçîïôöùûüœæñß«»“”‘’„…–—·×÷±√∞≤≥≠→←°€£"
"""Characters that stay single pieces, whether the texts hold them or not."""


def prose(markdown: str) -> str:
    """Return a page without code, tables' bars, links' targets and marks."""
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|https?://\S+|<[^>]*>", " ", markdown, flags=re.S)
    lines = (line for line in text.splitlines() if not line.startswith("    "))
    return re.sub(r"[|#*_\[\]]", " ", "\n".join(lines))


def docstrings(source: str) -> Iterator[str]:
    """Yield the prose of a module's docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node) or "").split("\n>>>", 1)[0]
            yield re.sub(r"``.*?``|`[^`]*`", " ", text, flags=re.S)


def texts() -> Iterator[str]:
    """Yield the prose of the repository."""
    for page in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]):
        yield prose(page.read_text(encoding="utf-8"))
    for module in sorted(ROOT.glob("src/**/*.py")):
        yield from docstrings(module.read_text(encoding="utf-8"))


def chunks(given: Iterable[str]) -> dict[str, int]:
    """Return what stands between spaces, and how often it counts: the root of how often it is said.

    Chunks with digits, underscores and other marks of code are left out.
    """
    said = Counter(chunk for text in given for chunk in text.split())
    plain = re.compile(r"[(“\"']?[^\W\d_]+(?:['’-][^\W\d_]+)*[)”\"',.;:!?…]*")
    return {x: min(MOST, round(n**0.5)) for x, n in sorted(said.items()) if plain.fullmatch(x)}


def sentences() -> list[str]:
    """Return all that the tokenizer is trained on."""
    pairs = sample("train", PAIRS)
    english = {word for pair in pairs for word in pair.source_words}
    french = {word for pair in pairs for word in pair.target_words}
    ordinary = (ROOT / "docs" / "ordinary_words.txt").read_text(encoding="utf-8").split()
    counts = Counter(chunks(texts()))
    counts.update({word: MOST // 2 for word in {*english, *french, *ordinary}})
    counts.update({word.capitalize(): 2 for word in {*english, *ordinary}})
    counts.update({f"({word}": 2 for word in ordinary if len(word) > 3})  # no space before: inside
    found = [chunk for chunk, n in sorted(counts.items()) for _ in range(n)]
    return found + [" ".join(PRINTABLE)] * 2


def main(path: Path) -> None:
    """Write the tokenizer to a file."""
    tokenizer = Tokenizer.train(sentences(), size=SIZE, min_frequency=2)
    tokenizer.save(path)
    print(f"{path}: {tokenizer.size} entries, {path.stat().st_size:,} bytes")
    for text in ("The animal didn't cross the road.", "Tokenization is unbelievable."):
        print(" ".join(tokenizer.tokens(tokenizer.encode(text))))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else READY)
