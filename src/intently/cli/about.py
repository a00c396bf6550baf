"""`intently about`: versions, and what computes attention on this machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import intently


def about() -> None:
    """Say which versions are installed, and which kernels run here."""
    import torch

    from intently import kernels
    from intently.core.kernels.native import loaded
    from intently.tasks.training.checkpoint import versions

    for name, version in versions().items():
        if name != "native":
            print(f"{name:9} {version}")
    print(f"{'installed':9} {_installed()}")
    print(f"{'kernels':9} {', '.join(kernels.available())}")
    if loaded.module is None:
        print(f"{'native':9} not here: {loaded.reason}")
    else:
        pool = {"openmp": "PyTorch's", "own": "its own"}[loaded.module.pool()]
        threads = torch.get_num_threads()
        print(f"{'native':9} {loaded.module.instructions()}, {threads} threads of {pool} pool")


def _installed() -> str:
    """From which wheel this code was installed, as its tag tells, or where it lies if from none."""
    here = Path(intently.__file__)
    try:
        found = distribution("intently")
        if not here.samefile(str(found.locate_file("intently/__init__.py"))):
            raise FileNotFoundError
    except (PackageNotFoundError, OSError):
        return f"from no wheel, in {here.parent}"
    tags = [x[5:] for x in (found.read_text("WHEEL") or "").splitlines() if x.startswith("Tag: ")]
    kernel = "without" if all(tag.endswith("-any") for tag in tags) else "with"
    return f"from a wheel {kernel} the native kernel, {', '.join(tags)}"
