"""A story as a file: a page that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest
import torch

import intently as it
from intently.errors import ArgumentError, KindError
from intently.show import animate
from intently.show.animate.animation import Animation

from .refusals import refuses


def story(words=("Je", "bois", "du", "lait")) -> Animation:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    return animate.product(it.attend(x, x).label(words, words), x)


def test_equal_stories_give_equal_bytes(tmp_path):
    first = story().save(tmp_path / "deep" / "a.html").read_bytes()
    assert story().save(tmp_path / "other.html").read_bytes() == first


def test_other_files_are_refused(tmp_path):
    found = story()
    (tmp_path / "folder.html").mkdir()
    refuses(
        ArgumentError,
        {
            r"save: expected a file name that ends in \.html; got": lambda: found.save(
                tmp_path / "story.gif"
            ),
            "A folder of this name exists": lambda: found.save(tmp_path / "folder.html"),
        },
    )
    assert repr(found) == (f"Animation('How ‘lait’ attends', {len(found)} scenes): .save('x.html')")


def test_places_where_no_story_can_be_written_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "a.html", "/proc/a.html", "a\0.html"):
        with pytest.raises(ArgumentError, match="save: expected a file that can be written"):
            story().save(place)
    refuses(KindError, {"save: expected a path; got int": lambda: story().save(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# --- the page -------------------------------------------------------------------------------------


def test_the_policy_allows_the_one_script_and_the_one_style():
    page = story().page()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    body = page[page.index("<body>") : page.index('<script type="application/json"')]
    assert "style=" not in body and not re.search(r"\son\w+=", body)
    assert not re.search(r"(src|href)=", page)


def test_the_page_holds_the_numbers_of_every_scene():
    found = story()
    (text,) = re.findall(r'id="story">(.*?)</script>', found.page(), re.DOTALL)
    stored = json.loads(text)
    assert len(stored["scenes"]) == len(found)
    for scene, kept in zip(found.scenes, stored["scenes"]):
        assert kept["caption"] == scene.caption and kept["hold"] == scene.hold
        keys = [stored["shapes"][n]["key"] for n in kept["shapes"]]
        assert keys == [shape.key for shape in scene.shapes]
    count = sum(len(scene.shapes) for scene in found.scenes)
    assert len(stored["shapes"]) < count / 3  # equal shapes are stored once


def test_hostile_words_stay_words():
    evil = '</script><img src=x onerror="alert(1)">'
    found = story((evil, "b", "c", "d"))
    other = animate.product(
        it.attend(torch.eye(2), torch.eye(2)), torch.eye(2), title=f"{evil} & more"
    )
    for page in (found.page(), other.page()):
        assert "<img" not in page and page.count("</script>") == 2
    assert '<iframe sandbox="allow-scripts"' in other._repr_html_()
    assert "<img" not in other._repr_html_()
