"""The page as a file: nothing leaves it, nothing in it is taken for markup, equal in equal out."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intently as it
from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, KindError, MemoryRefused
from intently.show.page import Highlight, Text, packed, packing, save_page, script, writing
from intently.show.page.items import items_of
from intently.show.page.packing import NumberBlocks
from intently.show.page.stored import bound, stored

from .page_reader import Page, unpacked
from .refusals import refuses

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "<!--",
    "\u202eabc",
    "\u2028",
    "a" * 10_000,
    "\ud800",
    "]]>",
    "&lt;",
    "\x00",
    "",
    "עברית",
)


def matrix(*labels: str, heads: int = 2) -> LazyMatrix:
    n = len(labels) or 6
    found = it.attend(*torch.randn(2, heads, n, 8), mask=it.causal())
    return found.label(labels, labels) if labels else found


class Tags(HTMLParser):
    """Every tag of a page, with the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=False)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style", "title"):
            self.inside.append((*self.tags[-1], data))


def test_the_policy_allows_one_script_and_one_style_sheet_and_no_connection(tmp_path: Path) -> None:
    html = save_page(matrix(*HOSTILE), tmp_path / "new" / "out.html").read_text(encoding="utf-8")
    found = Tags(html)
    (policy,) = [a["content"] or "" for t, a in found.tags if "http-equiv" in a]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert {k: v for k, v in rules.items() if k not in ("script-src", "style-src")} == {
        "default-src": "'none'",
        "img-src": "data: blob:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    for tag in ("script", "style"):
        texts = [text for t, a, text in found.inside if t == tag and "type" not in a]
        runs = [text for text in texts if text.strip()]
        assert len(runs) == len([a for t, a in found.tags if t == tag and "type" not in a]) == 1
        digest = base64.b64encode(hashlib.sha256(runs[0].encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    kinds = {a.get("type") for t, a in found.tags if t == "script"}
    assert kinds == {None, "application/json", "text/plain"}
    attributes = {name for _, a in found.tags for name in a}
    assert not {name for name in attributes if name.startswith("on")}
    assert not attributes & {"style", "href", "src", "srcset", "action"}


def test_the_script_stands_before_the_blocks_and_ends_nowhere_early(tmp_path: Path) -> None:
    html = save_page(matrix(), tmp_path / "out.html").read_text(encoding="utf-8")
    about = html.index('id="intently-page"')
    begins = html.index("<script>\n(() => {")
    assert about < begins < html.index("data-block=")
    code = script.joined(["start"])
    assert "</script" not in code and "<!--" not in code and "\r" not in code
    assert not re.search(r"^(import|export) ", code, re.M)
    assert html.endswith("</script>\n</body>\n</html>\n")


def test_overviews_come_first(tmp_path: Path) -> None:
    path = save_page({"a": matrix(), "b": matrix()}, tmp_path / "out.html")
    page = Page.read(path)
    first = [entry["overview"] for entry in page.meta["items"][0]["entries"]]
    assert list(page.blocks)[:2] == sorted(first) and len(page.blocks) > 20


def test_hostile_tokens_and_titles_come_back_as_they_were(tmp_path: Path) -> None:
    path = save_page(matrix(*HOSTILE), tmp_path / "out.html", title="</title><b>\u202e")
    page = Page.read(path)
    assert page.meta["items"][0]["sides"][0]["tokens"] == list(HOSTILE)
    html = path.read_text(encoding="utf-8")
    assert "<img src=x" not in html and "</title><b>" not in html and "\u2028" not in html
    assert "&lt;/title&gt;&lt;b&gt;⟨U+202E⟩</title>" in html
    assert page.meta["title"] == "</title><b>\u202e"


def test_equal_in_equal_out_and_an_old_page_survives_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = matrix()
    path = save_page(A, tmp_path / "out.html")
    before = path.read_bytes()
    assert save_page(A, tmp_path / "again.html").read_bytes() == before
    monkeypatch.setattr(writing, "scripts", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        save_page(matrix(), path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.html", "out.html"]


def test_blocks_are_written_once(tmp_path: Path) -> None:
    A = it.attend(torch.randn(4, 6, 8), torch.randn(1, 6, 8), mask=it.causal())
    entries = Page.of({"a": A, "b": A}).meta["items"][0]["entries"]
    assert entries[0]["q"] == entries[1]["q"] and entries[0]["group"] == 4
    assert len(set(entries[0]["q"])) == 4 and len(entries[0]["k"]) == 1


def test_the_size_of_512_tokens_and_12_heads_is_within_its_share() -> None:
    A = it.attend(*torch.randn(2, 1, 12, 512, 64), mask=it.causal())
    for precision, limit in (("half", 30e6), ("full", 60e6)):
        made = packed(items_of(A), precision)
        assert sum(map(len, made.blocks)) * 4 / 3 < limit / 12


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8"])
def test_numbers_come_back(dtype: str) -> None:
    numbers = (torch.randn(3, 5, 7) * 50).abs().to(getattr(torch, dtype))
    blocks = NumberBlocks()
    at = blocks.add(numbers, dtype)
    np.testing.assert_array_equal(unpacked(blocks.packed[at], dtype, [3, 5, 7]), numbers.numpy())


@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (5, 13), (2, 3, 9)])
def test_bits_come_back_row_by_row(shape: tuple[int, ...]) -> None:
    mask = torch.randn(shape) > 0
    blocks = NumberBlocks()
    at = blocks.add(mask, "bits")
    found = unpacked(blocks.packed[at], "bits", list(mask.shape))
    np.testing.assert_array_equal(found, mask.numpy())


def test_what_is_not_finite_is_null() -> None:
    q = torch.full((1, 3, 4), float("nan"))
    text = json.dumps(Page.of(it.attend(q, q)).meta)
    assert "NaN" not in text
    assert json.loads(text)["bound"] == {"weights": 0.0, "nan": True}
    q[:, 1:] = 1.0
    told = Page.of(it.attend(q.repeat(1, 30, 1), torch.ones(1, 3, 4))).meta["bound"]
    assert told["nan"], "a row that is not sampled"
    assert not Page.of(matrix()).meta["bound"]["nan"]


def test_weights_that_are_nan_in_the_page_alone_are_not_within_any_bound() -> None:
    A = it.attend(torch.ones(1, 3, 4), torch.ones(1, 3, 4))
    broken = it.attend(torch.full((1, 3, 4), float("nan")), torch.ones(1, 3, 4))
    assert bound(A, stored(broken, "half")) == float("inf")


# --- what is refused ------------------------------------------------------------------------------


def test_refusals_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, file = tmp_path / "out.html", tmp_path / "file"
    file.write_text("a file")
    (tmp_path / "is.html").mkdir()
    none = it.attend(torch.ones(0, 4), torch.ones(3, 4))
    refuses(
        ArgumentError,
        {
            'precision: expected "half" or "full"; got \'quarter\'': lambda: save_page(
                matrix(), out, "quarter"
            ),
            "at least one attention with queries and keys; got no": lambda: save_page(
                {"a": none}, out
            ),
            "highlights: expected a layer of item 0: a; got 'b'": lambda: save_page(
                {"a": matrix()}, out, highlights=[Highlight(0, "b", 0, "x")]
            ),
            r"path: expected a file name that ends in .html or .htm": lambda: save_page(
                matrix(), tmp_path / "out"
            ),
            r"path: expected a file that can be written; .*null": lambda: save_page(
                matrix(), "a\0b.html"
            ),
            r"file that can be written; got .*Not a dir": lambda: save_page(
                matrix(), file / "below.html"
            ),
            r"file that can be written; got .* File name too long": lambda: save_page(
                matrix(), tmp_path / ("n" * 300 + ".html")
            ),
            r"path: expected the name of a file; got '.*is\.html'": lambda: save_page(
                matrix(), tmp_path / "is.html"
            ),
        },
    )
    refuses(
        KindError,
        {
            r"source: expected a recording, a lazy matrix.*got Tensor": lambda: save_page(
                torch.eye(2), out
            ),
            "path: expected a path; got int": lambda: save_page(matrix(), 3),
        },
    )
    monkeypatch.setattr(packing, "LARGEST", 100)
    with pytest.raises(MemoryRefused, match=r"at most 0 MB.*`intently explore run.safetensors`"):
        save_page(matrix(), out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"highlights": [Highlight(0, "a", 2, "x")]},
            "highlights: expected a head < 2 of a; got 2",
        ),
        ({"highlights": [Highlight(0, "a", -1, "x")]}, "expected a head < 2 of a; got -1"),
        ({"highlights": [Highlight(1, "a", 0, "x")]}, "highlights: expected an item < 1; got 1"),
        ({"highlights": [Highlight(-1, "a", 0, "x")]}, "expected an item < 1; got -1"),
        ({"highlights": ["a"]}, r"highlights: expected highlights: .*Highlight\(.*; got 'a'"),
        (
            {"start": {"row": float("nan")}},
            r"start\['row'\]: expected a text, a finite number.* nan",
        ),
        ({"start": {"row": torch.tensor(3)}}, r"start\['row'\]: .*or None; got tensor\(3\)"),
        ({"start": ["row"]}, r"start: expected a state by name, .*; got \['row'\]"),
        ({"sides": ["x"]}, r"sides: expected a list of show.page.Text and .*; got \['x'\]"),
        ({"sides": Text(("x",))}, "sides: expected a list of show.page.Text and"),
        ({"title": 3}, "title: expected a text, or None; got 3"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ArgumentError, KindError), match=message):
        save_page({"a": matrix()}, tmp_path / "out.html", **options)


def test_one_token_is_one_token() -> None:
    assert Page.of(it.attend(torch.ones(1, 4), torch.ones(1, 4))).meta["title"] == "1 token"


def test_a_long_text_is_refused_before_it_is_measured() -> None:
    A = it.attend(
        torch.zeros(1, 64, 1, 128).expand(1, 64, 32_768, 128), torch.zeros(1, 1, 32_768, 128)
    )
    with pytest.raises(MemoryRefused, match="page: expected at most 201 MB in one file; got about"):
        packed(items_of(A))


def test_a_dense_bias_is_refused_where_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LARGEST", 10_000)
    q = torch.randn(2, 40, 4)
    packed(items_of(it.attend(q, q, bias=it.alibi(2))))
    with pytest.raises(MemoryRefused, match=r"about 0 MB\. Its bias is dense, t × s numbers"):
        packed(items_of(it.attend(q, q, bias=torch.randn(2, 40, 40))))


# --- modules joined -------------------------------------------------------------------------------


def bundled(folder: Path, **modules: str) -> str:
    for name, code in modules.items():
        (folder / f"{name}.js").write_text(code)
    return script.bundle([name], folder)


def test_modules_come_after_their_imports_and_lose_these_alone(tmp_path: Path) -> None:
    found = bundled(
        tmp_path,
        a="export const one = 1;\nexport class Two {}\nexport async function three() {}\n",
        unused="export const one = 2;\n",
        b='import { one, Two } from "./a.js";\n\nfunction four() { return "export const x"; }\n',
    )
    assert found == (
        "// a.js\nconst one = 1;\nclass Two {}\nasync function three() {}\n\n"
        '// b.js\nfunction four() { return "export const x"; }\n'
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ('import { two } from "./a.js";', r'b.js:1: expected import \{ a, b \} from "./x.js"'),
        ('import { one as x } from "./a.js";', "b.js:1"),
        ('import x from "./a.js";', "b.js:1"),
        ('import "https://example.org/x.js";', "b.js:1"),
        ('import { four } from "./b.js";', "b.js imports itself"),
        ("export default 3;", "b.js:1: expected export before a function, a class or a const"),
        ("export let x = 1;", "export before a function"),
        ('import { one } from "./a.js";\nconst one = 2;', "b.js: one is a name of a.js, too"),
    ],
)
def test_other_forms_are_refused(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bundled(tmp_path, a="export const one = 1;", b=code)


def test_every_module_of_the_package_is_in_a_bundle_and_changes_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(script.MODULES, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(script, "MODULES", tmp_path)
    bundles = "".join(script.joined([entry]) for entry in script.ENTRIES)
    assert all(f"// {path.name}\n" in bundles for path in tmp_path.glob("*.js"))
    assert script.joined(["start"]) is script.joined(["start"])
    (tmp_path / "words.js").write_text((tmp_path / "words.js").read_text() + "const added = 1;\n")
    assert "const added = 1;" in script.joined(["start"])


def test_files_of_the_page_are_part_of_the_package() -> None:
    root = Path(__file__).resolve().parents[2]
    told = tomllib.loads((root / "pyproject.toml").read_text())
    patterns: list[Any] = told["tool"]["setuptools"]["package-data"]["intently"]
    package = root / "src" / "intently"
    packed_files = {path for pattern in patterns for path in package.glob(pattern)}
    of_the_page = {
        path
        for path in (package / "show" / "page").rglob("*")
        if path.suffix in (".js", ".css", ".html")
    }
    assert of_the_page and of_the_page <= packed_files
