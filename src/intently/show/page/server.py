"""A page served on 127.0.0.1, only to clients that know its address.

The address holds a random token. The server answers only under its own IP address, which prevents
DNS rebinding, and only to the page itself, so that other pages cannot query it. No request reaches
a file: requests are a name from a table and some integers.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from intently.errors import WriteError, build
from intently.show.page.answers import Refused, Reply, Served
from intently.show.page.contents import Packed
from intently.show.page.items import Item
from intently.show.page.writing import whole

HOST = "127.0.0.1"

LONGEST = 2048
"""Most characters of an address."""

PATIENCE = 10.0
"""Seconds that a connection may be silent."""

GRACE = 2.0
"""Seconds that pending work has when the server ends."""

CONNECTIONS = 64
"""Most simultaneous connections; for another, the slowest to ask is closed."""

SAFE = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """Serves a page from a free port of 127.0.0.1, and what it asks; ``address`` is where.

    Raises `WriteError` if the given port is taken.
    """

    request_queue_size = CONNECTIONS
    block_on_close = False
    daemon_threads = True

    def __init__(self, page: bytes, port: int = 0, served: Served | None = None) -> None:
        self.page, self.served = page, served
        self.token = secrets.token_urlsafe(24)
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        self.asking = OrderedDict[socket.socket, None]()  # the slowest first
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            fix = "leave --port out: a free one is taken"
            raise build(WriteError, "port", "a free port", f"{port} ({error})", fix=fix) from None

    @property
    def address(self) -> str:
        """The one address that is answered, token included."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        """Bind without a name lookup."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def working(self) -> bool:
        """Whether an answer is still computed."""
        return self.served is not None and bool(self.served.turns.asked)

    def server_close(self) -> None:
        """Close the port; pending work has `GRACE` to end."""
        super().server_close()
        if self.served is not None:
            self.served.turns.close(GRACE)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread; if there is no place, the slowest to ask gives way."""
        if not self._places.acquire(blocking=False):
            with suppress(OSError, KeyError):
                self.asking.popitem(last=False)[0].shutdown(socket.SHUT_RDWR)
            if not self._places.acquire(timeout=1):
                return self.shutdown_request(request)
        self.asking[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.asking.pop(request, None)
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections; bugs show their traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def explorer(items: Sequence[Item], title: str | None = None, port: int = 0) -> Server:
    """Return a server of the page of some items, which asks for its numbers."""
    served = Served(items, title)
    return Server(whole(Packed(served.meta, [], frozenset()), "'self'"), port, served)


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the page and for its questions."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Answer, or refuse with a message."""
        self.server.asking.pop(self.connection, None)
        try:
            self._check()
            answer = self._answer()
        except Refused as refused:
            self.close_connection = True
            if refused.status == 503:  # the server ends, or nobody waits
                return
            self._send(refused.status, Reply(str(refused).encode(), "text/plain; charset=utf-8"))
        else:
            self._send(200, answer)
        self.server.asking[self.connection] = None

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _check(self) -> None:
        """Refuse requests that this server's own page would not send."""
        headers = self.headers
        port = self.server.server_port
        known = {f"{HOST}:{port}", *({HOST} if port == 80 else ())}
        hosts = [host.strip().lower() for host in headers.get_all("Host", [])]
        if len(hosts) != 1 or hosts[0] not in known:
            raise Refused(421, f"this server is called {HOST} and nothing else")
        if len(self.path) > LONGEST:
            raise Refused(414, f"an address has at most {LONGEST:,} characters")
        if "Transfer-Encoding" in headers or headers.get("Content-Length", "0").strip() != "0":
            raise Refused(413, "a question has no body")
        foreign = headers.get("Origin", f"http://{hosts[0]}") != f"http://{hosts[0]}"
        opened = headers.get("Sec-Fetch-Mode") == "navigate"
        inside = headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none")
        if foreign or not (inside or opened):
            raise Refused(403, "only the page itself may ask")

    def _answer(self) -> Reply:
        path, _, query = self.path.partition("?")
        parts = path.split("/")
        known = len(parts) == 3 and not parts[0]
        token = parts[1].encode("utf-8", "surrogateescape") if known else b""
        if not hmac.compare_digest(token, self.server.token.encode()):
            raise Refused(404, "nothing is here; the address that was printed holds a token")
        if not parts[2] and not query:
            return Reply(self.server.page, "text/html; charset=utf-8")
        if self.server.served is None:
            raise Refused(404, "no such question")
        try:
            words = parse_qsl(
                query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=16
            )
        except ValueError:
            raise Refused(400, "the address cannot be read") from None
        if len(dict(words)) != len(words):
            raise Refused(400, "a number was given twice")
        return self.server.served.answer(parts[2], dict(words), self._gone)

    def _gone(self) -> bool:
        """Return whether the client has closed the connection."""
        try:
            heard, _, _ = select.select([self.connection], [], [], 0)
            return bool(heard) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _send(self, status: int, answer: Reply) -> None:
        self.send_response(status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in SAFE.items():
            self.send_header(name, value)
        if answer.kind.startswith("text/html"):
            self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        if answer.sampled:
            self.send_header("Intently-Sampled", answer.sampled)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse malformed requests without echoing them."""
        self.close_connection = True
        self._send(code, Reply(b"not understood", "text/plain; charset=utf-8"))

    def version_string(self) -> str:
        """The name of the server, without versions."""
        return "intently"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: addresses hold the token."""
