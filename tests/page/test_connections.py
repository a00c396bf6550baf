"""Connections are few, have little time, and end with the server."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from intently.show.page import server as serving
from intently.show.page.items import items_of
from intently.show.page.served import Answer
from intently.show.page.server import Server

from .test_server import ask, server, source

__all__ = ["server"]


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=10)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for two connections, each with half a second to ask and to take."""
    monkeypatch.setattr(serving, "CONNECTIONS", 2)
    monkeypatch.setattr(serving, "ASKING", 0.5)
    monkeypatch.setattr(serving, "TAKING", 0.5)
    found = Server(items_of(source()))
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def test_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    assert serving.ASKING == 5
    monkeypatch.setattr(serving, "ASKING", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        assert connection.recv(100) == b""


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS", 4)
    found = Server(items_of(source()))
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    held = []
    try:
        for _ in range(4):
            held.append(socket.create_connection(("127.0.0.1", found.server_port), timeout=5))
            held[-1].sendall(b"GET ")
        deadline, closed = threading.Event(), False
        for _ in range(50):
            extra = socket.create_connection(("127.0.0.1", found.server_port), timeout=5)
            extra.sendall(b"GET ")
            extra.settimeout(0.2)
            try:
                closed = extra.recv(10) == b""
            except (TimeoutError, ConnectionResetError) as error:
                closed = isinstance(error, ConnectionResetError)
            extra.close()
            if closed:
                break
            deadline.wait(0.05)
        assert closed
        for connection in held:
            connection.close()
        for _ in range(50):
            try:
                if ask(found, "")[0] == 200:
                    break
            except (ConnectionError, http.client.HTTPException):
                deadline.wait(0.05)
        assert ask(found, "")[0] == 200
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


def test_idle_connections_give_their_place_back(narrow: Server) -> None:
    with connected(narrow), connected(narrow):
        time.sleep(1)
        assert ask(narrow, "")[0] == 200


def test_a_question_in_small_pieces_ends_in_time(narrow: Server) -> None:
    since = time.monotonic()
    with connected(narrow) as slow, pytest.raises(OSError):
        for byte in f"GET /{narrow.token}/ HTTP/1.1\r\n".encode() * 3:
            slow.sendall(bytes([byte]))
            time.sleep(0.05)
    assert time.monotonic() - since < 2


def test_an_answer_that_is_taken_slowly_ends_in_time(narrow: Server) -> None:
    narrow.page = bytes(2**26)
    took = 0
    with connected(narrow) as slow:
        head = f"GET /{narrow.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{narrow.server_port}\r\n\r\n"
        slow.sendall(head.encode())
        for _ in range(20):
            took += len(slow.recv(2**20, socket.MSG_WAITALL))
            time.sleep(0.1)
        assert 0 < took < 2**25
        assert not any(thread.is_alive() for thread in narrow._handlers)


def test_the_end_of_a_server_ends_its_connections() -> None:
    found = Server(items_of(source()))
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    with connected(found) as idle:
        assert ask(found, "")[0] == 200
        assert found.working
        found.shutdown()
        since = time.monotonic()
        found.server_close()
        assert time.monotonic() - since < serving.GRACE
        assert idle.recv(10) == b""
    assert not found.working
    thread.join()


def test_work_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "GRACE", 0.2)
    found, gate, begun = Server(items_of(source())), threading.Event(), threading.Event()

    def long(*_: Any) -> Answer:
        begun.set()
        gate.wait(20)
        return Answer(b"")

    monkeypatch.setattr(found.served, "answer", long)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    with connected(found) as asking:
        head = f"GET /{found.token}/x HTTP/1.1\r\nHost: 127.0.0.1:{found.server_port}\r\n\r\n"
        asking.sendall(head.encode())
        assert begun.wait(5)
        found.shutdown()
        since = time.monotonic()
        found.server_close()
        assert time.monotonic() - since < 2
        assert found.working
        gate.set()
    thread.join()
