"""What `dir` lists: what a user may use, whatever ran before."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import intently as it

LISTED = """
import intently as it
before = dir(it), dir(it.interop), dir(it.core.masks), dir(it.nn), dir(it.show)
import intently.interop.torch, intently.observe, intently.cli.app
from intently.show import heatmap
it.attend([[1.0]], [[1.0]], mask=it.causal()).dense()
for name in dir(it):
    getattr(it, name)
assert before == (dir(it), dir(it.interop), dir(it.core.masks), dir(it.nn), dir(it.show))
print(*before[0])
"""


def test_names_do_not_depend_on_what_ran() -> None:
    done = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert {*it.__all__, "core", "nn", "observe", "tasks", "interop", "__version__"} <= {*names}
    assert not {"TYPE_CHECKING", "names", "foundation", "cli"} & {*names}


def test_packages_list_their_public_names() -> None:
    for name in (
        *("core", "nn", "nn.models", "observe", "observe.edits", "show", "interop", "tasks"),
        *(f"core.{x}" for x in ("biases", "kernels", "masks", "matrix", "positions")),
        *(f"tasks.{x}" for x in ("corpora", "decoding", "language", "recipes", "text")),
        *(f"tasks.{x}" for x in ("training", "translation")),
        *("interop.torch", "interop.transformers", "interop.keras"),
    ):
        package = import_module(f"intently.{name}")
        assert dir(package) == sorted(package.__all__)
        if name != "interop.keras":  # whose layer would load Keras
            assert all(hasattr(package, each) for each in dir(package))


def test_interop_finds_its_libraries_and_keras_its_layer() -> None:
    assert dir(it.interop) == ["diffusers", "keras", "torch", "transformers"]
    assert "SelfAttention" in dir(it.interop.keras)


@pytest.mark.parametrize(
    "mask", [it.causal(), it.causal() & ~it.padding([1]), it.allowed([[True]])]
)
def test_a_mask_lists_what_users_call(mask: it.Mask) -> None:
    public = [name for name in dir(mask) if not name.startswith("_")]
    assert public == ["allow", "at", "blocks", "dense", "draw", "inverted"]
    assert all(hasattr(mask, name) for name in dir(mask))
    assert [name for name in dir(it.alibi(2)) if not name.startswith("_")] == ["at", "tile"]
