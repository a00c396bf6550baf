"""Serving a page until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import webbrowser
from typing import Protocol


class Serves(Protocol):
    """A server of one page, and where it is."""

    @property
    def address(self) -> str: ...

    def serve_forever(self, poll_interval: float = 0.5) -> None: ...

    def server_close(self) -> None: ...


def until_interrupted(server: Serves, opened: bool) -> None:
    """Print the address, open it in the browser if ``opened``, and serve until Ctrl-C."""
    try:
        print(server.address, flush=True)
        print("ctrl-C ends it", file=sys.stderr)
        if opened:
            webbrowser.open(server.address)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(file=sys.stderr)
    finally:
        server.server_close()
