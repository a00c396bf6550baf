"""`intently about`: versions, and what computes attention on this machine."""

from __future__ import annotations


def about() -> None:
    """Say which versions are installed, and which kernels run here."""
    import torch

    from intently import kernels
    from intently.kernels.native import loaded
    from intently.training.checkpoint import versions

    for name, version in versions().items():
        if name != "native":
            print(f"{name:9} {version}")
    print(f"{'kernels':9} {', '.join(kernels.available())}")
    if loaded.module is None:
        print(f"{'native':9} not here: {loaded.reason}")
    else:
        pool = {"openmp": "PyTorch's", "own": "its own"}[loaded.module.pool()]
        threads = torch.get_num_threads()
        print(f"{'native':9} {loaded.module.instructions()}, {threads} threads of {pool} pool")
