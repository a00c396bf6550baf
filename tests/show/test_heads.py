"""Every head of every layer as a panel: grouped, sorted, framed, refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import intently as it
from intently import show
from intently.errors import ArgumentError, KindError, UnverifiedError
from intently.matrix import Dense

from .drawing import SOURCE, TARGET, model, shaded, ticks, weights, written
from .drawing import quiet as quiet
from .refusals import refuses


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
