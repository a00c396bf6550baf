"""Connections are few, have little time, and end with the server."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from intently.show.page.items import items_of
from intently.show.page.serving import server as module
from intently.show.page.serving.answers import Answer
from intently.show.page.serving.server import Server

from .serving import running
from .test_server import ask, server, source

__all__ = ["server"]

PATIENCE = 120
"""Seconds after which a busy machine is thought to hang."""


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for two connections, each with half a second to ask and to take."""
    monkeypatch.setattr(module, "CONNECTIONS", 2)
    monkeypatch.setattr(module, "ASKING", 0.5)
    monkeypatch.setattr(module, "TAKING", 0.5)
    with running(items_of(source())) as found:
        yield found


def test_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    assert module.ASKING == 5
    monkeypatch.setattr(module, "ASKING", 0.2)
    with connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        assert connection.recv(100) == b""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for four connections, none of which ever runs out of time."""
    monkeypatch.setattr(module, "CONNECTIONS", 4)
    monkeypatch.setattr(module, "ASKING", 600.0)
    with running(items_of(source())) as found:
        yield found


def question(server: Server, name: str) -> bytes:
    host = f"127.0.0.1:{server.server_port}"
    return f"GET /{server.token}/{name} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def test_who_asks_slowest_makes_room(patient: Server) -> None:
    held = [connected(patient) for _ in range(4)]
    for connection in held:
        connection.sendall(b"GET ")
    for number in range(4):  # each question closes the connection that has waited longest
        assert ask(patient, "")[0] == 200
        held[0].settimeout(PATIENCE)
        assert held.pop(0).recv(10) == b""
        held.append(connected(patient))
        assert len(patient._places) <= 4, number
    for connection in held:
        connection.close()


def test_who_is_being_answered_keeps_the_place(
    patient: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def long(*_: Any) -> Answer:
        begun.release()
        gate.wait(PATIENCE)
        return Answer(b"here")

    monkeypatch.setattr(patient.served, "answer", long)
    held = [connected(patient) for _ in range(4)]
    for connection in held:
        connection.settimeout(PATIENCE)
        connection.sendall(question(patient, "x"))
        assert begun.acquire(timeout=PATIENCE)
    with connected(patient) as more:
        more.settimeout(PATIENCE)
        with suppress(ConnectionError):
            assert more.recv(10) == b""
    gate.set()
    for connection in held:
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.close()


def test_a_question_in_small_pieces_ends_in_time(narrow: Server) -> None:
    until = time.monotonic() + PATIENCE
    with connected(narrow) as slow, pytest.raises(OSError):
        for byte in itertools.cycle(f"GET /{narrow.token}/ HTTP/1.1\r\n".encode()):
            slow.sendall(bytes([byte]))
            time.sleep(0.05)
            assert time.monotonic() < until


def test_an_answer_that_is_taken_slowly_ends_in_time(narrow: Server) -> None:
    narrow.page = bytes(2**26)
    took = 0
    with connected(narrow) as slow:
        head = f"GET /{narrow.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{narrow.server_port}\r\n\r\n"
        slow.sendall(head.encode())
        took += len(slow.recv(2**20, socket.MSG_WAITALL))
        for thread in narrow._handlers:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert 0 < took < 2**25


def test_the_end_of_a_server_ends_its_connections() -> None:
    with running(items_of(source())) as found, connected(found) as idle:
        assert ask(found, "")[0] == 200
        assert found.working
        found.shutdown()
        found.server_close()
        assert idle.recv(10) == b""
    assert not found.working


def test_work_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.2)
    gate, begun = threading.Event(), threading.Event()

    def long(*_: Any) -> Answer:
        begun.set()
        gate.wait(PATIENCE)
        return Answer(b"")

    with running(items_of(source())) as found, connected(found) as asking:
        monkeypatch.setattr(found.served, "answer", long)
        head = f"GET /{found.token}/x HTTP/1.1\r\nHost: 127.0.0.1:{found.server_port}\r\n\r\n"
        asking.sendall(head.encode())
        assert begun.wait(PATIENCE)
        found.shutdown()
        found.server_close()  # while the gate is shut
        assert found.working
        gate.set()
