"""A server that runs while a test does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from intently.show.page.items import Item
from intently.show.page.server import Server, explorer


@contextmanager
def running(items: Sequence[Item], title: str | None = None) -> Iterator[Server]:
    """A server in a thread of its own, which has ended afterwards; a test may end it sooner."""
    server = explorer(items, title)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
