"""What is distributed: the source with all that its documents link to, and wheels by their name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import intently
from intently.show.page import script

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("src/intently/core/kernels/native/source")
pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="compilers are stood in for by scripts")
]


def setup(command: str, folder: Path, *arguments: str | Path, compiler: str = "c++") -> str:
    """Run setup.py as a build does; what it said."""
    pytest.importorskip("setuptools", minversion="77")
    environment = {**os.environ, "CC": compiler, "CXX": compiler}
    asked = [sys.executable, "setup.py", command, *map(str, arguments)]
    done = subprocess.run(asked, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of the source distribution."""
    base = tmp_path_factory.mktemp("egg")
    setup("egg_info", ROOT, "--egg-base", base)
    return set((base / "intently.egg-info/SOURCES.txt").read_text("utf-8").splitlines())


def test_the_source_distribution_holds_what_its_documents_link_to(distributed: set[str]) -> None:
    linked = {
        os.path.relpath(page.parent / link, ROOT)
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    }
    assert "docs/playing.md" in linked and "docs/pictures/play.gif" in linked
    built = {x for x in linked if x.endswith(".html") or x.startswith("docs/reference")}
    assert linked - built <= distributed


def test_the_source_distribution_holds_its_tests_and_what_they_read(distributed: set[str]) -> None:
    tests = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")}
    assert "tests/messages.py" in tests and tests <= distributed
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a checkout of git")
    left = {x for x in tracked.stdout.splitlines() if not x.startswith((".github/", ".gitignore"))}
    assert left - distributed == set()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that holds the sources of the kernel, and little else."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    made = tmp_path / "src/intently"
    made.mkdir(parents=True)
    (made / "__init__.py").write_text('__version__ = "0"')
    for name in ("intently_command.py", "intently_pytest.py"):
        (tmp_path / "src" / name).write_text("")
    shutil.copytree(ROOT / SOURCE, tmp_path / SOURCE)
    return tmp_path


def test_without_a_compiler_the_wheel_holds_no_kernel_and_its_name_says_so(package: Path) -> None:
    said = setup(
        "bdist_wheel", package, "--dist-dir", package / "made", compiler="no-such-compiler"
    )
    assert "were not built" in said
    [made] = (package / "made").iterdir()
    assert made.name == "intently-0-py3-none-any.whl"
    assert not [name for name in ZipFile(made).namelist() if "_native" in name]


def test_a_wheel_holds_the_scripts_of_the_page_as_bundles(package: Path) -> None:
    page = package / "src/intently/show/page"
    shutil.copytree(script.HERE, page, ignore=shutil.ignore_patterns("__pycache__"))
    (page.parent / "__init__.py").write_text("")
    setup("bdist_wheel", package, "--dist-dir", package / "made", compiler="no-such-compiler")
    wheel = ZipFile(*(package / "made").iterdir())
    scripts = {name for name in wheel.namelist() if name.endswith(".js")}
    assert scripts == {f"intently/show/page/bundles/{entry}.js" for entry in script.ENTRIES}
    built = wheel.read("intently/show/page/bundles/start.js").decode()
    assert built == script.joined(["start"])


def test_with_a_compiler_the_wheel_is_for_this_kind_of_machine(package: Path) -> None:
    compiler = package / "compiler"  # it makes what it is asked for, empty
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)
    setup("bdist_wheel", package, "--dist-dir", package / "made", compiler=str(compiler))
    [made] = (package / "made").iterdir()
    assert made.name.startswith("intently-0-cp311-abi3-") and "any" not in made.name


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("py3-none-any", "from a wheel without the native kernel, py3-none-any"),
        ("cp311-abi3-linux_x86_64", "from a wheel with the native kernel, cp311-abi3-linux_x86_64"),
        (None, "from no wheel, in "),
    ],
)
def test_about_tells_the_wheels_apart(tmp_path: Path, tag: str | None, said: str) -> None:
    kept = shutil.ignore_patterns("*.so", "__pycache__", "embedded")
    shutil.copytree(Path(intently.__file__).parent, tmp_path / "intently", ignore=kept)
    if tag is not None:
        about = tmp_path / "intently-0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: intently\nVersion: 0\n")
        (about / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "intently", "about"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert f"installed {said}" in done.stdout, done
    assert "not here: it was not built: no C++ compiler was found, or it failed" in done.stdout
