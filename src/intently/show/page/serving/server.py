"""A page served on 127.0.0.1, only to clients that know its address.

The address holds a random token. The server answers only under its own IP address, which prevents
DNS rebinding, and only to the page itself, so that other pages cannot query it. No request reaches
a file: requests are a name from a table and some integers.
"""

from __future__ import annotations

import hmac
import io
import math
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from intently.errors import WriteError, build
from intently.show.page.contents import Packed
from intently.show.page.items import Item
from intently.show.page.serving.answers import Answer, Refused, Served
from intently.show.page.writing import whole

HOST = "127.0.0.1"

LONGEST = 2048
"""Most characters of an address."""

ASKING = 5.0
"""Seconds that a connection has to send the head of a request, idle time included."""

TAKING = 30.0
"""Seconds that a connection has to receive an answer."""

GRACE = 2.0
"""Seconds that pending answers have when the server ends."""

CONNECTIONS = 64
"""Most simultaneous connections."""

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

    allow_reuse_address = True
    request_queue_size = CONNECTIONS

    def __init__(self, page: bytes, port: int = 0, served: Served | None = None) -> None:
        self.page, self.served = page, served
        self.token = secrets.token_urlsafe(24)
        self._handlers: dict[threading.Thread, socket.socket] = {}
        self._places: set[socket.socket] = set()
        self._asking: dict[socket.socket, None] = {}  # longest first
        self._placing = threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            fix = "leave --port out: a free one is taken"
            raise build(WriteError, "port", "a free port", f"{port} ({error})", fix=fix) from None

    @property
    def address(self) -> str:
        """The one address that is answered, token included."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> set[str]:
        """The names a request may use for this host."""
        port = self.server_port
        return {f"{HOST}:{port}", *({HOST} if port == 80 else ())}

    def server_bind(self) -> None:
        """Bind without a name lookup."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def working(self) -> bool:
        """Whether some thread is still alive."""
        threads = any(thread.is_alive() for thread in self._handlers)
        return threads or (self.served is not None and self.served.background.working)

    def server_close(self) -> None:
        """Close the port and its connections; pending work has `GRACE` to end."""
        until = time.monotonic() + GRACE
        super().server_close()
        if self.served is not None:
            self.served.close(GRACE)
        answering = [(one, at) for one, at in self._handlers.items() if one.is_alive()]
        for _, connection in answering:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread, _ in answering:
            thread.join(max(0.0, until - time.monotonic()))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread; at the limit, the connection that asks longest is closed.

        Connections being answered stay open; if all are busy, the new connection is closed.
        """
        with self._placing:
            if len(self._places) >= CONNECTIONS:
                slowest = next(iter(self._asking), None)
                if slowest is None:
                    self.shutdown_request(request)
                    return
                self._leave(slowest)
                with suppress(OSError):
                    slowest.shutdown(socket.SHUT_RDWR)
            self._places.add(request)
            self._asking[request] = None
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), daemon=True
        )
        alive = {one: at for one, at in self._handlers.items() if one.is_alive()}
        self._handlers = {**alive, thread: request}
        thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._placing:
                self._leave(request)

    def _leave(self, connection: socket.socket) -> None:
        self._places.discard(connection)
        self._asking.pop(connection, None)

    def asks(self, connection: socket.socket, asking: bool) -> None:
        """Record whether a connection is still sending its request or is being answered."""
        with self._placing:
            if not asking:
                self._asking.pop(connection, None)
            elif connection in self._places:
                self._asking.setdefault(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections; bugs show their traceback."""
        import sys

        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def explorer(items: Sequence[Item], title: str | None = None, port: int = 0) -> Server:
    """Return a server of the page of some items, which asks for its numbers."""
    served = Served(items, title)
    try:
        packed = Packed(served.meta, [], frozenset())
        return Server(whole(packed, "'self'"), port, served)
    except BaseException:
        served.close()
        raise


class _Asked(io.RawIOBase):
    """The bytes of a connection until a deadline, in pieces of any size."""

    def __init__(self, connection: socket.socket) -> None:
        self.deadline = math.inf
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the page and for its questions."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Read under a deadline."""
        super().setup()
        self.rfile.close()
        self._asked = _Asked(self.connection)
        self.rfile = io.BufferedReader(self._asked)

    def handle_one_request(self) -> None:
        """Answer one request, which must arrive in time."""
        self._asked.deadline = time.monotonic() + ASKING
        self.server.asks(self.connection, True)
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer, or refuse with a message."""
        self.server.asks(self.connection, False)
        try:
            self._check()
            answer = self._answer()
        except Refused as refused:
            self.close_connection = True
            self._send(refused.status, Answer(str(refused).encode(), "text/plain; charset=utf-8"))
        else:
            self._send(200, answer)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _check(self) -> None:
        """Refuse requests that this server's own page would not send."""
        headers = self.headers
        hosts = headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].strip().lower() not in self.server.hosts:
            raise Refused(421, f"this server is called {HOST} and nothing else")
        if len(self.path) > LONGEST:
            raise Refused(414, f"an address has at most {LONGEST:,} characters")
        if "Transfer-Encoding" in headers or headers.get("Content-Length", "0").strip() != "0":
            raise Refused(413, "a question has no body")
        origin = headers.get("Origin")
        if origin is not None and origin != f"http://{hosts[0].strip().lower()}":
            raise Refused(403, "only the page itself may ask")
        opened = headers.get("Sec-Fetch-Mode") == "navigate"
        site = headers.get("Sec-Fetch-Site", "none")
        if site not in ("same-origin", "none") and not opened:
            raise Refused(403, "only the page itself may ask")

    def _answer(self) -> Answer:
        path, _, query = self.path.partition("?")
        parts = path.split("/")
        known = len(parts) == 3 and not parts[0]
        token = parts[1].encode("utf-8", "surrogateescape") if known else b""
        if not hmac.compare_digest(token, self.server.token.encode()):
            raise Refused(404, "nothing is here; the address that was printed holds a token")
        if not parts[2] and not query:
            return Answer(self.server.page, "text/html; charset=utf-8")
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
        return self.server.served.answer(parts[2], dict(words))

    def _send(self, status: int, answer: Answer) -> None:
        self.connection.settimeout(TAKING)
        self.send_response(status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in SAFE.items():
            self.send_header(name, value)
        if answer.kind.startswith("text/html"):
            self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        if answer.nearness:
            self.send_header("Intently-Nearness", answer.nearness)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse malformed requests without echoing them."""
        self.close_connection = True
        self._send(code, Answer(b"not understood", "text/plain; charset=utf-8"))

    def version_string(self) -> str:
        """The name of the server, without versions."""
        return "intently"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: addresses hold the token."""
