"""What a page of a translator holds, what it refuses, and how it is written and served."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from email.message import Message
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from intently.errors import ArgumentError, KindError
from intently.nn.models import RecurrentOptions, Transformer, TransformerOptions
from intently.nn.models.kinds import new_model
from intently.tasks.play import LARGEST, packed, save_play, whole
from intently.tasks.recipes import Files
from intently.tasks.text import Tokenizer
from intently.tasks.translation import Translator

from ...command_line import Command, refused

TEXTS = ["the cat sat on the mat", "a dog ran to the cat"]


def small(**options: object) -> Translator:
    tokenizer = Tokenizer.train(TEXTS, "word")
    sizes = tokenizer.size, tokenizer.size
    model = Transformer(TransformerOptions(*sizes, **{"width": 16, "inner": 16, **options}))
    return Translator(model, tokenizer, tokenizer)


def test_the_file_is_small_closed_and_always_the_same(tmp_path: Path) -> None:
    first, second = (save_play(Translator.load(), tmp_path / f"{n}.html") for n in "ab")
    text = first.read_text()
    assert first.stat().st_size < 4_000_000
    assert text == second.read_text()
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert {"default-src 'none'", "connect-src 'none'", "worker-src blob:"} <= set(
        policy.split("; ")
    )
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_embedded_numbers_are_half_and_own_ones_are_not_rounded() -> None:
    assert {kind["dtype"] for kind in packed(Translator.load()).about["blocks"]} == {"float16"}
    about = packed(small()).about
    assert "float32" in {kind["dtype"] for kind in about["blocks"]}
    assert not about["embedded"] and packed(Translator.load()).about["embedded"]


def test_strings_of_a_model_cannot_close_their_element(tmp_path: Path) -> None:
    page = save_play(small(), tmp_path / "x.html", text="</script><b>", title="<i>&").read_text()
    held = re.search('id="intently-translator">(.*?)</script>', page)[1]
    assert json.loads(held)["text"] == "</script><b>"
    assert "<i>" not in page


def test_what_the_page_cannot_compute_is_refused_in_words() -> None:
    tokenizer = Tokenizer.train(TEXTS, "word")
    recurrent = new_model(RecurrentOptions(tokenizer.size, tokenizer.size, width=8))
    with pytest.raises(ArgumentError, match="recurrent states"):
        packed(Translator(recurrent, tokenizer, tokenizer))
    with torch.device("meta"):
        model = Transformer(
            TransformerOptions(tokenizer.size, tokenizer.size, width=1024, inner=8192)
        )
    with pytest.raises(ArgumentError, match=f"at most {LARGEST:,} parameters"):
        packed(Translator(model, tokenizer, tokenizer))
    with pytest.raises(KindError, match="translator"):
        packed("my-run")
    with pytest.raises(KindError, match="text"):
        packed(small(), text=3)
    with pytest.raises(ArgumentError, match=r"\.html"):
        save_play(small(), "play.txt")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[int, str]]:
    """The port and the path of the page that the command serves, and says nothing about."""
    command = [sys.executable, "-m", "intently", "play", "--no-open"]
    hears = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, preexec_fn=hears) as process:
        try:
            assert process.stdout is not None
            address = urlsplit(process.stdout.readline().strip())
            assert address.port is not None and len(address.path) > 32
            yield address.port, address.path
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=300) == ("", "ctrl-C ends it\n\n")
        finally:
            process.kill()


def asked(served: tuple[int, str], path: str, **headers: str) -> tuple[int, bytes, Message]:
    connection = http.client.HTTPConnection("127.0.0.1", served[0], timeout=300)
    connection.request("GET", path, headers=headers)
    with closing(connection), connection.getresponse() as answer:
        return answer.status, answer.read(), answer.headers


def test_the_command_serves_the_page_at_the_printed_address_alone(served: tuple[int, str]) -> None:
    """By the server of recordings, whose other refusals have tests of their own."""
    address, page = served[1], whole(packed(Translator.load()))
    status, body, headers = asked(served, address)
    assert (status, body) == (200, page)
    assert headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-store"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    for path in ("/", "/index.html", address + "x", address + "?x=1", address[:-2] + "/"):
        status, body, _ = asked(served, path)
        assert status == 404 and page not in body, path
    assert asked(served, address, Host=f"evil.example:{served[0]}")[0] == 421
    assert asked(served, address, Origin="http://evil.example")[0] == 403


def test_clients_that_hang_up_are_not_mentioned(served: tuple[int, str]) -> None:
    port, path = served
    for _ in range(20):  # what was said is read when the server ends
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            connection.recv(1)
    assert asked(served, path)[0] == 200


def test_a_port_that_is_taken_is_named(served: tuple[int, str], intently: Command) -> None:
    outcome = intently("play", "--no-open", "--port", served[0])
    assert f"port: expected a free port; got {served[0]}" in refused(outcome)


def test_the_command_writes_the_page_and_names_it(tmp_path: Path) -> None:
    out = tmp_path / "play.html"
    command = [sys.executable, "-m", "intently", "play", "--out", str(out), "--text", "Hello."]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(out)
    assert '"text":"Hello."' in out.read_text()
    wrong = subprocess.run([*command[:4], "--out", "x.pdf"], capture_output=True, text=True)
    assert wrong.returncode == 2 and ".html" in wrong.stderr


def test_a_run_of_ones_own_opens_with_a_sentence_of_its_own(
    intently: Command, tmp_path: Path
) -> None:
    Translator.load().save("run")
    model = Translator.load("run").model
    with torch.no_grad():
        model.source_embedding.weight[0] += 1  # no longer the embedded one
    translator = Translator.load("run")
    Translator(model, translator.source_tokenizer, translator.target_tokenizer).save("run")
    Path("d.tsv").write_text("No.\tNon.\nEmma drank the milk.\tEmma a bu le lait.\n", "utf-8")
    Files("d.tsv", dev=["d.tsv"]).save("run")
    assert intently("play", "run", "--out", "play.html").status == 0
    assert '"text":"Emma drank the milk."' in Path("play.html").read_text("utf-8")
    Path("d.tsv").unlink()
    assert intently("play", "run", "--out", "play.html").status == 0
    assert '"text":""' in Path("play.html").read_text("utf-8")
