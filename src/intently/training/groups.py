"""Groups of training options: a small frozen dataclass each, every field with a rule and help.

`intently.training.options` makes one value of them.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from intently.errors import ArgumentError, KindError, build
from intently.models.kinds import KINDS
from intently.models.recurrent import ATTENTIONS
from intently.models.recurrent_steps import CELLS
from intently.models.transformer import FEED_FORWARDS, POSITIONS
from intently.text.vocabularies import REMOVED


class Rule(NamedTuple):
    """A rule for a value, in words and as a test."""

    words: str
    test: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def one_of(*values: str) -> Rule:
    """Return the rule that a value is one of these words."""
    return Rule("one of " + ", ".join(map(repr, values)), lambda value: value in values, values)


COUNT = Rule("an integer from 1 to 2**31 - 1", lambda n: 1 <= n < 2**31)
LAYERS = Rule("an integer from 1 to 1,000", lambda n: 1 <= n <= 1000)
"""As many as Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers"."""
BATCHES = Rule("an integer from 1 to 10,000", lambda n: 1 <= n <= 10**4)
ENTRIES = Rule("an integer from 1 to 10,000,000", lambda n: 1 <= n <= 10**7)
THREADS = Rule("an integer from 1 to 1024", lambda n: 1 <= n <= 1024)
COUNT_FROM_0 = Rule("an integer from 0 to 2**31 - 1", lambda n: 0 <= n < 2**31)
POSITIVE = Rule("a number above 0", lambda x: x > 0)
FROM_0 = Rule("a number of at least 0", lambda x: x >= 0)
SHARE = Rule("a number from 0 up to, but not, 1", lambda x: 0 <= x < 1)
FRACTION = Rule("a number from 0 to 1", lambda x: 0 <= x <= 1)
SEED = Rule("an integer from 0 to 2**64 - 1", lambda n: 0 <= n < 2**64)
TOKENIZERS = one_of("subword", "word", "character")


def option(default: Any, rule: Rule | None, help: str) -> Any:
    """Return a dataclass field with a default, the rule for its value, and one line of help."""
    return dataclasses.field(default=default, metadata={"rule": rule, "help": help})


def check_option(name: str, value: Any, hint: Any, rule: Rule | None) -> Any:
    """Return an option's value in its type; raise KindError or ArgumentError with its name."""
    value = _typed(name, value, hint)
    if rule is not None and value is not None and not rule.test(value):
        cause = REMOVED.get(value) if rule is TOKENIZERS else None
        raise build(ArgumentError, name, rule.words, repr(value), cause)
    return value


class _Group:
    """Checks every field of a dataclass of options against its type and its rule."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(typing.cast(Any, self)):
            name, rule = field.name, field.metadata["rule"]
            value = check_option(name, getattr(self, name), hints[name], rule)
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class ModelOptions(_Group):
    """The size of the model; options that recurrent models lack are the Transformer's.

    >>> ModelOptions(heads=0)
    Traceback (most recent call last):
    ...
    intently.errors.ArgumentError: heads: expected an integer from 1 to 2**31 - 1; got 0.
    """

    width: int = option(128, COUNT, "model width c")
    heads: int = option(4, COUNT, "attention heads h; each has width / heads numbers")
    encoder_layers: int = option(2, LAYERS, "encoder layers")
    decoder_layers: int = option(2, LAYERS, "decoder layers")
    inner: int = option(512, COUNT, "width of the feed-forward layers")
    norm: str = option("pre", one_of("pre", "post"), "layer norm before or after each block")
    dropout: float = option(0.1, SHARE, "share of activations dropped in training")
    share: str = option(
        "output", one_of("output", "all"), "tied embeddings: target and output, or all three"
    )


@dataclass(frozen=True)
class TextOptions(_Group):
    """Tokenizers and the length of texts."""

    source_tokenizer: str = option("subword", TOKENIZERS, "tokenizer of the source")
    source_size: int = option(8000, ENTRIES, "largest source vocabulary, in tokens")
    target_tokenizer: str = option("subword", TOKENIZERS, "tokenizer of the target")
    target_size: int = option(8000, ENTRIES, "largest target vocabulary, in tokens")
    min_frequency: int = option(1, COUNT, "leave rarer pieces out of the vocabularies")
    max_length: int = option(128, COUNT, "skip pairs with more tokens on a side")
    joint: bool = option(False, None, "one tokenizer for both sides; share=all implies it")
    guided: str | None = option(
        None,
        None,
        "head that --guide teaches (default: decoder.N.cross_attention.0, N the last layer but "
        "one)",
    )


@dataclass(frozen=True)
class ScheduleOptions(_Group):
    """The length of the training, and the learning rate at each step."""

    steps: int = option(10_000, COUNT, "training steps")
    seconds: float | None = option(
        None, POSITIVE, "stop after this many seconds; the warm-up takes a fifth of them at most"
    )
    learning_rate: float = option(2e-3, POSITIVE, "highest learning rate")
    warmup: int | None = option(
        None,
        COUNT_FROM_0,
        "steps in which the learning rate rises (default: a fifth of the steps, at most 500)",
    )
    schedule: str = option(
        "inverse_sqrt",
        one_of("inverse_sqrt", "cosine", "constant"),
        "learning rate after the warm-up",
    )
    cooldown: float = option(
        0.0, FRACTION, "share of the steps, at the end, in which the rate falls to zero"
    )
    patience: int = option(
        0, COUNT_FROM_0, "stop after this many evaluations without a better one; 0: never"
    )


@dataclass(frozen=True)
class OptimiserOptions(_Group):
    """The optimiser, its batches and its regularisation."""

    optimiser: str = option(
        "adamw",
        one_of("adamw", "muon"),
        "optimiser (muon: for the hidden matrices; adamw for the rest)",
    )
    batch_tokens: int = option(3000, COUNT, "target tokens in a batch, padding included")
    label_smoothing: float = option(0.1, SHARE, "probability spread over all tokens")
    accumulate: int = option(1, BATCHES, "batches whose gradients make one step")
    clip: float = option(1.0, POSITIVE, "largest norm of the gradient")
    weight_decay: float = option(0.01, FROM_0, "weight decay; embeddings and norms are exempt")
    betas: tuple[float, float] = option(
        (0.9, 0.98),
        Rule("two numbers from 0 up to, but not, 1", lambda b: all(0 <= x < 1 for x in b)),
        "decay of the means of gradients and of their squares",
    )
    guide_weight: float = option(
        0.05, FROM_0, "weight of a guided query in the loss; a target token weighs 1"
    )


@dataclass(frozen=True)
class RunOptions(_Group):
    """Randomness, threads, evaluations and checkpoints."""

    seed: int = option(1, SEED, "random seed")
    threads: int | None = option(None, THREADS, "PyTorch threads (default: all)")
    save_every: int = option(1000, COUNT, "steps between checkpoints")
    evaluate_every: int = option(1000, COUNT, "steps between evaluations on the dev set")
    keep: int = option(2, COUNT, "newest checkpoints to keep, besides the best")
    best_by: str | None = option(
        None,
        None,
        "dev score that chooses the best checkpoint: bleu, chrf, exact or loss; the lower "
        "loss decides between equals (default: bleu; chrf where the target has no spaces "
        "between words)",
    )


@dataclass(frozen=True)
class ArchitectureOptions(_Group):
    """The kind of model; all options but the first are for recurrent models."""

    model: str = option("transformer", one_of(*KINDS), "kind of model")
    cell: str = option("gru", one_of(*CELLS), "cell of a recurrent model")
    attention: str = option(
        "additive",
        one_of(*ATTENTIONS),
        "attention of a recurrent model (none: fixed vector; additive: Bahdanau; others: Luong)",
    )
    bidirectional: bool = option(True, None, "recurrent encoder reads in both directions")
    input_feeding: bool = option(True, None, "recurrent cell also reads its last attention output")


@dataclass(frozen=True)
class VariantOptions(_Group):
    """Variants of the Transformer, see `intently.models.TransformerOptions`."""

    kv_heads: int | None = option(
        None, COUNT, "heads of keys and values (default: as many as heads)"
    )
    positions: str = option("sinusoidal", one_of(*POSITIONS), "position encoding")
    feed_forward: str = option(
        "relu",
        one_of(*FEED_FORWARDS),
        "feed-forward layer; gated is SwiGLU (two thirds of inner give the same size)",
    )
    learned_steps: int = option(512, COUNT, "longest text that learned positions know")


@dataclass(frozen=True)
class MachineOptions(_Group):
    """Hardware: device, precision and processes."""

    device: str = option(
        "auto", one_of("auto", "cpu", "cuda"), "device to train on; auto: CUDA if available"
    )
    precision: str = option(
        "float32",
        one_of("float32", "bfloat16"),
        "precision of matrix products; bfloat16 needs hardware support",
    )
    parallel: str = option(
        "data",
        one_of("data", "sharded"),
        "several processes: a whole model in each, or a shard of one",
    )


def _typed(name: str, value: Any, hint: Any) -> Any:
    """Return ``value`` in the type ``hint``: an int serves as a float, a list as a tuple."""
    inner = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return None if value is None else _typed(name, value, inner[0])
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple) and len(value) == len(inner):
            return tuple(_typed(name, v, h) for v, h in zip(value, inner, strict=True))
    elif hint is float:
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
    elif type(value) is hint:
        return value
    words = {
        int: "an integer",
        float: "a finite number",
        str: "a word in quotes",
        bool: "true or false",
    }
    expected = words.get(hint, f"{len(inner)} numbers")
    raise build(KindError, name, expected, f"{value!r} ({type(value).__name__})")
