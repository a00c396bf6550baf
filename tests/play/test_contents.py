"""What a page of a translator holds, what it refuses, and how it is written and served."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch

from intently.errors import ArgumentError, KindError, WriteError
from intently.models import RecurrentOptions, Transformer, TransformerOptions
from intently.models.kinds import new_model
from intently.play import LARGEST, packed, parts, save_play
from intently.play.serving import Server
from intently.recipes.origin import Files
from intently.text import Tokenizer
from intently.translation import Translator

from ..command_line import Command

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


def test_the_server_serves_one_page_to_this_machine() -> None:
    page = "".join(parts(packed(small()))).encode()
    server = Server(page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with urllib.request.urlopen(server.address) as answer:
            assert answer.read() == page
        for path, host in (("other", None), ("", "evil.example")):
            asked = urllib.request.Request(server.address + path)
            if host:
                asked.add_header("Host", host)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(asked)
        with pytest.raises(WriteError, match="port"):
            Server(page, server.server_port)
    finally:
        server.shutdown()
        server.server_close()


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
