"""The page of a translator, served to this machine alone."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from intently.errors import WriteError, build

HOST = "127.0.0.1"


class Server(ThreadingHTTPServer):
    """Serves one page at ``/``, to this machine; `address` is where. Raises `WriteError` for a port
    that is taken.
    """

    daemon_threads = True

    def __init__(self, page: bytes, port: int = 0) -> None:
        self.page = page
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            fix = "leave --port out: a free one is taken"
            raise build(WriteError, "port", "a free port", f"{port} ({error})", fix=fix) from None
        self.address = f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with the page; a name of another host, from a page elsewhere, is refused."""
        server = self.server
        assert isinstance(server, Server)
        names = {f"{name}:{server.server_port}" for name in (HOST, "localhost")}
        found = self.path == "/" and self.headers.get("Host") in names
        body = server.page if found else b"there is only /\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8" if found else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests."""
