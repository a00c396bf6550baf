"""Every head of every layer as a panel: grouped, sorted, framed, refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import intently as it
from intently import show
from intently.core.matrix import Dense
from intently.core.matrix.patterns import measure
from intently.errors import ArgumentError, KindError, UnverifiedError
from intently.show import heads, heatmap, lines

from .drawing import SOURCE, TARGET, model, panels, shaded, ticks, weights, written
from .drawing import quiet as quiet
from .refusals import refusals, refuses


def kinds(figure) -> list[str]:
    return [name for axes in figure.axes for name in written(axes)]


def test_heads_stand_layers_down_and_heads_across():
    figure = heads(model())
    drawn = panels(figure)
    titles = [axes.get_title() for axes in drawn]
    assert titles == [f"{layer}·{head}" for layer in (0, 1) for head in (0, 1, 2)] * 2
    assert kinds(figure) == ["encoder.*.self_attention", "decoder.*.cross_attention"]
    assert written(figure) == ["one scale for all heads"]
    expected = [matrix.dense()[head] for matrix in model().values() for head in range(3)]
    for axes, values in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(shaded(axes), values.numpy())
    corners = [(axes.get_position().x0, -axes.get_position().y0) for axes in drawn]
    for group in (corners[:6], corners[6:]):
        assert sorted({x for x, _ in group}) == [x for x, _ in group[:3]]
        assert sorted({y for _, y in group}) == [group[0][1], group[3][1]]
    named = {(0, "y"): SOURCE, (1, "y"): (), (0, "x"): (), (3, "x"): SOURCE, (6, "y"): TARGET}
    assert {(n, side): tuple(ticks(drawn[n], side)) for n, side in named} == named
    assert len({axes.images[0].get_clim() for axes in drawn}) == 1


def test_heads_sort_by_any_statistic():
    figure = heads(model(), sort=lambda A: A.entropy().mean(-1))
    for group in (slice(0, 6), slice(6, 12)):
        drawn = panels(figure)[group]
        found = [float(Dense(torch.tensor(shaded(axes))).entropy().mean()) for axes in drawn]
        assert found == sorted(found)
        assert drawn[0].get_title().split()[-1] == f"{found[0]:.3g}"


def test_heads_sort_by_statistics_of_the_library():
    labels = (("a", "b", "a", "b"),) * 2
    matrices = {f"x.{n}": Dense(weights(3, 4, 4, seed=n), labels=labels) for n in range(2)}
    figure = heads(matrices, sort="-induction")
    found = [float(axes.get_title().split()[-1]) for axes in panels(figure)]
    expected = torch.cat(
        [measure(A, [0, 1, 0, 1])["induction"].value() for A in matrices.values()]
    ).sort(descending=True)[0]
    np.testing.assert_allclose(found, expected, rtol=5e-3)
    rising = heads(matrices, sort="entropy")
    numbers = [float(axes.get_title().split()[-1]) for axes in panels(rising)]
    assert numbers == sorted(numbers)
    assert "beside each name its entropy, by which heads are sorted" in written(rising)[-1]


def test_layers_of_other_sizes_stand_in_groups_of_their_own():
    figure = heads({"a.0": Dense(weights(1, 4, 4)), "a.1": Dense(weights(1, 5, 4))})
    assert kinds(figure) == ["a.0 (4 × 4)", "a.1 (5 × 4)"]


def test_heads_of_a_recording_leave_out_what_is_not_verified():
    seen = recorded(texts=1, calls=2)
    drawn = panels(heads(seen))
    assert len(drawn) == 4
    np.testing.assert_allclose(shaded(drawn[1]), seen.calls[0].matrix()[0, 1].dense(), rtol=1e-6)
    seen.calls[1].verified = False
    figure = heads(seen)
    assert len(panels(figure)) == 2
    assert written(figure)[-1].endswith("left out, not verified: 1 of 2")
    seen.calls[0].verified = False
    refuses(
        ArgumentError, {r"at least one matrix; got none. Left out, not ver": lambda: heads(seen)}
    )


def recorded(texts: int = 2, calls: int = 1) -> it.observe.Recording:
    """Return a recording of calls, each of several texts, or beams, and three heads or two."""
    q = torch.randn(texts, 1 + texts, 4, 8)
    with it.watch() as seen:
        for _ in range(calls):
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
    return seen


def test_of_a_recording_of_beams_one_is_taken_as_the_message_says():
    seen = recorded()
    (name,) = seen.layers
    with pytest.raises(ArgumentError, match=r"one beam of a search. Pick one: seen\[") as told:
        heatmap(seen, head=1)
    advice = str(told.value).split("Pick one: ")[1].rstrip(".")
    figure = heatmap(eval(advice, {"seen": seen}), head=1)
    np.testing.assert_allclose(shaded(figure.axes[0]), seen[name][0, 1].dense().detach(), rtol=1e-6)


def test_what_was_found_wrong_is_not_drawn_by_its_name():
    seen = recorded(texts=1)
    seen.calls[0].verified = False
    for draw in (heatmap, lines, show.blocks):
        with pytest.raises(UnverifiedError, match="got others"):
            draw(seen, head=1)


def test_one_matrix_without_heads_is_one_panel():
    figure = heads(
        {"a.0": Dense(weights(4, 4)), "a.1": Dense(weights(2, 4, 4))},
        sort=lambda A: A.entropy().mean(-1),
        highlight=("a.0", 0),
    )
    drawn = panels(figure)
    assert len(drawn) == 3
    (framed,) = (axes for axes in drawn if axes.spines["left"].get_linewidth() > 1)
    np.testing.assert_array_equal(shaded(framed), weights(4, 4).numpy())
    assert len(heads(Dense(weights(4, 4)), sort="entropy").axes) == 2


def test_one_head_is_framed():
    figure = heads(model(), highlight=("decoder.1.cross_attention", 2), caption="AER 0.08")
    framed = [axes.spines["left"].get_linewidth() > 1 for axes in panels(figure)]
    assert framed == [False] * 11 + [True]
    assert written(figure)[-1].startswith("framed: decoder.1.cross_attention, head 2, AER 0.08")


BATCH = Dense(weights(2, 3, 4, 4))
SHAPE = r"shape \(h, t, s\) or \(t, s\).*beam.*"
test_heads_refuse_what_they_cannot_draw = refusals(
    {
        ArgumentError: {
            "at least one matrix": lambda: heads({}),
            SHAPE + r"\{name: A\[0\] for name, A in matrices.items\(\)\}": lambda: heads(
                {"a.0": BATCH}
            ),
            SHAPE + r"Pick one: A\[0\]": lambda: heads(BATCH),
            SHAPE + r"\{name: seen\[name\]\[0\] for name in seen.layers\}": lambda: heads(
                recorded()
            ),
            r"Pick one: matrices\['a'\]\[0\]": lambda: lines({"a": BATCH}),
            r"sort: .*\(h=3,\).*shape \(3, 4\)": lambda: heads(model(), sort=lambda A: A.entropy()),
            r"sort: expected one of entropy, .*got 'induction'": lambda: heads(
                {"a.0": Dense(weights(2, 5, 4))}, sort="induction"
            ),
            r"sort: expected the name of a statistic.*got 3": lambda: heads(model(), sort=3),
            r"""scale: expected "shared" or "own"; got 'log'""": lambda: heads(
                model(), scale="log"
            ),
            r"highlight: expected a name and a head of": lambda: heads(model(), highlight=1),
            r"highlight: .*got \('encoder.0.self_attention', True\)": lambda: heads(
                model(), highlight=("encoder.0.self_attention", True)
            ),
            r"highlight: .*encoder.0.self_attention \(h=3\)": lambda: heads(
                model(), highlight=("encoder.0.self_attention", 3)
            ),
        },
        KindError: {"matrices: expected a matrix, matrices by .*got NoneType": lambda: heads(None)},
    }
)


def test_a_model_of_any_depth_fits_the_width_of_a_page():
    for layers, h in ((1, 1), (4, 4), (3, 12)):
        width, _ = heads(model(layers, h)).get_size_inches()
        assert 2 < width < 7.5


def test_a_common_scale_says_how_many_heads_look_blank_on_it_and_an_own_one_shows_them():
    pale, sharp = torch.full((1, 20, 20), 0.05), torch.eye(20)[None]
    matrices = {
        "a.0": Dense(torch.cat([pale, pale, sharp])),
        "a.1": Dense(torch.cat([sharp, sharp])),
    }
    figure = heads(matrices)
    assert {axes.images[0].get_clim() for axes in panels(figure)} == {(0, 1)}
    assert written(figure)[-1] == (
        'one scale for all heads; 2 of 5 stay below a tenth of it: scale="own" shows them'
    )
    own = heads(matrices, scale="own")
    tops = [axes.images[0].get_clim()[1] for axes in panels(own)]
    np.testing.assert_allclose(tops, [0.05, 0.05, 1, 1, 1])
    titles = [axes.get_title() for axes in panels(own)]
    assert titles[1:4] == ["0·1  ≤ 0.05", "0·2  ≤ 1", "1·0  ≤ 1"]
    assert own.axes[-1].get_ylabel() == "share of its largest weight"


@pytest.mark.parametrize("s", [12, 60, 96])
def test_no_cell_falls_between_two_dots_however_many_heads_there_are(s):
    labels = (tuple(f"w{n}" for n in range(s)),) * 2
    figure = heads({f"a.{n}": Dense(weights(12, s, s), labels=labels) for n in range(2)})
    wide = panels(figure)[0].get_position().width * figure.get_size_inches()[0] * figure.dpi
    assert wide >= s
    named = [bool(ticks(axes, "x")) for axes in panels(figure)]
    assert named == [False] * 12 + [True] + [s == 96] * 11


def test_layers_may_have_different_numbers_of_heads():
    figure = heads({"a.0": Dense(weights(3, 4, 4)), "a.1": Dense(weights(1, 4, 4))})
    assert [axes.get_title() for axes in panels(figure)] == ["0·0", "0·1", "0·2", "1·0"]
    assert [bool(ticks(axes, "x")) for axes in panels(figure)] == [False, True, True, True]
