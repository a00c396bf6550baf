"""The server answers its own page and nobody else, within bounds, and always in a sentence."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
import zlib
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intently as it
from intently.errors import WriteError
from intently.show.page import answers
from intently.show.page import server as serving
from intently.show.page.answers import Refused, Reply, Served, Turns
from intently.show.page.items import items_of
from intently.show.page.server import Server, explorer

from .serving import running

T, H = 40, 3


def source() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, H, T, 16, generator=generator) for _ in range(2))
    tokens = tuple(f"</script>{n}" for n in range(T))
    causal = it.attend(q, k, mask=it.causal()).label(tokens, tokens)
    return {"layer.0": causal, "layer.1": it.attend(k, q, bias=it.alibi(H)).label(tokens, tokens)}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(items_of(source()), "a text") as found:
        yield found


def ask(
    server: Server, name: str, method: str = "GET", token: str | None = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    path = f"/{server.token if token is None else token}/{name}"
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    connection.request(method, path, headers=named)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def raw(server: Server, request: bytes) -> bytes:
    """What comes back for bytes that no client would send."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


HEAD = "item=0&entry=0&heads=1"


def test_it_listens_on_the_loopback_alone(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"


def test_tokens_are_long_and_random() -> None:
    servers = [explorer(items_of(source())) for _ in range(3)]
    for one in servers:
        one.server_close()
    assert len({one.token for one in servers}) == 3
    assert all(len(one.token) >= 32 for one in servers)


HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "intently",
}


def test_the_page(server: Server) -> None:
    status, body, headers = ask(server, "")
    assert status == 200
    assert headers.items() >= HEADERS.items()
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers
    text = body.decode()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert {"default-src 'none'", "connect-src 'self'"} <= set(policy.split("; "))
    assert "unsafe" not in policy
    assert "</script>0" not in text and server.token not in text
    meta = json.loads(re.findall(r'id="intently-page">(.*?)</script>', text)[0])
    assert meta["source"] == "server"
    assert [entry["name"] for entry in meta["items"][0]["entries"]] == ["layer.0", "layer.1"]
    assert meta["items"][0]["sides"][0]["tokens"][0] == "</script>0"
    assert ask(server, "", "HEAD")[:2] == (200, b"")


POOLED = "pooled?item=0&entry=0&heads=0,2&r0=0&r1=40&c0=0&c1=40&h=10&w=8"


def test_numbers(server: Server) -> None:
    w = source()["layer.0"].dense()[0]
    cells = w[[0, 2]].mean(0).unflatten(0, (10, 4)).unflatten(2, (8, 5))
    part = w[1, 2:30, 4:36].unflatten(0, (7, 4)).unflatten(2, (8, 4)).mean((1, 3))
    for question, right, atol in (
        (f"tile?{HEAD}&r0=3&r1=9&c0=2&c1=40", w[1, 3:9, 2:40], 2e-6),
        *(
            (f"{POOLED}&how={how}&exact={exact}", right, 2e-6)
            for how, right in (("mean", cells.mean((1, 3))), ("max", cells.amax((1, 3))))
            for exact in (0, 1)
        ),
        (f"pooled?{HEAD}&r0=2&r1=30&c0=4&c1=36&h=7&w=8&how=mean&exact=0", part, 2e-6),
        (f"entropy?{HEAD}", torch.special.entr(w[1]).sum(-1), 1e-5),
        (f"received?{HEAD}", w[1].sum(0), 1e-5),
    ):
        _, body, headers = ask(server, question)
        found = np.frombuffer(body, "<f4").reshape(right.shape)
        np.testing.assert_allclose(found, right, atol=atol)
        assert "Intently-Sampled" not in headers
    _, body, _ = ask(server, f"masked?{HEAD}&r0=0&r1=4&c0=0&c1=4&h=4&w=4")
    assert np.frombuffer(body, "u1").reshape(4, 4).tolist() == np.triu(np.ones((4, 4)), 1).tolist()


def test_overviews(server: Server) -> None:
    w = source()["layer.1"].dense()[0]
    _, body, _ = ask(server, "block?n=1")
    found = np.frombuffer(zlib.decompress(b64decode(body)), "u1").reshape(H, T, T)
    right = 255 * (w / w.flatten(1).amax(-1)[:, None, None]).sqrt()
    np.testing.assert_allclose(found, right, atol=0.51)


def test_statistics(server: Server) -> None:
    told = json.loads(ask(server, "statistics?n=0")[1])
    right = source()["layer.0"].entropy()[0].mean(-1)
    np.testing.assert_allclose(told["entropy"], right, atol=1e-5)
    assert set(told) <= set(server.served.meta["statistics"])


@pytest.mark.parametrize(
    "host",
    ["localhost:{port}", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1:{port}.evil.example", ""],
)
def test_no_other_host_name(server: Server, host: str) -> None:
    """A foreign name that is made to point at 127.0.0.1 stays foreign."""
    status, body, _ = ask(server, "", Host=host.format(port=server.server_port))
    assert (status, body) == (421, b"this server is called 127.0.0.1 and nothing else")


def test_one_host(server: Server) -> None:
    path = f"GET /{server.token}/ HTTP/1.1\r\n".encode()
    own = f"Host: 127.0.0.1:{server.server_port}\r\n".encode()
    assert raw(server, path + own + b"\r\n").startswith(b"HTTP/1.1 200")
    assert raw(server, path + b"\r\n").startswith(b"HTTP/1.1 421")
    assert raw(server, path + own + b"Host: evil.example\r\n\r\n").startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": "https://127.0.0.1:{port}"}),
        (200, {"Origin": "http://127.0.0.1:{port}"}),
        (403, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}),
        (403, {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"}),
        (200, {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors"}),
        (200, {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate"}),
        (200, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}),
    ],
)
def test_only_the_page_itself_may_ask(server: Server, status: int, headers: dict[str, str]) -> None:
    headers = {key: value.format(port=server.server_port) for key, value in headers.items()}
    found, body, _ = ask(server, f"entropy?{HEAD}", **headers)
    assert found == status
    assert status == 200 or body == b"only the page itself may ask"


@pytest.mark.parametrize("token", ["", "{token}x", "{upper}", "é"])
def test_without_the_token_nothing_is_here(server: Server, token: str) -> None:
    token = token.format(token=server.token, upper=server.token.swapcase())
    path = f"GET /{token}/entropy?{HEAD} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n"
    answer = raw(server, path.encode())
    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.endswith(b"nothing is here; the address that was printed holds a token")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/{token}",
        "/{token}/../{token}/",
        "/{token}//",
        "http://127.0.0.1/{token}/",
        "/../../etc/passwd",
    ],
)
def test_no_other_path(server: Server, path: str) -> None:
    path = path.format(token=server.token)
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n"
    assert raw(server, request.encode()).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize(
    "name", ["%2e%2e", "..%2f..%2fetc%2fpasswd", "__class__", "run.safetensors"]
)
def test_there_are_no_files(server: Server, name: str) -> None:
    for question in (name, f"{name}?item=0"):
        assert ask(server, question)[:2] == (404, b"no such question")


W = f"{HEAD}&r0=0&r1=40&c0=0&c1=40"


def tile(**changed: object) -> str:
    """A question for all weights of a head, but for some numbers of it."""
    pairs = dict(one.split("=") for one in W.split("&")) | changed
    return "tile?" + "&".join(f"{key}={value}" for key, value in pairs.items())


LIMIT = "an answer has at most"
NUMBER = "expected a number from 0 to"
TAKES = "tile takes item, entry, heads, r0, r1, c0, c1"


@pytest.mark.parametrize(
    ("status", "question", "told"),
    [
        (400, "tile", TAKES),
        (400, f"tile?{W}&more=1", TAKES),
        (400, f"tile?{W}&r0=1", "a number was given twice"),
        (400, "tile?" + "&".join(f"a{n}=1" for n in range(17)), "the address cannot be read"),
        (400, tile(r1=41), f"r1: {NUMBER} 40"),
        *((400, tile(r0=word), f"r0: {NUMBER} 39") for word in (40, "1e1", "%D9%A3", "9" * 900)),
        (400, tile(r0=9, r1=9), "window: expected r0 < r1 and c0 < c1"),
        (400, tile(item=1), f"item: {NUMBER} 0"),
        (400, tile(entry=2), f"entry: {NUMBER} 1"),
        (400, tile(heads=3), f"heads: {NUMBER} 2"),
        (400, tile(heads="1,1"), "heads: expected each head once"),
        (400, f"pooled?{W}&h=0&w=4&how=mean&exact=0", "h and w: expected at least 1"),
        (
            413,
            f"pooled?{W}&h=1025&w=1024&how=mean&exact=0",
            "an answer has at most 1,048,576 numbers",
        ),
        (400, f"pooled?{W}&h=4&w=4&how=sum&exact=0", "how: expected mean or max"),
        (400, f"pooled?{W}&h=4&w=4&how=max&exact=2", f"exact: {NUMBER} 1"),
        *((400, f"block?n={word}", f"n: {NUMBER} 1") for word in ("%C2%B2", 2)),
    ],
)
def test_refusals(server: Server, status: int, question: str, told: str) -> None:
    found, body, headers = ask(server, question)
    assert (found, body.decode()) == (status, told)
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


def test_no_oversized_request(server: Server) -> None:
    assert ask(server, "tile?" + "a" * 2100)[:2] == (
        414,
        b"an address has at most 2,048 characters",
    )
    start = f"GET /{server.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n"
    long = raw(server, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n")
    assert long.startswith(b"HTTP/1.1 414") and b"aaaa" not in long
    for headers in ("".join(f"x{n}: 1\r\n" for n in range(200)), f"x: {'a' * 70_000}\r\n"):
        assert raw(server, f"{start}{headers}\r\n".encode()).startswith(b"HTTP/1.1 431")
    for extra in ("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"):
        answer = raw(server, f"{start}{extra}\r\nhello".encode())
        assert answer.startswith(b"HTTP/1.1 413")
        assert answer.endswith(b"a question has no body")
        assert b"Connection: close" in answer


def test_a_window_of_too_many_weights(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr("intently.show.page.answers.LARGEST", 100)
    status, body, _ = ask(server, f"tile?{HEAD}&r0=0&r1=11&c0=0&c1=10")
    assert (status, body) == (413, b"an answer has at most 100 numbers")
    assert ask(server, f"tile?{HEAD}&r0=0&r1=10&c0=0&c1=10")[0] == 200


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "CONNECT"])
def test_other_methods_are_refused(server: Server, method: str) -> None:
    status, body, headers = ask(server, f"entropy?{HEAD}", method)
    assert (status, body) == (501, b"not understood")
    assert headers["Connection"] == "close"


@pytest.mark.parametrize(
    "request_", [b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"a b c d\r\n\r\n"]
)
def test_what_is_no_http(server: Server, request_: bytes) -> None:
    answer = raw(server, request_)
    assert not answer or b" 400 " in answer or answer.endswith(b"not understood")
    assert ask(server, "")[0] == 200


def test_nothing_is_logged(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    ask(server, f"entropy?{HEAD}")
    ask(server, "nothing")
    raw(server, b"garbage\r\n\r\n")
    assert capfd.readouterr() == ("", "")


def test_a_recording_that_changed_says_so(tmp_path: Path) -> None:
    q = torch.randn(1, 1, 4, 2)
    with running(items_of({"a": it.attend(q, q.clone())})) as found:
        q.add_(1)
        status, body, _ = ask(found, "tile?item=0&entry=0&heads=0&r0=0&r1=1&c0=0&c1=1")
        assert status == 409 and b"changed in place since" in body


def test_a_long_head_is_sampled_first_and_exact_when_asked(monkeypatch: Any) -> None:
    """From LONG weights on; a smaller limit stands for them here, strips for give_way too."""
    monkeypatch.setattr(answers, "LONG", 0)
    monkeypatch.setattr(answers, "SAMPLE", 8 * T)
    monkeypatch.setattr(answers, "STRIP", 3 * T)
    w = source()["layer.0"].dense()[0]
    with running(items_of(source())) as found:
        whole = f"{HEAD}&r0=0&r1=40&c0=0&c1=40&h=10&w=8"
        _, body, headers = ask(found, f"pooled?{whole}&how=mean&exact=0")
        assert headers["Intently-Sampled"] == "one query in 5"
        cells = np.frombuffer(body, "<f4").reshape(10, 8)
        right = w[1, 2::5].unflatten(1, (8, 5)).mean(-1)  # the third query of each five
        np.testing.assert_allclose(cells[[0, 4]], right[[0, 3]], atol=2e-6)
        for how in ("mean", "max"):
            _, body, headers = ask(found, f"pooled?{whole}&how={how}&exact=1")
            cells = w[1].unflatten(0, (10, 4)).unflatten(2, (8, 5))
            right = cells.mean((1, 3)) if how == "mean" else cells.amax((1, 3))
            np.testing.assert_allclose(np.frombuffer(body, "<f4").reshape(10, 8), right, atol=2e-6)
            assert "Intently-Sampled" not in headers
        for name, right in (
            ("entropy", torch.special.entr(w[1]).sum(-1)),
            ("received", w[1].sum(0)),
            ("tile", w[1, :, 7]),
        ):
            window = "&r0=0&r1=40&c0=7&c1=8" if name == "tile" else ""
            _, body, _ = ask(found, f"{name}?{HEAD}{window}")
            np.testing.assert_allclose(np.frombuffer(body, "<f4"), right, atol=1e-5)
        told = json.loads(ask(found, "statistics?n=0")[1])
        np.testing.assert_allclose(
            told["entropy"], torch.special.entr(w).sum(-1).mean(-1), atol=1e-5
        )


def test_what_is_masked_is_told_for_any_mask_that_is_known_or_small() -> None:
    q = torch.randn(1, 2, T, 8)
    allow = torch.rand(T, T) > 0.7
    masks = {"window": it.causal() & it.window(5, 0), "allowed": it.allowed(allow)}
    items = items_of({name: it.attend(q, q, mask=mask) for name, mask in masks.items()})
    with running(items) as found:
        for entry, mask in enumerate(masks.values()):
            seen = it.attend(q, q, mask=mask).dense()[0, 0] > 0
            cells = seen.unflatten(0, (10, 4)).unflatten(2, (8, 5)).any(3).any(1)
            at = f"item=0&entry={entry}&heads=0,1&r0=0&r1=40&c0=0&c1=40&h=10&w=8"
            _, body, _ = ask(found, f"masked?{at}")
            assert np.array_equal(np.frombuffer(body, "u1").reshape(10, 8), ~cells.numpy())


def test_what_is_no_number_is_served(tmp_path: Path) -> None:
    q = torch.randn(1, H, T, 8)
    q[:, 1, 3] = float("nan")
    with running(items_of({"a": it.attend(q, torch.randn(1, H, T, 8))})) as found:
        _, body, _ = ask(found, f"tile?{W}")
        assert np.isnan(np.frombuffer(body, "<f4").reshape(T, T)[3]).all()
        for question in ("block?n=0", "statistics?n=0", f"received?{HEAD}", f"entropy?{HEAD}"):
            assert ask(found, question)[0] == 200


# --- turns -----------------------------------------------------------------------------------


def test_the_newest_question_goes_first_and_long_work_gives_way() -> None:
    """What can wait comes last, even if it was asked last."""
    turns, order = Turns(), []
    begun, asked_all = threading.Event(), threading.Event()

    def long() -> Reply:
        begun.set()
        asked_all.wait(20)
        turns.give_way()
        order.append("long")
        return Reply(b"")

    def short(name: str) -> Reply:
        order.append(name)
        return Reply(name.encode())

    threads = [threading.Thread(target=turns.ask, args=(long,))]
    threads[0].start()
    assert begun.wait(20)
    for name in ("a", "b", "can wait"):
        args = (partial(short, name), lambda: False, name == "can wait")
        threads.append(threading.Thread(target=turns.ask, args=args))
        threads[-1].start()
        while len(turns.asked) < len(threads):
            time.sleep(0.001)
    asked_all.set()
    for thread in threads:
        thread.join(20)
    turns.close(20)
    assert order == ["b", "a", "long", "can wait"] and not turns.asked


def test_work_that_nobody_waits_for_ends_and_failures_are_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    turns = Turns()

    def endless() -> Reply:
        while True:
            turns.give_way()

    with pytest.raises(Refused, match="given up"):
        turns.ask(endless, gone=lambda: True)
    with pytest.raises(Refused, match="ZeroDivisionError"):
        turns.ask(lambda: Reply(bytes(1 // 0)))
    assert "ZeroDivisionError" in capfd.readouterr().err
    turns.close(20)
    with pytest.raises(Refused, match="the server ends"):
        turns.ask(lambda: Reply(b""))


def test_a_client_that_leaves_ends_its_long_work(server: Server) -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless(served: Served, given: Any) -> Reply:
        begun.set()
        try:
            while True:
                served.turns.give_way()
        finally:
            ended.set()

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(answers.QUESTIONS, "endless", (endless, ()))
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
            host = f"Host: 127.0.0.1:{server.server_port}"
            connection.sendall(f"GET /{server.token}/endless HTTP/1.1\r\n{host}\r\n\r\n".encode())
            assert begun.wait(20)
        assert ended.wait(20)
    assert ask(server, f"entropy?{HEAD}")[0] == 200


def test_too_many_connections_are_closed_and_silent_ones_end(monkeypatch: Any) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS", 3)
    monkeypatch.setattr(serving.Handler, "timeout", 0.5)
    with running(items_of(source())) as found:
        silent = [socket.create_connection(("127.0.0.1", found.server_port)) for _ in range(4)]
        silent[0].settimeout(0.4)
        assert silent[0].recv(1) == b""  # its place went to the last
        for one in silent:
            one.settimeout(20)
            assert one.recv(1) == b""  # nothing was asked in time
            one.close()
        assert ask(found, "")[0] == 200


def test_clients_that_ask_slowly_lock_nobody_out(monkeypatch: Any) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS", 3)
    with running(items_of(source())) as found:
        slow = [socket.create_connection(("127.0.0.1", found.server_port)) for _ in range(5)]
        for one in slow:
            with suppress(OSError):
                one.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(3):
            assert ask(found, "")[0] == 200
        for one in slow:
            one.close()


def test_a_port_that_is_taken(server: Server) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(WriteError, match=f"port: expected a free port; got {taken}"):
            explorer(items_of(source()), port=taken)
