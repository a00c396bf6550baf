"""A story as a file: frames of a GIF that one can trust, and a page that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import intently as it
from intently.errors import ArgumentError, KindError, RangeError
from intently.show import animate
from intently.show.animate.animation import Animation
from intently.show.animate.gif import frames
from intently.show.animate.shapes import Curve, Grid, Scene, Text
from intently.show.animate.tween import between
from intently.show.style import signed_map, weight_map

from .refusals import refuses


def story(words=("Je", "bois", "du", "lait")) -> Animation:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    return animate.product(it.attend(x, x).label(words, words), x)


def blue(shade: float) -> np.ndarray:
    return np.round(255 * np.array(weight_map()(shade)[:3]))


# --- between scenes -------------------------------------------------------------------------------


def test_what_keeps_its_key_moves_and_the_rest_fades():
    first = Scene("", (Grid("a", 0, 0, (4, 4), ((0.0, 1.0),)), Text("b", 0, 0, "x")), 1)
    second = Scene("", (Grid("a", 8, 2, (6, 4), ((1.0, 1.0),)), Curve("c", 0, 0, 1, 1, 2)), 1)
    gone, moved, new = between(first, second, 0.5)
    assert (gone.key, gone.opacity) == ("b", 0.5)
    assert (moved.x, moved.y, moved.cell, moved.shades) == (4, 1, (5, 4), ((0.5, 1.0),))
    assert (new.key, new.opacity) == ("c", 0.5)
    assert between(first, second, 1)[1:] == list(second.shapes)


def test_texts_and_holes_change_half_way():
    nan = float("nan")
    first = Scene("", (Grid("a", 0, 0, (4, 4), ((0.0, nan, None),), ("1", "", "")),), 1)
    second = Scene("", (Grid("a", 0, 0, (4, 4), ((nan, 1.0, 0.5),), ("2", "", "")),), 1)
    (early,), (late,) = between(first, second, 0.4), between(first, second, 0.6)
    assert early.texts[0] == "1" and late.texts[0] == "2"
    assert early.shades[0][0] == 0.0 and early.shades[0][2] is None
    assert late.shades[0][0] != late.shades[0][0] and late.shades[0][1:] == (1.0, 0.5)


def test_grids_of_other_sizes_fade_into_each_other():
    first = Scene("", (Grid("a", 0, 0, (4, 4), ((0.0,),)),), 1)
    second = Scene("", (Grid("a", 0, 0, (4, 4), ((0.0, 1.0),)),), 1)
    old, new = between(first, second, 0.5)
    assert (len(old.shades[0]), old.opacity, len(new.shades[0]), new.opacity) == (1, 0.5, 2, 0.5)


# --- frames ---------------------------------------------------------------------------------------


def test_a_gif_plays_every_scene_for_its_time_and_repeats(tmp_path):
    found = story()
    path = found.save(tmp_path / "deep" / "story.gif")
    with Image.open(path) as image:
        assert image.info["loop"] == 0
        assert (image.width, image.height) == found.picture().size
        times = []
        for n in range(image.n_frames):
            image.seek(n)
            times.append(image.info["duration"])
        last = np.array(image.convert("RGB"), dtype=int)
    holds = [round(100 * scene.hold) * 10 for scene in found.scenes]
    held = [time for time in times if time > 50]
    assert len(held) == len(holds) and held[0] == holds[0]
    assert all(time >= hold for time, hold in zip(held, holds))
    every = frames(found.title, found.scenes, found.size)
    assert sum(times) == sum(time for _, time in every)  # equal frames are joined
    assert held[-1] >= holds[-1]
    assert len(every) == 1 + sum(6 if scene.hold >= 1.5 else 3 for scene in found.scenes[1:])
    difference = np.abs(last - np.array(found.picture(), dtype=int))
    assert difference.mean() < 0.5 and difference.max() < 60  # one palette for all frames


def test_equal_stories_give_equal_bytes(tmp_path):
    for name in ("a.gif", "a.html"):
        first = story().save(tmp_path / name).read_bytes()
        assert story().save(tmp_path / f"other-{name}").read_bytes() == first


def test_pixels_have_the_colours_of_their_shades():
    boxes = (
        Grid("a", 10, 10, (20, 20), ((0.0, 0.5, 1.0),), edge=""),
        Grid("b", 10, 40, (1, 20), (tuple(n / 420 for n in range(420)),), edge=""),
        Grid("c", 440, 10, (20, 20), ((float("nan"),),), edge=""),
    )
    picture = np.array(Animation("t", (Scene("said", boxes, 1),), (470, 70)).picture(), dtype=float)
    rows = np.flatnonzero((np.abs(picture - blue(1.0)).max(-1) < 2).any(1))
    top = rows[0]  # of the first boxes
    y = top + 12
    for n, shade in enumerate((0.0, 0.5, 1.0)):
        x = round((10 + 20 * n + 10) * 1.25)
        assert picture[y, x] == pytest.approx(blue(shade), abs=2)
    y = top + round(40 * 1.25)
    for n in (50, 210, 400):
        assert picture[y, round((10 + n + 0.5) * 1.25)] == pytest.approx(blue(n / 420), abs=4)
    hatched = picture[top : top + 25, round(442 * 1.25) : round(458 * 1.25)]
    assert len(np.unique(hatched.reshape(-1, 3), axis=0)) > 2


def test_large_grids_stand_where_small_ones_do():
    def place(cells: int) -> tuple[int, ...]:
        shades = ((1.0,) * cells,) * cells
        box = Grid("a", 20, 10, (100 / cells, 100 / cells), shades, edge="")
        picture = np.array(Animation("", (Scene("", (box,), 1),), (140, 120)).picture(), float)
        dark = np.argwhere(np.abs(picture - blue(1.0)).max(-1) < 2)
        return (*dark.min(0), *dark.max(0))

    assert place(50) == pytest.approx(place(1), abs=1)
    assert place(50)[3] - place(50)[1] + 1 == 125


@pytest.mark.parametrize("cells", [2, 20, 60])
def test_what_is_clear_stays_clear_in_grids_of_any_size(cells):
    half = cells // 2
    shades = ((None,) * half + (1.0,) * (cells - half),) * cells
    under = Grid("a", 20, 10, (100, 100), ((-1.0,),), edge="")
    over = Grid("b", 20, 10, (100 / cells, 100 / cells), shades, edge="")
    picture = np.array(Animation("", (Scene("", (under, over), 1),), (140, 120)).picture(), float)
    left, right = (picture[picture.shape[0] // 2 + 30, round(x * 1.25)] for x in (48, 97.5))
    sand = np.round(255 * np.array(signed_map()(0.0)[:3]))
    assert left == pytest.approx(sand, abs=2) and right == pytest.approx(blue(1.0), abs=2)


def test_a_curve_reaches_from_end_to_end():
    curve = Curve("a", 20, 90, 120, 90, 6, 1.0, rise=80)
    picture = np.array(Animation("", (Scene("", (curve,), 1),), (140, 100)).picture(), dtype=int)
    dark = np.abs(picture - blue(1.0)).max(-1) < 20
    columns = np.flatnonzero(dark.any(0)) / 1.25
    assert columns.min() == pytest.approx(17, abs=1.5)
    assert columns.max() == pytest.approx(123, abs=1.5)
    assert np.ptp(np.flatnonzero(dark.any(1))) / 1.25 == pytest.approx(60 + 3, abs=2)


def test_scenes_are_counted(tmp_path):
    found = story()
    assert found.picture(-len(found)).tobytes() == found.picture(0).tobytes()
    refuses(
        RangeError,
        {f"scene: expected a scene from 0 to {len(found) - 1}": lambda: found.picture(len(found))},
    )
    (tmp_path / "folder.gif").mkdir()
    refuses(
        ArgumentError,
        {
            r"save: expected a file name that ends in .gif or": lambda: found.save(
                tmp_path / "story.mp4"
            ),
            "A folder of this name exists": lambda: found.save(tmp_path / "folder.gif"),
        },
    )
    assert repr(found) == (
        f"Animation('How ‘lait’ attends', {len(found)} scenes): .save('x.gif') or .save('x.html')"
    )


def test_places_where_no_story_can_be_written_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "a.gif", "/proc/a.html", "a\0.gif"):
        with pytest.raises(ArgumentError, match="save: expected a file that can be written"):
            story().save(place)
    refuses(KindError, {"save: expected a path; got int": lambda: story().save(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_script_of_the_world_is_drawn():
    words = ("お元気", "שלום", "你好", "مرحبا")
    assert np.array(story(words).picture()).min() < 60


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


@pytest.mark.parametrize("cells", [4, 40])
def test_the_first_row_of_a_grid_is_the_upper_one(cells):
    shades = tuple(((1.0 if i < cells // 2 else 0.0),) * cells for i in range(cells))
    box = Grid("a", 20, 0, (100 / cells, 100 / cells), shades, edge="accent")
    picture = np.array(Animation("", (Scene("", (box,), 1),), (140, 120)).picture(), float)
    dark = np.argwhere(np.abs(picture - blue(1.0)).max(-1) < 2)[:, 0]
    accent = np.argwhere(np.abs(picture - (213, 94, 0)).max(-1) < 60)[:, 0]
    assert dark.min() - accent.min() < 5 and accent.max() - dark.max() > 50
