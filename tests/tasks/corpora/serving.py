"""A web server in a thread that answers well, badly or never: what downloads meet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site(ThreadingHTTPServer):
    """Serves ``files`` by path; ``moved`` paths lead to others, ``silent`` ones never answer.

    ``cut`` says after how many bytes an answer ends; ``asked`` lists the paths asked for.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.cut: dict[str, int] = {}
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.closing = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site = self.server
        assert isinstance(site, Site)
        site.asked.append(self.path)
        content = site.files.get(self.path)
        if self.path in site.silent:
            site.closing.wait(20)
        elif self.path in site.moved:
            self.send_response(302)
            self.send_header("Location", site.moved[self.path])
            self.end_headers()
        elif content is not None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: site.cut.get(self.path)])
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[Site]:
    """Run a site as long as the block runs."""
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield site
        finally:
            site.closing.set()
            site.shutdown()
            thread.join()
