"""The Vision Transformer: patches, class token, and parity with transformers."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import intently as it
from intently.errors import ArgumentError, KindError
from intently.models.vision import VisionOptions, VisionTransformer
from intently.modules.options import AttentionOptions

from ..messages import refused

OPTIONS = VisionOptions(image=(8, 12), patch=4, classes=5, channels=2, width=16, layers=2)


def test_patches_stand_row_after_row() -> None:
    model = VisionTransformer(OPTIONS).eval()
    images = torch.randn(3, 2, 8, 12)
    seen = model._embed(images) - model.positions
    for row, (y, x) in enumerate([(0, 0), (0, 4), (0, 8), (4, 0), (4, 4), (4, 8)], 1):
        patch = images[:, :, y : y + 4, x : x + 4].flatten(1)
        weight, bias = model.patches.weight.flatten(1), model.patches.bias
        torch.testing.assert_close(seen[:, row], nn.functional.linear(patch, weight, bias))
    torch.testing.assert_close(seen[:, 0], model.class_token.expand(3, -1))


def test_attentions_are_the_matrices_of_the_pass() -> None:
    model = VisionTransformer(OPTIONS).eval()
    found = model.attentions(torch.randn(3, 2, 8, 12))
    assert {n: A.shape for n, A in found.items()} == {
        f"encoder.{i}.self": (3, 4, 7, 7) for i in (0, 1)
    }
    near = it.grid(1, 7, 1)
    masked = VisionTransformer(
        VisionOptions(image=(8, 12), patch=4, classes=5, attention=AttentionOptions(mask=near))
    )
    weights = masked.attentions(torch.randn(1, 3, 8, 12))["encoder.3.self"].dense()
    assert not weights[..., 0, 2:].any()


def test_without_a_head_the_class_token_is_returned() -> None:
    model = VisionTransformer(VisionOptions(image=(8, 8), patch=4, classes=0, width=16)).eval()
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(images), model.hidden(images)[:, 0])


def test_gradients_reach_every_parameter_and_dropout_acts_while_training() -> None:
    options = VisionOptions(image=(8, 8), patch=4, classes=3, width=16, dropout=0.3)
    model, images = VisionTransformer(options), torch.randn(2, 3, 8, 8)
    model(images).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert not torch.equal(model(images), model(images))


def test_it_learns_to_tell_stripes_apart() -> None:
    options = VisionOptions(image=(8, 8), patch=4, classes=2, channels=1, width=16, layers=1)
    model = VisionTransformer(options)
    stripes = torch.zeros(2, 1, 8, 8)
    stripes[0, :, ::2] = stripes[1, :, :, ::2] = 1
    labels = torch.arange(16) % 2
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(60):
        images = stripes[labels] + 0.3 * torch.randn(16, 1, 8, 8)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.1


@pytest.mark.parametrize("train", [False, True])
def test_vit_is_one_setting_of_the_options(train: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        image_size=12,
        patch_size=4,
        num_channels=3,
        num_labels=5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs = transformers.ViTForImageClassification(config).train(train)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.2)
    norm = partial(nn.LayerNorm, eps=1e-12)
    options = VisionOptions((12, 12), 4, 5, width=12, heads=3, layers=2, norm=norm)
    ours = VisionTransformer(options).train(train)
    left = dict(theirs.state_dict())
    state = {
        "class_token": left.pop("vit.embeddings.cls_token")[0, 0],
        "positions": left.pop("vit.embeddings.position_embeddings")[0],
    }
    for kind in ("weight", "bias"):
        state[f"patches.{kind}"] = left.pop(f"vit.embeddings.patch_embeddings.projection.{kind}")
        state[f"norm.{kind}"] = left.pop(f"vit.layernorm.{kind}")
        state[f"head.{kind}"] = left.pop(f"classifier.{kind}")
        for i in range(2):
            layer = {
                n.removeprefix(f"vit.{p}.{i}."): left.pop(n)
                for p in ("encoder.layer", "layers")
                for n in list(left)
                if n.startswith(f"vit.{p}.{i}.") and n.endswith(kind)
            }
            for mine, ends in {
                "self_norm.": "layernorm_before",
                "feed_norm.": "layernorm_after",
                "self_attention.q_": ("query", "q_proj"),
                "self_attention.k_": ("key", "k_proj"),
                "self_attention.v_": ("value", "v_proj"),
                "self_attention.out_": ("attention.output.dense", "o_proj"),
                "feed_forward.up.": ("intermediate.dense", "fc1"),
                "feed_forward.down.": ("output.dense", "fc2"),
            }.items():
                ends = (ends,) if isinstance(ends, str) else ends
                name = next(n for n in layer if n.endswith(tuple(f"{e}.{kind}" for e in ends)))
                state[f"encoder.{i}.{mine}{kind}"] = layer.pop(name)
            assert not layer
    assert not left, sorted(left)
    ours.load_state_dict(state)
    images = torch.randn(2, 3, 12, 12)
    torch.testing.assert_close(ours(images), theirs(images).logits, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        expected = theirs.bfloat16()(images.bfloat16()).logits.float()
        error = (ours.bfloat16()(images.bfloat16()).float() - expected).abs().max()
    assert float(error / expected.abs().max()) < 2e-2


def test_bad_input(as_users_call: None) -> None:
    model = VisionTransformer(OPTIONS)
    with pytest.raises(ArgumentError, match=r"images: expected shape \(b, c=2, 8, 12\); got shape"):
        model(torch.zeros(1, 2, 12, 8))
    with pytest.raises(KindError, match=r"images: expected floating-point images .*uint8\. Scale"):
        model(torch.zeros(1, 2, 8, 12, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match=r"patch: expected a divisor of the sides .*; got 5\."):
        VisionOptions(image=(8, 12), patch=5, classes=2)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"image": (16,)}, "image: expected (height, width) in pixels; got (16,)."),
        ({"image": 16}, "image: expected (height, width) in pixels; got 16."),
        ({"image": (0, 8)}, "image: expected an int ≥ 1; got 0."),
        ({"image": (8.0, 8)}, "image: expected an int ≥ 1; got 8.0."),
        ({"patch": 4.0}, "patch: expected an int ≥ 1; got 4.0."),
        ({"patch": 0}, "patch: expected an int ≥ 1; got 0."),
        ({"classes": -1}, "classes: expected an int ≥ 0; got -1."),
        ({"channels": 0}, "channels: expected an int ≥ 1; got 0."),
        ({"width": "a"}, "width: expected an int ≥ 1; got 'a'."),
        ({"heads": 3}, "heads: expected a divisor of width=128; got 3."),
        ({"layers": -1}, "layers: expected an int ≥ 0; got -1."),
        ({"dropout": 2.0}, "dropout: expected a probability in [0, 1); got 2.0."),
        (
            {"norm": nn.LayerNorm(128)},
            "norm: expected a function that makes the part from the width c; got LayerNorm. Write "
            "nn.RMSNorm, say, not nn.RMSNorm(c).",
        ),
        ({"feed_forward": 4}, "feed_forward: expected a function that makes the part from the w"),
        (
            {"attention": None},
            "attention: expected intently.modules.AttentionOptions(…); got NoneType.",
        ),
        ({"projections": True}, "projections: expected intently.modules.Projections(…); got bool."),
    ],
)
def test_options_that_cannot_be(as_users_call: None, given: dict[str, Any], text: str) -> None:
    with pytest.raises((ArgumentError, KindError)) as caught:
        VisionOptions(**{"image": (8, 12), "patch": 4, "classes": 2, **given})
    assert text in str(caught.value)


def test_images_of_another_dtype(as_users_call: None) -> None:
    model = VisionTransformer(OPTIONS)
    for dtype in (torch.float64, torch.float16):
        refused(
            lambda dtype=dtype: model(torch.zeros(1, 2, 8, 12, dtype=dtype)),
            KindError,
            f"images: expected torch.float32 on cpu, as the layer's weights; got {dtype} on cpu. "
            "Convert one of them with .to(…).",
            whole=True,
        )


def test_a_model_can_be_pickled() -> None:
    model = VisionTransformer(OPTIONS).eval()
    images, again = torch.randn(2, 2, 8, 12), pickle.loads(pickle.dumps(model))
    assert torch.equal(again(images), model(images)) and again.options == model.options
