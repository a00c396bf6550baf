"""Figures hold what they were given: weights, words, gold links; files are whole and repeatable."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

import intently as it
from intently import show
from intently.errors import ArgumentError, KindError, UnverifiedError, WriteError
from intently.matrix import Dense
from intently.show import style

from .refusals import refuses

SOURCE = tuple(["I", "drink", "milk", "."])
TARGET = tuple(["Je", "bois", "du", "lait", "."])
GOLD = SimpleNamespace(
    sure={(0, 0), (1, 1), (2, 3), (3, 4)}, possible={(0, 0), (1, 1), (2, 3), (3, 4), (2, 2)}
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Any warning is an error, any line in a log too, and no global setting may change."""
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert dict(matplotlib.rcParams) == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def weights(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def milk() -> Dense:
    return Dense(weights(5, 4), labels=(TARGET, SOURCE))


def ticks(axes, side: str) -> list[str]:
    labels = axes.get_xticklabels() if side == "x" else axes.get_yticklabels()
    return [label.get_text() for label in labels]


def shaded(axes) -> np.ndarray:
    return np.ma.filled(axes.images[0].get_array(), np.nan)


def written(figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


# --- alignment ------------------------------------------------------------------------------------


def test_alignment_shows_the_weights_and_the_words():
    figure = show.alignment(milk(), title="a sentence")
    axes, bar = figure.axes
    np.testing.assert_array_equal(shaded(axes), weights(5, 4).numpy())
    assert ticks(axes, "x") == list(SOURCE)
    assert ticks(axes, "y") == list(TARGET)
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == (
        "source",
        "produced",
        "weight",
    )
    assert axes.xaxis.get_label_position() == "top"
    assert axes.xaxis.get_ticks_position() == "top"
    assert written(figure) == ["a sentence"]
    assert [text.get_text() for text in axes.texts] == [f"{w:.2f}" for w in weights(5, 4).ravel()]


def test_the_words_on_the_left_have_the_name_they_are_given():
    axes = show.alignment(milk(), beside="reference $x").axes[0]
    assert axes.get_ylabel() == "reference $x"


def test_gold_links_are_outlined_where_they_are():
    figure = show.alignment(milk(), gold=GOLD)
    boxes = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    centres = {
        kind: {
            (round(box.get_x() + box.get_width() / 2), round(box.get_y() + box.get_height() / 2))
            for box in boxes
            if box.get_label() == kind
        }
        for kind in ("sure", "possible")
    }
    assert centres == {"sure": GOLD.sure, "possible": {(2, 2)}}
    styles = {box.get_label(): box.get_linestyle() for box in boxes}
    assert styles["sure"] in ("-", "solid")
    assert styles["possible"] not in ("-", "solid")
    assert any("gold" in text for text in written(figure))


def test_gold_outside_the_matrix_is_refused():
    with pytest.raises(ArgumentError, match=r"gold: .*the link \(4, 0\).*Merged"):
        show.alignment(milk(), gold=SimpleNamespace(sure={(4, 0)}, possible={(4, 0)}))


def test_several_heads_are_averaged_and_the_title_says_so():
    figure = show.alignment(Dense(weights(3, 5, 4), labels=(TARGET, SOURCE)), title="cross")
    np.testing.assert_allclose(shaded(figure.axes[0]), weights(3, 5, 4).mean(0), rtol=1e-6)
    assert ticks(figure.axes[0], "y") == list(TARGET)
    assert written(figure) == ["cross, mean of 3 heads"]


def test_values_are_printed_in_few_cells_only():
    assert len(show.alignment(Dense(weights(12, 12))).axes[0].texts) == 144
    assert not show.alignment(Dense(weights(13, 12))).axes[0].texts


def test_long_sentences_thin_their_labels():
    axes = show.alignment(Dense(weights(150, 200))).axes[0]
    assert ticks(axes, "x")[:2] == ["0", str(axes.get_xticks()[1])]
    assert 10 < len(ticks(axes, "x")) < 70
    assert 10 < len(ticks(axes, "y")) < 70


def test_the_scale_fits_the_weights_and_ends_at_a_round_number():
    assert show.alignment(Dense(torch.eye(3))).axes[0].images[0].get_clim() == (0, 1)
    assert show.alignment(Dense(torch.full((3, 20), 0.05))).axes[0].images[0].get_clim() == (
        0,
        0.05,
    )
    assert show.alignment(Dense(torch.full((3, 3), 7.0))).axes[0].images[0].get_clim() == (0, 10)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
@pytest.mark.parametrize("draw", [show.alignment, show.heatmap, show.blocks])
def test_empty_matrices_are_refused_in_our_words(draw, shape):
    with pytest.raises(ArgumentError, match=r"matrix: expected at least one query and one key"):
        draw(Dense(torch.zeros(shape)))


def test_what_cannot_be_drawn_is_named():
    refuses(
        ArgumentError,
        {
            r"shape \(2, 3, 4, 4\).*A\[0\]": lambda: show.alignment(Dense(weights(2, 3, 4, 4))),
            r"at most 1024.*heatmap": lambda: show.alignment(Dense(torch.zeros(1025, 2))),
        },
    )
    refuses(
        KindError,
        {r"matrix: expected a lazy matrix, or weights .*got str": lambda: show.alignment("A")},
    )


def test_half_types_and_gradients_are_drawn():
    q = torch.randn(4, 8, dtype=torch.bfloat16, requires_grad=True)
    A = it.attend(q, q, mask=it.causal())
    np.testing.assert_array_equal(
        shaded(show.alignment(A).axes[0]), A.dense().detach().float().numpy()
    )


# --- hostile words --------------------------------------------------------------------------------

HOSTILE = ("$x^2$", "\\alpha", "a\nb", "", "x" * 10_000, "\x1b[31m", "_a^b_", "\u202eabc", "\ud800")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_hostile_words_are_drawn_as_they_are(tmp_path, suffix):
    A = Dense(torch.eye(9), labels=(HOSTILE, HOSTILE))
    figure = show.alignment(A, title="$\\frac$ \\alpha", save=tmp_path / f"a{suffix}")
    shown = ticks(figure.axes[0], "y")
    assert shown[:4] == ["$x^2$", "\\alpha", "a⏎b", "∅"]
    assert shown[4] == "x" * 23 + "…"
    assert shown[5:] == ["⟨U+001B⟩[31m", "_a^b_", "⟨U+202E⟩abc", "⟨U+D800⟩"]
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())
    assert written(figure) == ["$\\frac$ \\alpha"]
    show.heatmap(A, title="$", save=tmp_path / f"h{suffix}")
    show.heads({"encoder.0.self": Dense(torch.eye(9)[None], labels=(HOSTILE, HOSTILE))}, title="$")


def test_fonts_that_matplotlib_has_not_listed_yet_are_found(monkeypatch):
    from matplotlib import font_manager

    style._find_new_fonts()
    every = list(font_manager.fontManager.ttflist)
    cjk = {font.name for font in every if "CJK" in font.name}
    if not cjk:
        pytest.skip("no font for Chinese, Japanese and Korean is installed")
    monkeypatch.setattr(
        font_manager.fontManager, "ttflist", [font for font in every if font.name not in cjk]
    )
    style._find_new_fonts.cache_clear()
    assert set(style.families("語")) & cjk


@pytest.mark.parametrize("word", ["お元気ですか", "שלום", "مرحبا", "नमस्ते", "👍🏽"])
def test_every_script_is_drawn_without_a_warning(tmp_path, word):
    A = Dense(torch.eye(2), labels=((word, "?"), (word, "?")))
    figure = show.alignment(A, title=word, save=tmp_path / "a.png")
    assert ticks(figure.axes[0], "y") == [word, "?"]
    figure.savefig(tmp_path / "again.pdf")  # later drawing, outside the style, is as quiet


def test_fonts_are_added_only_for_characters_that_need_them():
    assert style.families("plain, déjà vu, שלום") == ["DejaVu Sans"]
    assert style.families("か")[0] == "DejaVu Sans"
    assert len(style.families("か")) > 1


def test_weights_that_are_no_number_are_hatched_and_counted():
    values = weights(4, 4)
    values[1, 2] = math.nan
    values[3] = math.inf
    for figure in (show.alignment(Dense(values)), show.heatmap(Dense(values))):
        assert np.isnan(shaded(figure.axes[0])).sum() == 5
        assert "hatched: 5 of 16 weights are not finite" in "\n".join(written(figure))
        assert any(patch.get_hatch() for patch in figure.axes[0].patches)
    everything = Dense(torch.full((2, 2), math.nan))
    assert "4 of 4" in written(show.alignment(everything))[-1]
    show.heatmap(everything, scale="log")


# --- heads ----------------------------------------------------------------------------------------


def model(layers: int = 2, h: int = 3) -> dict[str, Dense]:
    matrices = {}
    for name, (t, s) in {"encoder.{}.self": (4, 4), "decoder.{}.cross": (5, 4)}.items():
        labels = (TARGET if t == 5 else SOURCE, SOURCE)
        for layer in range(layers):
            matrices[name.format(layer)] = Dense(weights(h, t, s, seed=layer), labels=labels)
    return matrices


def test_heads_stand_layers_down_and_heads_across():
    figure = show.heads(model())
    drawn = [axes for axes in figure.axes if axes.images]
    titles = [axes.get_title() for axes in drawn]
    assert titles == [f"{layer}·{head}" for layer in (0, 1) for head in (0, 1, 2)] * 2
    assert written(figure) == ["encoder self", "decoder cross"]
    expected = [matrix.dense()[head] for matrix in model().values() for head in range(3)]
    for axes, values in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(shaded(axes), values.numpy())
    corners = [(axes.get_position().x0, -axes.get_position().y0) for axes in drawn]
    for group in (corners[:6], corners[6:]):
        assert sorted({x for x, _ in group}) == [x for x, _ in group[:3]]
        assert sorted({y for _, y in group}) == [group[0][1], group[3][1]]
    assert ticks(drawn[0], "y") == list(SOURCE)
    assert ticks(drawn[1], "y") == []
    assert ticks(drawn[0], "x") == []
    assert ticks(drawn[3], "x") == list(SOURCE)
    assert ticks(drawn[6], "y") == list(TARGET)
    assert len({axes.images[0].get_clim() for axes in drawn}) == 1


def test_heads_sort_by_any_statistic():
    figure = show.heads(model(), sort=lambda A: A.entropy().mean(-1))
    for group in (slice(0, 6), slice(6, 12)):
        drawn = [axes for axes in figure.axes if axes.images][group]
        found = [float(Dense(torch.tensor(shaded(axes))).entropy().mean()) for axes in drawn]
        assert found == sorted(found)
        assert drawn[0].get_title().split()[-1] == f"{found[0]:.3g}"
    with pytest.raises(ArgumentError, match=r"sort: .*\(h=3,\).*shape \(3, 4\)"):
        show.heads(model(), sort=lambda A: A.entropy())


def test_heads_sort_by_statistics_of_the_library():
    from intently.matrix.patterns import measure

    labels = (("a", "b", "a", "b"),) * 2
    matrices = {f"x.{n}": Dense(weights(3, 4, 4, seed=n), labels=labels) for n in range(2)}
    figure = show.heads(matrices, sort="-induction")
    found = [float(axes.get_title().split()[-1]) for axes in figure.axes if axes.images]
    expected = torch.cat(
        [measure(A, [0, 1, 0, 1])["induction"].value() for A in matrices.values()]
    ).sort(descending=True)[0]
    np.testing.assert_allclose(found, expected, rtol=5e-3)
    rising = show.heads(matrices, sort="entropy")
    numbers = [float(axes.get_title().split()[-1]) for axes in rising.axes if axes.images]
    assert numbers == sorted(numbers)
    assert "beside each name its entropy, by which heads are sorted" in written(rising)
    with pytest.raises(ArgumentError, match=r"sort: expected one of entropy, .*got 'induction'"):
        show.heads({"a.0": Dense(weights(2, 5, 4))}, sort="induction")


def test_layers_of_other_sizes_stand_in_groups_of_their_own():
    figure = show.heads({"a.0": Dense(weights(1, 4, 4)), "a.1": Dense(weights(1, 5, 4))})
    assert written(figure) == ["a (4 × 4)", "a (5 × 4)"]


def test_heads_of_a_recording_leave_out_what_is_not_verified():
    q = torch.randn(1, 2, 4, 8)
    with it.watch() as seen:
        for _ in range(2):
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
    figure = show.heads(seen)
    drawn = [axes for axes in figure.axes if axes.images]
    assert len(drawn) == 4
    np.testing.assert_allclose(shaded(drawn[1]), seen.calls[0].matrix()[0, 1].dense(), rtol=1e-6)
    seen.calls[1].verified = False
    figure = show.heads(seen)
    assert len([axes for axes in figure.axes if axes.images]) == 2
    assert written(figure)[-1] == "left out, not verified: 1 of 2"
    seen.calls[0].verified = False
    refuses(
        ArgumentError,
        {r"at least one matrix; got none. Left out, not ver": lambda: show.heads(seen)},
    )
    refuses(
        KindError,
        {r"matrices: expected a matrix, matrices by .*got NoneType": lambda: show.heads(None)},
    )


def several() -> it.observe.Recording:
    """A recording of two texts, or of two beams."""
    q = torch.randn(2, 3, 4, 8)
    with it.watch() as seen:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    return seen


def test_of_a_recording_of_beams_one_is_taken_as_the_message_says():
    seen = several()
    (name,) = seen.layers
    with pytest.raises(ArgumentError, match=r"one beam of a search. Pick one: seen\[") as told:
        show.heatmap(seen, head=1)
    advice = str(told.value).split("Pick one: ")[1].rstrip(".")
    figure = show.heatmap(eval(advice, {"seen": seen}), head=1)
    np.testing.assert_allclose(shaded(figure.axes[0]), seen[name][0, 1].dense().detach(), rtol=1e-6)
    with pytest.raises(ArgumentError, match=r"Pick one: matrices\['a'\]\[0\]"):
        show.lines({"a": Dense(weights(2, 3, 4, 4))})


def test_what_was_found_wrong_is_not_drawn_by_its_name():
    q = torch.randn(1, 2, 4, 8)
    with it.watch() as seen:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    seen.calls[0].verified = False
    for draw in (show.heatmap, show.alignment, show.lines, show.blocks):
        with pytest.raises(UnverifiedError, match="got others"):
            draw(seen, head=1)


def test_one_matrix_without_heads_is_one_panel():
    figure = show.heads(
        {"a.0": Dense(weights(4, 4)), "a.1": Dense(weights(2, 4, 4))},
        sort=lambda A: A.entropy().mean(-1),
        highlight=("a.0", 0),
    )
    drawn = [axes for axes in figure.axes if axes.images]
    assert len(drawn) == 3
    (framed,) = (axes for axes in drawn if axes.spines["left"].get_linewidth() > 1)
    np.testing.assert_array_equal(shaded(framed), weights(4, 4).numpy())
    assert len(show.heads(Dense(weights(4, 4)), sort="entropy").axes) == 2


def test_one_head_is_framed():
    figure = show.heads(model(), highlight=("decoder.1.cross", 2), caption="AER 0.08")
    drawn = [axes for axes in figure.axes if axes.images]
    framed = [axes.spines["left"].get_linewidth() > 1 for axes in drawn]
    assert framed == [False] * 11 + [True]
    assert written(figure)[-1] == "framed: decoder.1.cross, head 2, AER 0.08"


def test_heads_refuse_what_they_cannot_draw():
    with pytest.raises(ArgumentError, match=r"at least one matrix"):
        show.heads({})
    for source, advice in (
        (
            {"a.0": Dense(weights(2, 3, 4, 4))},
            r"\{name: A\[0\] for name, A in matrices.items\(\)\}",
        ),
        (Dense(weights(2, 3, 4, 4)), r"Pick one: A\[0\]"),
        (several(), r"\{name: seen\[name\]\[0\] for name in seen.layers\}"),
    ):
        with pytest.raises(ArgumentError, match=r"shape \(h, t, s\) or \(t, s\).*beam.*" + advice):
            show.heads(source)
    for wrong in (1, ("encoder.0.self",), ("encoder.0.self", True), ["encoder.0.self", 1]):
        with pytest.raises(ArgumentError, match=r"highlight: expected a name and a head of"):
            show.heads(model(), highlight=wrong)
    refuses(
        ArgumentError,
        {
            r"sort: expected the name of a statistic.*got 3": lambda: show.heads(model(), sort=3),
            r"highlight: .*encoder.0.self \(h=3\)": lambda: show.heads(
                model(), highlight=("encoder.0.self", 3)
            ),
        },
    )


def test_a_model_of_any_depth_fits_the_width_of_a_page():
    for layers, h in ((1, 1), (4, 4), (3, 12)):
        width, _ = show.heads(model(layers, h)).get_size_inches()
        assert 2 < width < 7.5


def test_layers_may_have_different_numbers_of_heads():
    figure = show.heads({"a.0": Dense(weights(3, 4, 4)), "a.1": Dense(weights(1, 4, 4))})
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == ["0·0", "0·1", "0·2", "1·0"]
    assert [bool(ticks(axes, "x")) for axes in drawn] == [False, True, True, True]


# --- heatmap --------------------------------------------------------------------------------------


def test_heatmap_is_exact_when_it_fits():
    A = it.attend(torch.randn(40, 8), torch.randn(60, 8))
    figure = show.heatmap(A)
    image, entropy, received, _ = figure.axes
    np.testing.assert_array_equal(shaded(image), A.dense().numpy())
    np.testing.assert_allclose(entropy.patches[0].get_data().values, A.entropy(), rtol=1e-6)
    np.testing.assert_allclose(received.patches[0].get_data().values, A.received(), rtol=1e-6)
    assert image.get_xlabel() == "key steps"
    assert image.get_ylabel() == "query steps"
    assert entropy.get_xlabel() == "entropy (nats)"


@pytest.mark.parametrize("how", ["mean", "max"])
def test_heatmap_pools_what_is_larger_than_its_cells(how):
    A = it.attend(torch.randn(1500, 8), torch.randn(700, 8), mask=it.causal())
    figure = show.heatmap(A, how=how, save=None)
    image, entropy, *_ = figure.axes
    np.testing.assert_allclose(shaded(image), A.pool(512, 512, how=how), rtol=1e-5, atol=1e-7)
    assert image.get_xlim() == (-0.5, 699.5)
    assert image.get_ylim() == (1499.5, -0.5)
    said = f"each cell the {how} of about 2.93 × 1.37 weights"
    if how == "mean":
        said += f"; the largest single weight is {float(A.dense().max()):.2g}"
    assert [text.replace("\n", " ") for text in written(figure)] == [said]
    assert figure.axes[-1].get_ylabel() == {"mean": "mean weight", "max": "largest weight"}[how]
    steps = entropy.patches[0].get_data()
    members = np.arange(1500) * 512 // 1500
    exact = A.entropy().numpy()
    expected = [exact[members == cell].mean() for cell in range(512)]
    np.testing.assert_allclose(steps.values, expected, rtol=1e-4, atol=1e-6)
    assert (steps.edges[0], steps.edges[-1]) == (-0.5, 1499.5)


def test_heatmap_on_a_logarithmic_scale():
    A = it.attend(torch.randn(30, 8), torch.randn(30, 8), mask=it.causal())
    image = show.heatmap(A, scale="log").axes[0].images[0]
    low, high = image.get_clim()
    dense = A.dense().numpy()
    assert high == dense.max()
    assert low == pytest.approx(max(dense[dense > 0].min(), high * 1e-6))
    masked = image.cmap(image.norm(shaded(image.axes)[0, 5]))
    assert masked == (1, 1, 1, 1)
    show.heatmap(Dense(torch.zeros(3, 3)), scale="log")


@pytest.mark.parametrize("size", [40, 1500])
def test_the_sink_is_hatched_and_left_out_of_the_scale(size):
    values = torch.full((size, size), 0.5 / (size - 2))
    values[:, 0], values[:, 1] = 0, 0.5
    figure = show.heatmap(Dense(values), sink="hide")
    image, _, received, _ = figure.axes
    cells = min(size, 512)
    key = 1 * cells // size
    assert np.isnan(shaded(image)[:, key]).all()
    assert np.isfinite(np.delete(shaded(image), key, 1)).all()
    assert image.images[0].get_clim()[1] < 10 / size
    if size == 40:  # of many cells one in two hundred may lie above in any case
        assert show.heatmap(Dense(values)).axes[0].images[0].get_clim()[1] == 0.5
    assert received.get_ylim()[0] < 1
    note = {
        40: "hatched, not in the scale: key 1; it takes 50% of all weight",
        1500: "hatched, not in the scale: keys 0 to 2; key 1 takes 50% of all weight",
    }[size]
    assert note in "\n".join(written(figure))
    assert "hatched" not in "\n".join(written(show.heatmap(Dense(torch.zeros(3, 3)), sink="hide")))


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1)])
def test_a_single_query_or_key_is_number_0(shape):
    axes = show.heatmap(Dense(weights(*shape))).axes[0]
    for side, count in zip("yx", shape):
        places = axes.get_yticks() if side == "y" else axes.get_xticks()
        inside = [float(place) for place in places if -0.5 <= place <= count - 0.5]
        assert all(place == int(place) for place in inside)
        assert count > 1 or inside == [0]


@pytest.mark.parametrize("n", [6, 600])
def test_a_row_that_is_no_number_leaves_the_column_sums_of_the_others(n):
    W = weights(n, n)
    W[2] = math.nan
    figure = show.heatmap(Dense(W))
    (stairs,) = figure.axes[2].patches[:1]
    finite = W[W.isfinite().all(-1)].sum(0).numpy()
    cells = min(n, 512)
    members = np.arange(n) * cells // n
    sums = np.bincount(members, finite) / np.bincount(members)
    np.testing.assert_allclose(stairs.get_data().values, sums, rtol=1e-5)
    assert "not finite, and left out of the column sums" in written(figure)[-1]


def test_scales_and_sinks_are_named():
    refuses(
        ArgumentError,
        {
            r"""scale: expected "linear" or "log"; got 'ln'""": lambda: show.heatmap(
                milk(), scale="ln"
            ),
            r"""sink: expected "show" or "hide"; got True""": lambda: show.heatmap(
                milk(), sink=True
            ),
        },
    )


def test_one_head_is_chosen_and_named():
    A = Dense(weights(3, 5, 4))
    for draw in (show.heatmap, show.alignment):
        figure = draw({"a": A, "b": Dense(weights(3, 5, 4, seed=1))}, head=("a", 2))
        np.testing.assert_array_equal(shaded(figure.axes[0]), weights(3, 5, 4)[2].numpy())
        assert "a, head 2" in written(figure)
    assert "mean of 3 heads" in show.blocks(Dense(weights(1, 3, 5, 4)), width=60)
    refuses(
        ArgumentError,
        {
            r"head: expected a name, or .*of 'a'; got 'x'": lambda: show.heatmap(
                {"a": A}, head="x"
            ),
            r"of 'a', 'b'; got 1": lambda: show.heatmap({"a": A, "b": A}, head=1),
        },
    )


@pytest.mark.parametrize("head", [2, np.int64(2), np.uint8(2), torch.tensor(2)])
def test_whole_numbers_of_any_library_choose_a_head(head):
    A = Dense(weights(3, 5, 4))
    figure = show.heatmap(A, head=head)
    np.testing.assert_array_equal(shaded(figure.axes[0]), weights(3, 5, 4)[2].numpy())
    assert written(figure)[0] == "head 2"
    assert "head 2" in show.blocks({"a": A}, head=("a", head), width=60, colour=False)


@pytest.mark.parametrize("head", [-1, 3, True, 1.0, np.bool_(True), torch.tensor(True), [1]])
def test_what_is_no_head_is_refused(head):
    with pytest.raises(ArgumentError, match="head: expected a head from 0 to 2; got"):
        show.heatmap(Dense(weights(3, 5, 4)), head=head)


def test_widths_are_counted_in_cells():
    for wrong in ("x", 19, 40.5, True):
        with pytest.raises(ArgumentError, match="width: expected at least 20 terminal cells; got"):
            show.blocks(milk(), width=wrong)


def test_heatmap_names_and_thins_words():
    words = [f"w{i}" for i in range(300)]
    axes = show.heatmap(Dense(weights(300, 300), labels=(tuple(words), tuple(words)))).axes[0]
    shown = ticks(axes, "x")
    assert 10 < len(shown) < 80
    assert shown == [words[int(at)] for at in axes.get_xticks()]
    assert axes.get_xlabel() == "keys"


# --- files ----------------------------------------------------------------------------------------

HEADER = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
HISTORY = [{"step": n, "seconds": n / 10, "loss": 4 / n} for n in range(1, 50)]
DRAWINGS = {
    "alignment": lambda save: show.alignment(milk(), gold=GOLD, save=save),
    "heads": lambda save: show.heads(model(), save=save),
    "heatmap": lambda save: show.heatmap(milk(), save=save),
    "bias": lambda save: show.bias(it.alibi(3), 9, save=save),
    "embeddings": lambda save: show.embeddings(weights(5, 7), list("abcde"), save=save),
    "lines": lambda save: show.lines(milk(), "du", save=save),
    "mask": lambda save: show.mask(it.causal(), 9, save=save),
    "overlay": lambda save: show.overlay(Dense(weights(5, 5)), np.eye(8), 0, save=save),
    "positions": lambda save: show.positions(it.sinusoidal(30, 8), save=save),
    "text": lambda save: show.text(milk(), "du", save=save),
    "tokens": lambda save: show.tokens("a b", {"words": str.split}, save=save),
    "training": lambda save: show.training(HISTORY, save=save),
}


TITLED = {
    "alignment": lambda title: show.alignment(milk(), title=title),
    "bias": lambda title: show.bias(it.alibi(2), title=title),
    "embeddings": lambda title: show.embeddings(torch.eye(3), ["a", "b", "c"], title=title),
    "heads": lambda title: show.heads(model(), title=title),
    "heatmap": lambda title: show.heatmap(milk(), title=title),
    "lines": lambda title: show.lines(milk(), title=title),
    "mask": lambda title: show.mask(it.causal(), 4, title=title),
    "overlay": lambda title: show.overlay(
        Dense(weights(4, 4)), torch.rand(8, 8, 3), 0, title=title
    ),
    "positions": lambda title: show.positions(it.sinusoidal(10, 8), title=title),
    "text": lambda title: show.text(milk(), "du", title=title),
    "tokens": lambda title: show.tokens("a b", {"words": str.split}, title=title),
    "training": lambda title: show.training(HISTORY, title=title),
}


@pytest.mark.parametrize("suffix", HEADER)
@pytest.mark.parametrize("name", DRAWINGS)
def test_files_are_whole_and_equal_for_equal_input(tmp_path, name, suffix):
    first, second = tmp_path / "new" / "folder" / f"a{suffix}", tmp_path / f"b{suffix.upper()}"
    DRAWINGS[name](first)
    with matplotlib.rc_context({"font.size": 30, "text.usetex": True, "axes.grid": True}):
        DRAWINGS[name](str(second))
    assert first.read_bytes().startswith(HEADER[suffix])
    assert len(first.read_bytes()) > 2500
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", DRAWINGS)
def test_unknown_suffixes_and_folders_are_refused_before_drawing(tmp_path, name):
    for wrong in ("picture.jpg", "picture", "picture.png.gz"):
        with pytest.raises(ArgumentError, match=r"save: expected a file name that ends in \.png"):
            DRAWINGS[name](tmp_path / wrong)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ArgumentError, match=r"save: .*A folder of this name"):
        DRAWINGS[name](tmp_path / "folder.png")
    (tmp_path / "file").write_text("")
    for place, cause in (
        (tmp_path / "file" / "a.png", "Not a directory"),
        (tmp_path / ("a" * 300 + ".png"), "File name too long"),
        (str(tmp_path / "a\0.png"), "null byte"),
        ("/proc/a.png", "No such file"),
    ):
        with pytest.raises(ArgumentError, match=rf"save: expected a file that can.*(?i:{cause})"):
            DRAWINGS[name](place)
    for wrong in (3, b"a.png"):
        with pytest.raises(KindError, match="save: expected a path; got"):
            DRAWINGS[name](wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]


def test_the_path_is_checked_before_drawing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("intently.show.figures.heatmap.one_of", lambda *_: pytest.fail("drawn"))
    with pytest.raises(ArgumentError, match="Not a directory"):
        show.heatmap(milk(), save=tmp_path / "file" / "a.png")


def test_what_fails_while_writing_is_told(tmp_path):
    with pytest.raises(WriteError, match=r"png: expected a place where the file can be .*too long"):
        show.heatmap(milk(), save=tmp_path / "new" / ("a" * 300 + ".png"))


@pytest.mark.parametrize("draw", TITLED)
def test_titles_are_texts(draw):
    with pytest.raises(KindError, match="title: expected a text; got int"):
        TITLED[draw](3)


def test_the_package_loads_no_matplotlib():
    import subprocess
    import sys

    code = (
        "import sys, intently.show; sys.exit('matplotlib' in sys.modules or 'rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
