"""Contract 9: errors name the argument, what was expected, what came, and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import intently as it
from intently import errors
from intently.errors import ArgumentError, KindError

from ..messages import Refusals, raises

pytestmark = pytest.mark.usefixtures("as_users_call")


def x(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


CASES: Refusals = {
    KindError: {
        "k: expected dtype and device of q, torch.float64 on cpu; got torch.float32 on cpu. "
        "Convert one of them with .to(…), an array with .astype(…).": lambda: it.attend(
            np.ones((2, 3)), x(2, 3)
        ),
        "k: expected numbers in rows of one length; got a ragged list. Fill short rows up, and "
        "hide what was added: mask=it.padding(lengths).": lambda: it.attend(
            x(2, 3), [[1.0], [1.0, 2.0]]
        ),
        "q: expected real numbers: a tensor, a NumPy array or a list of them; got "
        "dtype complex": lambda: it.attend([[1j]], x(2, 1)),
        "k: expected real numbers: a tensor, a NumPy array or a list of them; got dtype "
        "torch.bool. Booleans say who may attend: mask=.": lambda: it.attend(
            x(2, 3), x(2, 3).bool()
        ),
        "q: expected float32, float64, bfloat16 or float16; got dtype "
        "torch.float8_e5m2. Convert": lambda: it.attend(x(2, 3).to(torch.float8_e5m2), x(2, 3)),
        "mask: expected a boolean tensor, True where a query may attend; got zeros and ones of "
        "dtype torch.int64. "
        "If 1 means attend, pass torch.tensor(mask).bool().": lambda: it.attend(
            x(2, 3), x(2, 3), mask=[[1, 0]]
        ),
        "mask: expected a boolean tensor, True where a query may attend; got "
        "[[True], [True, Fals": lambda: it.attend(x(2, 3), x(2, 3), mask=[[True], [True, False]]),
        "scale: expected real numbers": lambda: it.attend(x(2, 3), x(2, 3), scale=[[True]]),
        "k: expected dtype and device of q, torch.float32 on cpu; got torch.float64 on cpu. "
        "Convert one of them with .to(…), an array with .astype(…).": lambda: it.attend(
            x(2, 3), x(2, 3).double()
        ),
        "score: expected a score such as intently.core.scores.Dot(); got str.": lambda: it.attend(
            x(2, 3), x(2, 3), score="dot"
        ),
        "bias: expected real numbers: a tensor, a NumPy array or a list of them; got dtype "
        "torch.bool. Booleans say who may attend: mask=.": lambda: it.attend(
            x(2, 3), x(2, 3), bias=torch.ones(2, 2, dtype=torch.bool)
        ),
        "bias: expected real numbers: a tensor, a NumPy array or a list of them; got "
        "str.": lambda: it.attend(x(2, 3), x(2, 3), bias="alibi"),
        "sinks: expected real numbers: a tensor, a NumPy array or a list of them; "
        "got str.": lambda: it.attend(x(2, 3), x(2, 3), sinks="1"),
        "v: expected dtype and device of the matrix, torch.float32 on cpu; got torch.float64 on "
        "cpu. Convert it with .to(…), an array with .astype(…); lists and integers "
        "always fit.": lambda: it.attention(x(2, 3), x(2, 3), np.ones((2, 3))),
        "v: expected real numbers: a tensor, a NumPy array or a list of them; got "
        "booleans.": lambda: it.attend(x(2, 3), x(2, 3)) @ [[True], [False]],
        "v: expected dtype and device of the matrix, torch.float32 on cpu; got torch.float16 on "
        "cpu. Convert it with .to(…), an array": lambda: it.attention(
            x(2, 3), x(2, 3), x(2, 3).half()
        ),
    },
    ArgumentError: {
        "q: expected at least two axes (…, steps, d); got shape (2,).": lambda: it.attend(
            [1.0, 2.0], x(2, 3)
        ),
        "q: expected at least two axes (…, steps, d); got shape (3,).": lambda: it.attend(
            x(3), x(2, 3)
        ),
        "k: expected shape (…, s, d=3) like q; got shape (2, 4). Queries and keys of a dot "
        "product have the same width.": lambda: it.attend(x(2, 3), x(2, 4)),
        "k: expected leading axes that broadcast with those of q (2, 3); got shape (2, 2, 5, 4). "
        "Heads are axis −3; with four or more axes h may be a multiple of g.": lambda: it.attend(
            x(2, 3, 5, 4), x(2, 2, 5, 4)
        ),
        "k: expected leading axes that broadcast with those of q (4,); got shape (2, 5, 4). "
        "Heads are axis −3; with four or more axes h may be a multiple of g.": lambda: it.attend(
            x(4, 5, 4), x(2, 5, 4)
        ),
        "dropout: expected a probability in [0, 1); got 1.0.": lambda: it.attend(
            x(2, 3), x(2, 3), dropout=1.0
        ),
        "dropout: expected a probability in [0, 1); got nan.": lambda: it.attend(
            x(2, 3), x(2, 3), dropout=float("nan")
        ),
        "softcap: expected a finite number > 0, or None; got 0.0.": lambda: it.attend(
            x(2, 3), x(2, 3), softcap=0.0
        ),
        "bias: expected a shape that broadcasts to (…, t, s) = (2, 4); got shape (4, 2).": lambda: (
            it.attend(x(2, 3), x(4, 3), bias=x(4, 2))
        ),
        "bias: expected a shape that broadcasts to (b, h, t, s) = (2, 3, 4, 5); got shape "
        "(2, 4, 5). Its first axis is b, where broadcasting looks for h. Use m[:, None], shape "
        "(b, 1, t, s).": lambda: it.attend(x(2, 3, 4, 4), x(2, 3, 5, 4), bias=x(2, 4, 5)),
        "sinks: expected shape () or (h,) = (3,); got shape (2,).": lambda: it.attend(
            x(2, 3, 4, 4), x(2, 3, 5, 4), sinks=x(2)
        ),
        "scale: expected a shape that broadcasts to (…, t, s) = (1, 1); got shape "
        "(2, 1).": lambda: it.attend(x(2, 3), x(2, 3), scale=x(2, 1)),
        "v: expected g=2 heads like k; got shape (2, 4, 5, 3).": lambda: (
            it.attend(x(2, 4, 5, 3), x(2, 2, 5, 3)) @ x(2, 4, 5, 3)
        ),
        "v: expected leading axes that broadcast with (2, 4); got shape (3, 4, 5, 3).": lambda: (
            it.attend(x(2, 4, 5, 3), x(2, 4, 5, 3)) @ x(3, 4, 5, 3)
        ),
        "v: expected shape (…, s=2, e); got shape (3, 3). V holds one row for each key.": lambda: (
            it.attention(x(2, 3), x(2, 3), x(3, 3))
        ),
        "c: expected an even width ≥ 2; got 3. Sines and cosines come in pairs.": lambda: (
            it.sinusoidal(4, 3)
        ),
        "t: expected a number of positions ≥ 0; got -1.": lambda: it.sinusoidal(-1, 4),
    },
}


test_message = raises(CASES)


def test_each_error_is_also_pythons_own_kind() -> None:
    pairs = {
        errors.ArgumentError: ValueError,
        errors.RangeError: IndexError,
        errors.KindError: TypeError,
        errors.StaleError: RuntimeError,
        errors.MemoryRefused: MemoryError,
        errors.KernelError: RuntimeError,
        errors.DataError: ValueError,
        errors.CheckpointError: RuntimeError,
    }
    for ours, pythons in pairs.items():
        assert issubclass(ours, pythons) and issubclass(ours, errors.IntentlyError)


def test_the_builder() -> None:
    full = errors.build(ArgumentError, "n", "an int", 2.5, "it counts", "round it!")
    assert str(full) == "n: expected an int; got 2.5. It counts. Round it!"
    assert str(errors.build(KindError, "n", "an int", None)) == "n: expected an int; got None."
    assert errors.shape_of(torch.ones(2, 3)) == "shape (2, 3)"
