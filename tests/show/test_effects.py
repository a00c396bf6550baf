"""The picture of what edits do: its panels, its places, its colours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from intently.errors import ArgumentError, KindError
from intently.observe.measuring.table import Effects
from intently.show import effects


def table(*rows: tuple[str, int | None, float], across: str = "head") -> Effects:
    names = ("layer", across, "difference") if across else ("layer", "difference")
    return Effects(
        ({"layer": layer, across: place, "difference": gap} for layer, place, gap in rows), names
    )


def cells(axes: Any) -> np.ndarray:
    return axes.images[0].get_array().filled(math.nan)


def test_layers_down_and_heads_across_with_zero_in_the_middle() -> None:
    found = table(("h.0.attn", 0, 1.0), ("h.0.attn", 1, -4.0), ("h.10.attn", 1, 0.5))
    panel, bar = effects(found, title="off").axes
    np.testing.assert_array_equal(cells(panel), [[1.0, -4.0], [math.nan, 0.5]])
    assert panel.images[0].get_clim() == (-4.0, 4.0)
    assert [x.get_text() for x in panel.get_yticklabels()] == ["0", "10"]
    assert panel.get_xlabel() == "head" and bar.get_ylabel() == "difference"
    middle = panel.images[0].cmap(0.5)
    assert middle[:3] == pytest.approx((1, 1, 1), abs=0.01)


def test_a_panel_for_each_kind_of_layer() -> None:
    found = table(
        ("encoder.0.self_attention", 0, 1.0),
        ("decoder.0.cross_attention", 2, 2.0),
        ("decoder.1.cross_attention", 0, 0),
    )
    first, second, _ = effects(found).axes
    assert cells(first).shape == (1, 1) and cells(second).shape == (2, 3)
    assert first.images[0].get_clim() == second.images[0].get_clim() == (-2.0, 2.0)


def test_keys_layers_alone_and_no_effect_at_all() -> None:
    assert effects(table(("h.0", 3, 1.0), across="key")).axes[0].get_xlabel() == "key"
    alone = effects(table(("h.0", None, 0.0), ("h.1", None, 0.0), across="")).axes[0]
    assert cells(alone).shape == (2, 1) and alone.images[0].get_clim() == (-1.0, 1.0)


def test_the_bar_lies_on_the_sheet() -> None:
    figure = effects(table(*((f"h.{n}", k, 1.0) for n in range(2) for k in range(60))))
    for axes in figure.axes:
        box = axes.get_position()
        assert 0 <= box.y0 < box.y1 <= 1 and 0 <= box.x0 < box.x1 <= 1


def test_refusals(tmp_path: Any) -> None:
    with pytest.raises(KindError, match=r"a table of intently\.effects"):
        effects([[1.0]])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="columns layer and difference"):
        effects(Effects([{"edit": "a", "difference": 1.0}], ("edit", "difference")))
    with pytest.raises(ArgumentError, match="at least one row"):
        effects(table())
    effects(table(("h.0", 0, 1.0)), save=tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
