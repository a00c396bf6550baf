"""Edits of a UNet of diffusers by word and by region, against its own plain processor."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from diffusers.models.attention_processor import Attention, AttnProcessor
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from torch import Tensor, nn

import intently as it
from intently import edits
from intently.errors import ArgumentError, KernelError, KindError

from ..diffusion import Change, image, processor, tiny

TOKENS = ("<s>", "a</w>", "cat</w>", "sits</w>", "</s>")
CAT = 2
CROSS, SELF = "*.attn2", "*.attn1"


@pytest.fixture
def unet() -> Any:
    return tiny("CrossAttnDownBlock2D", "CrossAttnUpBlock2D")


def on(pattern: str, change: Callable[[Tensor], Tensor]) -> Change:
    """Change the weights of some layers."""
    return lambda name, _, w: change(w) if fnmatchcase(name, pattern) else w


def times(w: Tensor, cells: Tensor, factor: float) -> Tensor:
    """The weights with some cells multiplied, each row summing to 1 again."""
    w = torch.where(cells, w * factor, w)
    return w / w.sum(-1, keepdim=True)


def square(t: int, top: int, left: int, bottom: int, right: int) -> Tensor:
    """The pixels (t,) between corners given in quarters of a square image."""
    n = int(t**0.5)
    inside = torch.zeros(n, n, dtype=torch.bool)
    inside[top * n // 4 : bottom * n // 4, left * n // 4 : right * n // 4] = True
    return inside.flatten()


def cat(w: Tensor, rows: Tensor | None = None, batch: slice = slice(None)) -> Tensor:
    """The cells (b, h, t, s) of "cat" in some pixels."""
    cells = torch.zeros_like(w, dtype=torch.bool)
    cells[batch, :, :, CAT] = True
    return cells if rows is None else cells & rows[:, None]


def prompt(seed: int = 1, b: int = 2) -> Tensor:
    return torch.randn(b, 5, 12, generator=torch.Generator().manual_seed(seed))


def run(unet: Any, words: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return unet(image(), 10, prompt() if words is None else words).sample


def close(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, atol=1e-5 * float(b.abs().max())))


# --- by word and by region ------------------------------------------------------------------------

CORNER = edits.region(0, 0.25, 0.5, 1)


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        (edits.favour("cat", 5.0), lambda w: times(w, cat(w), 5.0)),
        (edits.forbid("cat"), lambda w: times(w, cat(w), 0)),
        (
            edits.forbid("cat", rows=CORNER),
            lambda w: times(w, cat(w, square(w.shape[-2], 0, 1, 2, 4)), 0),
        ),
        (
            edits.favour("cat", 5.0, rows=CORNER, batch=1),
            lambda w: times(w, cat(w, square(w.shape[-2], 0, 1, 2, 4), slice(1, 2)), 5.0),
        ),
        (
            edits.look_only_at("cat", rows=CORNER, heads=[1]),
            lambda w: _only_cat(w, square(w.shape[-2], 0, 1, 2, 4)),
        ),
        (edits.weights(lambda w: w * 2, batch=[1]), lambda w: torch.stack([w[0], 2 * w[1]])),
    ],
    ids=["favour", "forbid", "region", "favour in a region", "only", "weights"],
)
def test_words_are_edited_as_in_a_processor(unet: Any, edit: Any, change: Any) -> None:
    plain = run(unet)
    with processor(unet, on(CROSS, change)):
        expected = run(unet)
    with it.edit(unet, {CROSS: edit}, tokens=TOKENS):
        found = run(unet)
    assert close(found, expected) and not close(found, plain)


def _only_cat(w: Tensor, rows: Tensor) -> Tensor:
    only = torch.zeros_like(w)
    only[..., CAT] = 1
    heads = torch.arange(w.shape[1])[:, None] == 1
    return torch.where((rows & heads)[..., None], only, w)


def test_one_part_of_the_image_does_not_see_another(unet: Any) -> None:
    left, right = edits.region(0, 0, 1, 0.5), edits.region(0, 0.5, 1, 1)

    def apart(w: Tensor) -> Tensor:
        t = w.shape[-1]
        return times(w, square(t, 0, 0, 4, 2)[:, None] & square(t, 0, 2, 4, 4), 0)

    with processor(unet, on(SELF, apart)):
        expected = run(unet)
    with it.edit(unet, {SELF: edits.forbid(right, rows=left)}):
        found = run(unet)
    assert close(found, expected) and not close(found, run(unet))


@pytest.mark.parametrize("axes", [3, 4])
def test_hidden_states_with_and_without_height_and_width(axes: int) -> None:
    torch.manual_seed(0)
    layer = Attention(8, 12, heads=2, dim_head=4).eval()
    x, words = torch.randn(2, 8, 4, 4), prompt()
    x = x if axes == 4 else x.flatten(2).mT
    holder: Any = nn.ModuleDict({"attn2": layer})
    holder.attn_processors, holder.set_attn_processor = layer.processor, layer.set_processor
    edit = edits.forbid([CAT], rows=CORNER, batch=0)
    corner = square(16, 0, 1, 2, 4)
    with torch.no_grad():
        change = on("attn2", lambda w: times(w, cat(w, corner, slice(0, 1)), 0))
        with processor(holder, change):
            expected = layer(x, words)
        plain = layer(x, words)
        with it.edit(layer, edit):
            found = layer(x, words)
    assert found.shape == expected.shape == x.shape
    assert close(found, expected) and not close(found, plain)
    assert torch.equal(found[1], plain[1])


# --- with guidance, from prompt to prompt ---------------------------------------------------------


def denoised(unet: Any, words: Tensor) -> Tensor:
    """Four steps of a pipeline with guidance; words (2, s, c) of nothing and of the prompt."""
    scheduler: Any = DDIMScheduler(num_train_timesteps=40)
    scheduler.set_timesteps(4)
    x = image(1)
    with torch.no_grad():
        for step in scheduler.timesteps:
            nothing, told = unet(torch.cat([x, x]), step, words).sample.chunk(2)
            x = scheduler.step(nothing + 3 * (told - nothing), step, x).prev_sample
    return x


def test_weights_of_another_prompt_at_every_step(unet: Any) -> None:
    old, new = prompt(), torch.cat([prompt()[:1], prompt(9)[1:]])
    kept: dict[tuple[str, int], Tensor] = {}

    def keep(name: str, number: int, w: Tensor) -> Tensor:
        kept[name, number] = w
        return w

    def put(name: str, number: int, w: Tensor) -> Tensor:
        if not fnmatchcase(name, CROSS):
            return w
        return torch.stack([w[0], kept[name, number][1]])

    with processor(unet, keep):
        denoised(unet, old)
    with processor(unet, put):
        expected = denoised(unet, new)
    with it.watch(unet) as seen:
        denoised(unet, old)
    with it.edit(unet, {CROSS: edits.replace(seen, batch=1)}) as done:
        found = denoised(unet, new)
    assert close(found, expected) and not close(found, denoised(unet, new))
    assert "4 calls" in str(done) and "1 of 2 batch rows" in str(done)


def test_an_edit_in_the_first_steps(unet: Any) -> None:
    def first(name: str, number: int, w: Tensor) -> Tensor:
        return times(w, cat(w), 5.0) if fnmatchcase(name, CROSS) and number < 2 else w

    with processor(unet, first):
        expected = denoised(unet, prompt())
    for calls in (range(2), slice(None, 2), [0, 1]):
        edit = edits.during(calls, edits.favour([CAT], 5.0))
        with it.edit(unet, {CROSS: edit}) as done:
            assert close(denoised(unet, prompt()), expected)
        assert "2 calls" in str(done)
    with (
        pytest.raises(KernelError, match="calls that each edit changes"),
        it.edit(unet, {CROSS: edits.during(slice(4, None), edits.off())}),
    ):
        denoised(unet, prompt())


@pytest.mark.parametrize("calls", [-1, slice(-2, None), slice(0, -1), [0, -1]])
def test_calls_are_counted_from_the_first(calls: Any) -> None:
    with pytest.raises(ArgumentError, match="calls: expected numbers from 0 on"):
        edits.during(calls, edits.off())


@pytest.mark.parametrize("calls", ["first", 1.0, [True], None, slice("first", None)])
def test_what_is_no_call(calls: Any) -> None:
    with pytest.raises(KindError, match="calls: expected a number, a slice"):
        edits.during(calls, edits.off())


def test_weights_of_a_run_without_guidance_serve_the_row_of_the_prompt(unet: Any) -> None:
    x = image()[:1]
    with torch.no_grad(), it.watch(unet) as alone:
        unet(x, 10, prompt(9)[1:])
    with torch.no_grad(), it.watch(unet) as both:
        unet(torch.cat([x, x]), 10, prompt(9))
    with it.edit(unet, {CROSS: edits.replace(both, batch=1)}):
        expected = run(unet)
    first = "down_blocks.0.attentions.0.transformer_blocks.0.attn2"
    layers: Any = {first: edits.replace(alone, batch=1)}
    with it.edit(unet, layers), it.watch(unet) as seen:
        run(unet)
    with it.edit(unet, {first: edits.replace(both, batch=1)}), it.watch(unet) as same:
        run(unet)
    assert close(seen[first].dense(), same[first].dense())
    with it.edit(unet, {CROSS: edits.replace(alone, batch=1)}):
        assert close(run(unet), expected)


def test_the_half_without_a_prompt_is_the_same_bit_for_bit(unet: Any) -> None:
    plain = run(unet)
    edit = edits.forbid("cat", batch=slice(1, None))
    with it.edit(unet, {CROSS: edit}, tokens=TOKENS), it.watch(unet) as seen:
        found = run(unet)
    assert torch.equal(found[0], plain[0]) and not close(found[1], plain[1])
    for name in (name for name in seen.layers if name.endswith("attn2")):
        cells = seen[name].dense()[..., CAT]
        assert bool((cells[0] > 0).all()) and not bool(cells[1].any())


@pytest.mark.parametrize("edit", [edits.off(batch=1), edits.uniform(batch=1, heads=[0])])
def test_rules_in_one_batch_row(unet: Any, edit: Any) -> None:
    def change(w: Tensor) -> Tensor:
        w = w.clone()
        if isinstance(edit, edits.off):
            w[1] = 0
        else:
            w[1, 0] = 1 / w.shape[-1]
        return w

    with processor(unet, on(CROSS, change)):
        expected = run(unet)
    with it.edit(unet, {CROSS: edit}):
        assert close(run(unet), expected)


def test_a_processor_that_may_attend_in_blocks_and_does_not_is_edited(unet: Any) -> None:
    edit = {CROSS: edits.forbid([CAT])}
    with it.edit(unet, edit):
        expected = run(unet)
    unet.set_attn_processor(AttnProcessor())
    plain = run(unet)
    with torch.no_grad(), it.edit(unet, edit):
        assert close(run(unet), expected)
    assert torch.equal(run(unet), plain) and not close(plain, expected)


# --- what names what ------------------------------------------------------------------------------


def test_the_prompt_names_no_pixels(unet: Any) -> None:
    with (
        pytest.raises(ArgumentError, match=r"tokens are not known here.*attn2"),
        it.edit(unet, {SELF: edits.forbid("cat")}, tokens=TOKENS),
    ):
        run(unet)


def test_a_picture_is_resized_and_images_need_not_be_square(unet: Any) -> None:
    x = torch.randn(2, 4, 8, 12, generator=torch.Generator().manual_seed(2))
    picture = torch.zeros(16, 24, dtype=torch.bool)
    picture[:8, 12:] = True
    found = []
    for rows in (picture, edits.region(0, 0.5, 0.5, 1, aspect=12 / 8)):
        with (
            torch.no_grad(),
            it.edit(unet, {CROSS: edits.forbid([CAT], rows=rows)}),
            it.watch(unet) as seen,
        ):
            unet(x, 10, prompt())
        found.append(seen)
    for name in (name for name in found[0].layers if name.endswith("attn2")):
        a, b = (seen[name].dense() for seen in found)
        assert torch.equal(a, b)
        h = {96: 8, 24: 4}[a.shape[-2]]
        there = (a[..., CAT] == 0).unflatten(-1, (h, -1))
        assert bool(there[..., : h // 2, there.shape[-1] // 2 :].all())
        assert int(there[0, 0].sum()) == a.shape[-2] // 4


@pytest.mark.parametrize(
    ("edit", "error", "text"),
    [
        (edits.off(batch=2), ArgumentError, "batch: expected numbers below 2; got 2"),
        (
            edits.forbid(CORNER),
            ArgumentError,
            r"keys: expected the pixels of an image, 1 times as wide as it is high; got 5 steps",
        ),
        (edits.off(rows=torch.ones(2, 4) > 0), ArgumentError, "rows: .* 2 times as wide"),
        (edits.off(rows=torch.ones(2, 2, 2) > 0), ArgumentError, r"rows: .*picture \(H, W\)"),
        (edits.off(heads=CORNER), KindError, "heads: .*got a region"),
        (edits.off(batch=torch.ones(3) > 0), ArgumentError, r"batch: expected booleans \(2,\)"),
    ],
)
def test_errors(unet: Any, edit: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text), it.edit(unet, {CROSS: edit}):
        run(unet)


@pytest.mark.parametrize("corners", [(0.5, 0, 0.5, 1), (0, 0, 1, 2), (0, -0.1, 1, 1)])
def test_corners_of_a_region(corners: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError, match="≤"):
        edits.region(*corners)


def test_regions_share_no_pixel_and_leave_none() -> None:
    upper, lower = edits.region(0, 0, 0.3, 1), edits.region(0.3, 0, 1, 1)
    for height, width in ((1, 1), (3, 5), (8, 8)):
        assert torch.equal(upper.picture(height, width), ~lower.picture(height, width))
