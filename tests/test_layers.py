"""A room imports only from rooms above it, and `import intently` stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import intently
import intently.show

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "intently"

ROOMS = (
    *("errors", "foundation", "core", "reference", "nn", "observe", "show", "interop", "checker"),
    *("tasks", "cli", "__main__"),
)
"""A room imports only from those before it."""

STRANGERS = {"observe", "show"}
"""Do not know each other: they meet in the lazy matrix."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "intently.observe.recording.recording",
        "intently.show",
    ): "a recording writes pages and shows itself",
    ("intently.observe.recording.recording", "intently.observe.saving"): "a recording saves itself",
    ("intently.core.matrix.lazy", "intently.show"): "a matrix shows itself in notebooks",
    ("intently.core.biases", "intently.show"): "a bias shows itself in notebooks",
}
"""(module that imports, part imported): why. Keep it short."""

FOREIGN = (
    "transformers",
    "diffusers",
    "keras",
    "matplotlib",
    "sacrebleu",
    "rich",
    "typer",
    "tokenizers",
)


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = ["intently", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, of: str, package: bool) -> Iterator[str]:
    """Every module that is imported anywhere in the file, functions included, by full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = of.split(".")[: None if package and node.level == 1 else -node.level + package]
                base = ".".join([*up, *([base] if base else [])])
            if base == "intently":
                yield from (f"intently.{alias.name}" for alias in node.names)
            else:
                yield base


def part_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def misplaced(importer: str, imported: str) -> bool:
    room, other = part_of(importer), part_of(imported)
    if not room or room == other or other not in ROOMS:  # a name of the map itself
        return False
    return ROOMS.index(other) > ROOMS.index(room) or {room, other} == STRANGERS


def test_every_module_has_a_room() -> None:
    found = {part_of(dotted(path)) for path in modules()} - {""}
    assert found == {*ROOMS}
    assert sum((SOURCE / room).is_dir() for room in ROOMS) <= 10


def test_imports_point_upward() -> None:
    wrong = [
        (name, other)
        for path in modules()
        if (name := dotted(path))
        for other in imports(ast.parse(path.read_text("utf-8")), name, path.name == "__init__.py")
        if other.startswith("intently")
        and misplaced(name, other)
        and (name, f"intently.{part_of(other)}") not in EXCEPTIONS
    ]
    assert not wrong, "(a module, what it may not import)"


def within(path: Path) -> set[str]:
    """The modules of the package that a module imports when it runs, functions included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = [
        n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    ]
    unseen = {inner for one in typing for inner in ast.walk(one)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in unseen and node.module:
            base = SOURCE.parent.joinpath(*node.module.split("."))
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [base / alias.name for alias in node.names]
            found |= {
                name if path.is_dir() or path.with_suffix(".py").is_file() else node.module
                for name, path in zip(inside, modules)
            }
    return {name for name in found if name.startswith("intently.")} - {dotted(path)}


def test_no_circles() -> None:
    graph = {dotted(path): within(path) for path in modules()}
    del graph["intently"]
    for importer, imported in EXCEPTIONS:
        graph[importer] = {name for name in graph[importer] if not name.startswith(imported)}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_no_exception_is_left_over() -> None:
    for importer, imported in EXCEPTIONS:
        path = SOURCE.joinpath(*importer.split(".")[1:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        found = imports(ast.parse(file.read_text(encoding="utf-8")), importer, path.is_dir())
        assert any(other.startswith(imported) for other in found), (importer, imported)


@pytest.mark.parametrize(
    ("importer", "imported", "wrong"),
    [
        ("intently.core.masks", "intently.nn", True),
        ("intently.core.masks", "intently.errors", False),
        ("intently.nn.models.transformer", "intently.nn.blocks", False),
        ("intently.nn.models.transformer", "intently.tasks.decoding", True),
        ("intently.show.labels", "intently.observe", True),
        ("intently.observe.watching", "intently.show", True),
        ("intently.tasks.training.trainer", "intently.tasks.decoding", False),
        ("intently.tasks.training.trainer", "intently.cli", True),
        ("intently.cli.app", "intently.show", False),
    ],
)
def test_the_walk_can_fail(importer: str, imported: str, wrong: bool) -> None:
    assert misplaced(importer, imported) == wrong


def test_the_walk_sees_every_way_to_import() -> None:
    code = (
        "import intently.cli.app\nfrom intently import show\n"
        "def f():\n    from ..text import words\n"
    )
    found = set(imports(ast.parse(code), "intently.nn.models.transformer", False))
    assert found == {"intently.cli.app", "intently.show", "intently.nn.text"}
    inside = ast.parse("from . import a\nfrom .b import c\nfrom ..text import d")
    expected = {"intently.nn.models", "intently.nn.models.b", "intently.nn.text"}
    assert set(imports(inside, "intently.nn.models", True)) == expected


def test_names_are_found_where_they_are_declared() -> None:
    for package in (intently, intently.show):
        tree = ast.parse(Path(package.__file__ or "").read_text(encoding="utf-8"))
        declared = {
            alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module != "intently.foundation.on_demand"
            for alias in node.names
            if alias.name != "TYPE_CHECKING"
        }
        assert sorted(declared) == sorted(package.__all__)
        for name, home in declared.items():
            other = getattr(sys.modules.get(home or ""), name, None) or getattr(package, name)
            assert getattr(package, name) is other, name
        assert set(package.__all__) <= set(dir(package))


def test_what_the_docs_name_is_there() -> None:
    root = SOURCE.parents[1]
    files = {path.name for path in [*SOURCE.parent.rglob("*"), *TESTS.rglob("*.py")]}
    architecture = (root / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:[\w/]+/)?(\w+\.(?:py|js))`", architecture))
    assert len(named) > 50, len(named)
    assert named <= files, named - files
    contracts = (root / "docs/contracts.md").read_text(encoding="utf-8")
    numbers = set(re.findall(r"^(\d)\. ", contracts, re.M))
    texts = [path.read_text(encoding="utf-8") for path in [*modules(), *TESTS.rglob("*.py")]]
    cited = {n for text in texts for n in re.findall(r"[Cc]ontracts? (\d)", text)}
    assert numbers == set("123456789") and {"3", "7"} <= cited <= numbers


STORAGE = "observe/test_mmap_pool.py", "observe/test_stores.py"
"""Ask the storage itself: free pages can be seen nowhere else, and a full disk is stood in for."""


OF_OTHERS = {
    *("_replace", "_repr_html_", "_repr_png_", "_esm"),  # Python's, Jupyter's and anywidget's
    *("_version", "_softmax", "_attn_implementation", "_classes"),  # other libraries' and tests'
}


def private_names() -> set[str]:
    """Names with an underscore that modules of the package define."""
    found: set[str] = set()
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {x for x in found if re.match(r"_[a-zA-Z]", x)} - OF_OTHERS


def uses_of(names: set[str], tree: ast.AST) -> Iterator[str]:
    """Those of the names that a test imports, reads from an object, or replaces by its string."""
    own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("intently"):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.Attribute) and node.attr in names - own:
            yield node.attr
        elif isinstance(node, ast.Call) and "setattr" in ast.dump(node.func):
            told = [str(x.value) for x in node.args if isinstance(x, ast.Constant)]
            yield from names & {x.split(".")[-1] for x in told}


def test_tests_use_no_private_name() -> None:
    names = private_names()
    found = {
        str(path.relative_to(TESTS)): uses
        for path in TESTS.rglob("*.py")
        if (uses := set(uses_of(names, ast.parse(path.read_text("utf-8")))))
    }
    assert not {x: uses for x, uses in found.items() if not x.startswith(STORAGE)}
    code = "from intently.a import _b\nx._b\npatch.setattr('intently.a._b', 1)\ny._c"
    assert list(uses_of({"_b"}, ast.parse(code))) == ["_b", "_b", "_b"]


def test_import_intently_is_light() -> None:
    code = (
        "import sys, intently\n"
        "print('torch' in sys.modules)\n"
        "intently.attend, intently.scaled_dot_product_attention\n"
        f"print([name for name in {FOREIGN} if name in sys.modules])\n"
        "print([m for m in sys.modules if m.startswith('intently.')\n"
        f"       and m.split('.')[1] not in {ROOMS[:4]}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE.parent), "PATH": ""},
    )
    assert done.stdout.split("\n")[:3] == ["False", "[]", "[]"], done.stdout
