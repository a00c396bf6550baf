"""The ``intently`` command: it settles how threads wait, before PyTorch is loaded, and runs.

Threads that wait soon sleep. PyTorch's own choice is to spin; on a machine that is busy with other
work the threads then spin against each other, and training falls to a tenth of its speed. The
library itself touches no environment variable.
"""

from __future__ import annotations

import os


def main() -> None:
    """Run the command line of `intently.cli.app`."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        from intently.cli.app import main as run
    except KeyboardInterrupt:  # while PyTorch is loaded
        raise SystemExit(130) from None
    run()
