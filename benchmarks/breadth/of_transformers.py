"""Every model type of transformers' auto classes, built tiny with random weights."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.breadth import inputs
from benchmarks.breadth.families import IMPOSSIBLE
from benchmarks.breadth.given import CALLS, OPTIONS
from benchmarks.breadth.run import Way, stirred, told
from benchmarks.breadth.shrink import LEVELS, made

IMPLEMENTATIONS = ("sdpa", "eager")
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
STEPS = 5
PARAMETERS = 60_000_000
"""The largest model that is built, where a family cannot be made smaller."""
HEADS_THAT_GENERATE = (
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "TEXT_TO_WAVEFORM",
)
GENERATIONS: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},  # FSMT's own options say 5
    "batch": {"num_beams": 1},
    "beams": {"num_beams": 3},
    "static": {"num_beams": 1, "cache_implementation": "static", "disable_compile": True},
}


@functools.cache
def _mappings() -> dict[str, dict[str, Any]]:
    from transformers.models.auto import modeling_auto

    names = [n for n in vars(modeling_auto) if n.endswith("_MAPPING_NAMES") and n[0] == "M"]
    return {n.removesuffix("_MAPPING_NAMES"): dict(getattr(modeling_auto, n)) for n in names}


def warm() -> None:
    """Import what all models need, so that forked processes have it."""
    from transformers import GenerationMixin, PreTrainedModel, logging

    logging.set_verbosity_error()
    assert GenerationMixin and PreTrainedModel


def families() -> list[str]:
    """All model types of which an auto class builds a model."""
    import transformers

    exported = set(dir(transformers))
    found = {
        family
        for mapping in _mappings().values()
        for family, names in mapping.items()
        if exported.intersection(names if isinstance(names, (list, tuple)) else [names])
    }
    return sorted(found - IMPOSSIBLE)


def _classes(family: str) -> tuple[type | None, type | None]:
    """The class that runs forward, and the one that generates, if there is one."""
    import transformers
    from transformers import GenerationMixin

    def found(mapping: str) -> type | None:
        name = _mappings().get(mapping, {}).get(family)
        name = name[0] if isinstance(name, (list, tuple)) else name
        return getattr(transformers, name, None) if name else None

    every = [x for name in ("MODEL", *sorted(_mappings())) if (x := found(name)) is not None]
    own = [x for x in every if _is_own(x, transformers.CONFIG_MAPPING[family])] or every
    heads = [found(f"MODEL_FOR_{name}") for name in HEADS_THAT_GENERATE]
    able = (x for x in (*heads, *own[:1]) if x in own and issubclass(x, GenerationMixin))
    return next(iter(own), None), next(able, None)


def _is_own(kind: Any, config: type) -> bool:
    """Whether a class is built from this configuration, as far as it tells."""
    try:
        return kind.config_class in (config, None)
    except ImportError:  # what it needs is not installed: building it tells what
        return True


def ways(family: str, half: bool = True) -> Iterator[Way | tuple[str, str]]:
    """Forward under every implementation and padding, in ``half`` precision, and the generations.

    Where no implementation runs with the smallest configuration, the next larger one is tried.
    """
    from transformers import CONFIG_MAPPING

    base, head = _classes(family)
    if base is None:
        yield "forward", "its class is not exported"
        return
    failed: list[tuple[str, str]] = []
    for level in LEVELS:
        try:
            config = made(CONFIG_MAPPING[family], family, level)
        except Exception as error:
            failed.append(("config", told(error)))
            continue
        ran, tried = [], []
        for name in IMPLEMENTATIONS:
            try:
                model = _built(base, config, name)
                ways = list(_forward(model, family, name))
            except Exception as error:
                tried.append((name, told(error)))
                continue
            ran.append(name)
            yield from ways
            if half:
                yield from _halved(base, config, family, name)
        failed += tried
        if ran:
            yield from tried
            if head is not None and family not in CALLS:
                yield from _generations(head, config, family, ran)
            return
    yield from failed[:4]


def _built(kind: Any, config: Any, implementation: str) -> Any:
    """A model with random weights; raises if it is larger than one can run here."""
    torch.manual_seed(0)
    with torch.device("meta"):
        size = _size(kind, copy.deepcopy(config), implementation)
    if size > PARAMETERS:
        raise MemoryError(f"{size / 1e6:,.0f} million parameters")
    return stirred(_made(kind, copy.deepcopy(config), implementation))


def _made(kind: Any, config: Any, implementation: str) -> Any:
    """The model; parts that do not know an implementation run eagerly."""
    parts = {"": implementation} | dict.fromkeys(config.sub_configs, "eager")
    try:
        return kind._from_config(config, attn_implementation=implementation)
    except ValueError:
        return kind._from_config(config, attn_implementation=parts)


def _size(kind: Any, config: Any, implementation: str) -> int:
    """The number of parameters; 0 if the model cannot be built without memory."""
    try:
        made = _made(kind, config, implementation)
    except Exception:  # building it in earnest tells the reason
        return 0
    return sum(x.numel() for x in made.parameters())


def _forward(model: Any, family: str, name: str) -> Iterator[Way]:
    """Forward with padding at either side, or once if the model knows none; then with a picture."""
    if family in CALLS:
        call = functools.partial(CALLS[family], model)
        with torch.no_grad():
            call()
        yield Way(name, model, call)
        return
    for side in ("right", "left"):
        given = inputs.working(model, model.config, family, side)
        padded = "attention_mask" in given
        yield Way(f"{name} {side}" if padded else name, model, functools.partial(model, **given))
        if not padded:
            break
    seen = inputs.pictured(model, model.config, given)
    if seen is not None:
        yield Way(f"{name} picture", model, functools.partial(model, **seen))


def _halved(kind: Any, config: Any, family: str, name: str) -> Iterator[Way | tuple[str, str]]:
    """Forward in half precision, padded at the right; some models cannot."""
    for precision, dtype in PRECISIONS.items():
        try:
            model = _built(kind, config, name).to(dtype)
            given = inputs.working(model, model.config, family, "right")
        except Exception as error:
            yield f"{name} {precision}", told(error)
            continue
        yield Way(f"{name} {precision}", model, functools.partial(model, **given))


def _generations(
    head: Any, config: Any, family: str, ran: list[str]
) -> Iterator[Way | tuple[str, str]]:
    """Generate with each implementation that runs; the later ones only as a padded batch."""
    for n, name in enumerate(ran):
        settings = copy.deepcopy(config)
        if hasattr(settings, "is_decoder") and not settings.is_encoder_decoder:
            settings.is_decoder = True
        try:
            model = _built(head, settings, name)
            given = inputs.working(model, settings, family, _side(settings))
        except Exception as error:
            yield f"{name} generate", told(error)
            return
        given = {k: v for k, v in given.items() if not k.startswith("decoder_")}
        options = model.generation_config
        options.eos_token_id = None
        options.pad_token_id = 0
        for token in ("decoder_start_token_id", "bos_token_id"):
            if settings.is_encoder_decoder and getattr(options, token, None) is None:
                setattr(options, token, 2)
        for option, value in OPTIONS.get(family, {}).items():
            if value is None:
                given.pop(option)
            elif isinstance(value, torch.Tensor):
                given[option] = value
            else:
                setattr(options, option, value)
        for way in GENERATIONS if n == 0 else ("batch",):
            yield Way(
                f"{name} {way}",
                model,
                functools.partial(_generate, model, given, way),
                beams=GENERATIONS[way].get("num_beams", 0),
                batch=1 if way == "greedy" else inputs.BATCH,
            )


def _side(config: Any) -> str:
    return "right" if config.is_encoder_decoder else "left"


def _generate(model: Any, given: dict[str, Any], way: str) -> Any:
    options = {"max_new_tokens": STEPS, "do_sample": False, **GENERATIONS[way]}
    if way == "greedy":
        given = {k: v[:1] if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    kept = copy.deepcopy(model.generation_config)
    try:
        return model.generate(**given, **options)
    finally:  # some models write into it what they were told
        model.generation_config = kept
