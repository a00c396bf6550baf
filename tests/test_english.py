"""What users read is idiomatic: help, messages, README and docs hold no pattern that is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "intently"
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "course").glob("*.md")),
]
OBJECTS = (
    "the|a|an|every|each|all|any|no|one|which|what|nothing|anything|themselves|itself|its|their|"
    "hidden|keys?"
)

PATTERNS = {
    "attend takes “to”": rf"\battend(s|ed|ing)? ({OBJECTS}|x|contexts)\b"
    r"|\bwhat (a |the |an |it|its )?(\w+ )?(shall |may |can |should )?attend(s|ed)?\b(?! to)"
    r"|\b(is|are|be) attended\b(?! to)",
    "pass, not hand": r"(?<!by )\bhand(s|ed|ing)? "
    r"(in|it|them|over|out|a|the|its|what|weight\.T|matrices)\b",
    "different, not other": r"(?<!the )(?<!no )(?<!all )(?<!any )(?<!, )\b"
    r"other (weights|numbers|values)\b"
    r"|\bof another (shape|kind|width|size|length|dtype|form|version|number|order|slope|table)\b",
    "should, not shall": r"\bshall\b",
    "the verb comes before the object": r"\b(What (shape|size|colour)|How many \w+) has\b"
    r"|\bcomputes that attends\b|\bof each line, --beam at most\b",
    "a fix is a sentence": r"\bPip install\b",
    "a count is no message": r"\bgot \d+ problems?\b",
    "at this budget": r"\bSo early,",
}


def public_strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the messages and help texts of a module, and the docstrings of its public names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value

    def docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if part.name.startswith("_") and not part.name.startswith("__"):
                    continue
                yield part.lineno, ast.get_docstring(part) or ""
                yield from docstrings(part)

    yield from docstrings(tree)


def texts() -> Iterator[tuple[str, str]]:
    """Yield where a text stands, and the text on one line."""
    for path in sorted(SOURCE.rglob("*.py")):
        for line, text in public_strings(path):
            yield f"{path.relative_to(ROOT)}:{line}", " ".join(text.split())
    for path in PAGES:
        if path.name != "log.md":
            for block in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
                yield str(path.relative_to(ROOT)), " ".join(block.split())
    for path in sorted(SOURCE.rglob("*.js")):
        code = re.sub(
            r"/\*.*?\*/|^\s*//.*$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M
        )
        for text in re.findall(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`', code):
            yield str(path.relative_to(ROOT)), " ".join(text.split())


@pytest.mark.parametrize("reason", PATTERNS)
def test_what_users_read_is_idiomatic(reason: str) -> None:
    pattern = re.compile(PATTERNS[reason])
    hits = [
        f"{where}: …{text[max(0, hit.start() - 50) : hit.end() + 40]}…"
        for where, text in texts()
        for hit in pattern.finditer(text)
    ]
    assert not hits, "\n".join([reason, *hits])
