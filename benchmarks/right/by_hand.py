"""Attention modules as people write them: each style of `breadth_styles`."""

from __future__ import annotations

from typing import Any

import breadth_styles as styles

from right.case import Case


def _case(style: str) -> Case:
    model, given = styles.build(style)
    asked: dict[str, Any] = {"inputs": given}
    return Case(f"by hand, {style.replace('_', ' ')}", lambda: model, asked)


CASES = tuple(_case(style) for style in styles.STYLES)
