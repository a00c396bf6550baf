"""Runs the model in a folder, of transformers too, on a text or a picture, and watches it.

Only safetensors are read, and no code of a folder is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from intently.errors import ArgumentError, DataError, build
from intently.interop.foreign import HERE, kind_of, loaded, quiet, reading
from intently.observe import watch
from intently.show.labels import visible
from intently.show.page import Picture
from intently.show.page.items import BEFORE
from intently.tasks.runners.watched import (
    Watched,
    fitting,
    in_folder,
    run_language,
    run_translation,
)

PRODUCED = 64
"""Tokens that a model generates at most."""

HEADS = r"(.+\.)?(pooler|seq_relationship|sop_classifier)\..+"
"""Tensors on which no attention and no answer depends; many folders lack them."""

NAMED = 80
"""Characters of a class's name that are shown."""

TEXTS = "a transformers model in safetensors, and its tokenizer"
PICTURES = "a vision model of transformers in safetensors, with preprocessor_config.json"


def runner(folder: Path | None) -> Callable[..., Watched]:
    """Return the function that runs the model in a folder on a text."""
    kinds = {
        "translator.json": run_translation,
        "language.json": run_language,
        "config.json": run_text,
    }
    return run_translation if folder is None else in_folder(folder, kinds)


def run_text(folder: Path, text: str, layers: list[str] | None, beam: int) -> Watched:
    """One pass over a text, or a generation if the model has a decoder that can generate."""
    model, tokenizer, limit = open_reader(folder)
    with quiet():
        config = model.config
        ids, told = fitting(tokenizer(text)["input_ids"], limit)
        given = torch.tensor([ids])
        both = getattr(config, "is_encoder_decoder", False)
        with torch.inference_mode(), watch(model, layers=layers) as seen:
            mask, made = torch.ones_like(given), given
            if both and model.can_generate():
                made = model.generate(
                    given,
                    attention_mask=mask,
                    max_new_tokens=PRODUCED,
                    num_beams=1,
                    do_sample=False,
                )
                said = tokenizer.decode(made[0], skip_special_tokens=True)
                told = [*told, visible(said, 100_000), ""]
            else:
                model(given, attention_mask=mask, **({"decoder_input_ids": given} if both else {}))
        source, target = (
            [str(x) for x in tokenizer.convert_ids_to_tokens(side[0].tolist())]
            for side in (given, made)
        )
        seen.tokens = (source, target) if both else source
    return Watched(seen, told)


def open_reader(folder: Path) -> tuple[Any, Any, int | None]:
    """The model of a transformers folder, its tokenizer, and how many tokens it takes at most."""
    with reading(folder, TEXTS) as transformers:
        kind = kind_of(transformers, folder, TEXTS)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **HERE)
        if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
            raise build(DataError, str(folder), TEXTS, "no vocabulary of a tokenizer")
        model = loaded(kind, folder, HEADS).eval()
    longest = getattr(model.config, "max_position_embeddings", None)
    known = (tokenizer.model_max_length, longest)
    return model, tokenizer, min((n for n in known if isinstance(n, int) and n > 0), default=None)


def open_model(folder: Path) -> Any:
    """The model of a transformers folder, in evaluation mode."""
    with reading(folder, "a transformers model in safetensors") as transformers:
        kind = kind_of(transformers, folder, "a transformers model in safetensors")
        return loaded(kind, folder, HEADS).eval()


def run_picture(image: Path, folder: Path | None, layers: list[str] | None) -> Watched:
    """One pass over a picture; the picture is shown as the model's processor cropped it."""
    if folder is None:
        expected, why = (
            "the folder of a model that reads pictures",
            "the embedded translator reads words",
        )
        fix = "give a folder that save_pretrained wrote, of a ViT for example"
        raise build(ArgumentError, "--model", expected, "none", why, fix)
    with quiet():
        picture = _picture(image)
        with reading(folder, PICTURES) as transformers:
            kind = kind_of(transformers, folder, PICTURES)
            processor: Any = transformers.AutoImageProcessor.from_pretrained(folder, **HERE)
            model = loaded(kind, folder, HEADS)
            pixels = processor(images=picture, return_tensors="pt")["pixel_values"]
        model = getattr(model, "vision_model", model).eval()
        with torch.inference_mode(), watch(model, layers=layers) as seen:
            made = model(pixel_values=pixels)
    mean, std = (
        torch.tensor(getattr(processor, name, None) or [given] * 3)[:, None, None]
        for name, given in (("image_mean", 0.0), ("image_std", 1.0))
    )
    shown = (pixels[0] * std + mean).permute(1, 2, 0).numpy()
    rows, columns = _grid(model.config, pixels)
    before = sorted({n - rows * columns for call in seen.calls for n in call.shape[-2:]})
    sides = [Picture(shown, rows, columns, n) for n in before if 0 <= n <= BEFORE]
    return Watched(seen, _class_of(model, made), sides)


def _picture(image: Path) -> Any:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(image) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except UnidentifiedImageError:
        expected = "a picture that Pillow reads, such as PNG or JPEG"
        raise build(DataError, str(image), expected, "another file") from None


def _grid(config: Any, pixels: Any) -> tuple[int, int]:
    """Rows and columns of patches."""
    size = getattr(config, "patch_size", None)
    if not size:
        expected = "a model that reads patches, with patch_size in its config"
        raise build(DataError, "--model", expected, f"one of type {config.model_type}")
    high, wide = (size, size) if isinstance(size, int) else size
    return pixels.shape[-2] // high, pixels.shape[-1] // wide


def _class_of(model: Any, made: Any) -> Sequence[str]:
    """The likeliest class and its probability, if the model is a classifier."""
    logits = getattr(made, "logits", None)
    if logits is None or logits.ndim != 2:
        return []
    share, best = logits.softmax(-1)[0].max(-1)
    label = model.config.id2label.get(int(best), str(int(best)))
    return [f"{visible(str(label), NAMED)}, {float(share):.0%}"]
