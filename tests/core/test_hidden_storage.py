"""Tensors that hide their memory or what they are from a kernel that takes pointers.

Each works through every kernel, gradient and statistic, or is refused in words.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import intently as it
from intently.nn import EncoderLayer, MultiHeadAttention
from intently.nn.models import Transformer, TransformerOptions

KERNELS = [name for name in it.kernels.available() if name != "flex"]
B, H, T, D = 2, 2, 40, 16
SHAPE = (B, H, T, D)

pytestmark = [
    pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape or SHAPE, generator=torch.Generator().manual_seed(seed))


def negative(x: Tensor) -> Tensor:
    """The same numbers, in a view whose memory holds −x."""
    view = torch.view_as_complex(torch.stack([x, -x], -1)).conj().imag
    assert view.is_neg() and torch.equal(view, x)
    return view


def of_conjugate(x: Tensor) -> Tensor:
    """The same numbers, as the real part of a conjugate."""
    return torch.view_as_complex(torch.stack([x, x], -1)).conj().real


VIEWS = {"negative": negative, "of a conjugate": of_conjugate}
STATISTICS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda a: a.dense(),
    "lse": lambda a: a.lse,
    "entropy": lambda a: a.entropy(),
    "received": lambda a: a.received(),
    "argmax": lambda a: a.argmax(),
    "top": lambda a: a.top(3)[0],
    "pool": lambda a: a.pool(4, 4),
    "rows": lambda a: a[..., 3:5, :],
    "scores": lambda a: a.scores[..., :3, :],
    "transposed": lambda a: a.mT @ numbers(9),
}


@pytest.mark.parametrize("kernel", [None, *KERNELS])
@pytest.mark.parametrize("view", VIEWS)
def test_views_that_promise_their_numbers(view: str, kernel: str | None) -> None:
    hide = VIEWS[view]
    plain = [numbers(n) for n in range(3)]
    bias, dy = numbers(3, H, T, T), numbers(4)
    for which in range(4):
        if kernel == "torch_fused" and which == 3:
            continue  # a bias with a gradient is not fused

        def run(hidden: bool, which: int = which) -> list[Tensor]:
            parts = [x.clone() for x in (*plain, bias)]
            leaves = [
                x.requires_grad_(kernel != "torch_fused" or n < 3) for n, x in enumerate(parts)
            ]
            used = [hide(x) if hidden and n == which else x for n, x in enumerate(leaves)]
            q, k, v, b = used
            with it.kernels.use(kernel) if kernel else warnings.catch_warnings():
                y = it.attention(q, k, v, bias=b)
            y.backward(hide(dy) if hidden else dy)
            return [y.detach(), *(x.grad for x in leaves if x.grad is not None)]

        for got, expected in zip(run(True), run(False), strict=True):
            torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("small", [True, False])
def test_views_in_the_short_way_and_in_statistics(view: str, small: bool) -> None:
    hide = VIEWS[view]
    q, k, v = (numbers(n)[:, :, : 5 if small else T] for n in range(3))
    for which in range(3):
        used = [hide(x) if n == which else x for n, x in enumerate((q, k, v))]
        torch.testing.assert_close(it.attention(*used), it.attention(q, k, v))
        used[1] = used[1].expand(B, H, *used[1].shape[-2:])
        torch.testing.assert_close(
            it.scaled_dot_product_attention(*used), F.scaled_dot_product_attention(q, k, v)
        )
    for name, statistic in STATISTICS.items():
        if small and name in ("pool", "transposed"):
            continue
        for pair in ((hide(q), k), (q, hide(k))):
            got, expected = statistic(it.attend(*pair)), statistic(it.attend(q, k))
            torch.testing.assert_close(got, expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("which", range(3))
def test_a_tensor_of_zeros_without_memory(which: int) -> None:
    parts = [numbers(n) for n in range(3)]
    parts[which] = torch.zeros(SHAPE)
    expected = it.attention(*parts)
    parts[which] = torch._efficientzerotensor(SHAPE)
    torch.testing.assert_close(it.attention(*parts), expected)


def no_arrays() -> dict[str, tuple[Callable[[], Tensor], str]]:
    """Tensors that are no array of numbers, and what is said of each."""
    x, plain = numbers(0), numbers(0, T, D)
    ragged = [numbers(0, H, 3, D), numbers(1, H, 5, D)]
    nested, dense = torch.nested.nested_tensor, "tensor with layout {}. Pass x.to_dense()."
    padded = "nested tensor. Pad it, and pass mask=it.padding(lengths)."
    mask = "MaskedTensor. Pass x.get_data(), and who may attend as mask=."
    return {
        "coo": (x.to_sparse, dense.format("torch.sparse_coo")),
        "csr": (plain.to_sparse_csr, dense.format("torch.sparse_csr")),
        "mkldnn": (x.to_mkldnn, dense.format("torch._mkldnn")),
        "nested": (lambda: nested(ragged), padded),
        "jagged": (lambda: nested(ragged, layout=torch.jagged), padded),
        "masked": (lambda: torch.masked.masked_tensor(x, x > 0), mask),
        "unknown": (lambda: x.as_subclass(Doubled), "Doubled. Pass x.as_subclass(torch.Tensor)."),
        "causal": (lambda: causal_upper_left(T, T), "CausalBias. Pass mask=it.causal()."),
    }


class Doubled(Tensor):
    """A class that gives functions another meaning."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", no_arrays())
def test_what_is_no_array_of_numbers_is_refused(kind: str) -> None:
    make, message = no_arrays()[kind]
    x, plain = make(), numbers(1)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("q", lambda: it.attention(x, plain, plain)),
        ("k", lambda: it.attend(plain, x)),
        ("v", lambda: it.attend(plain, plain) @ x),
        ("bias", lambda: it.attend(plain, plain, bias=x)),
        ("sinks", lambda: it.attend(plain, plain, sinks=x)),
        ("query", lambda: it.scaled_dot_product_attention(x, plain, plain)),
        ("value", lambda: it.scaled_dot_product_attention(plain, plain, x, is_causal=True)),
    ]
    for mask in (None, it.causal(), it.window(2, 0)):
        calls += [
            ("q", lambda mask=mask: it.attention(x, plain, plain, mask=mask)),
            ("k", lambda mask=mask: it.attention(plain, x, plain, mask=mask)),
            ("v", lambda mask=mask: it.attention(plain, plain, x, mask=mask)),
        ]
    for name, call in calls:
        with pytest.raises(it.errors.KindError) as error:
            call()
        assert str(error.value) == f"{name}: expected one array of numbers; got a {message}"


def test_a_sparse_mask_is_refused() -> None:
    q, sparse = numbers(0), torch.ones(T, T, dtype=torch.bool).to_sparse()
    with pytest.raises(
        it.errors.KindError, match=r"mask: expected one array of numbers; got a tens"
    ):
        it.attend(q, q, mask=sparse)


@pytest.mark.filterwarnings("ignore:Lower right causal bias:UserWarning")
@pytest.mark.parametrize("t", [T, 24])
def test_a_causal_bias_is_a_mask(t: int) -> None:
    q, k, v = numbers(0)[:, :, :t], numbers(1), numbers(2)
    for made in (causal_upper_left(t, T), causal_lower_right(t, T)):
        theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=made)
        torch.testing.assert_close(it.scaled_dot_product_attention(q, k, v, attn_mask=made), theirs)
        torch.testing.assert_close(it.attention(q, k, v, mask=made), theirs)
    with pytest.raises(
        it.errors.KindError, match=r"bias: .* got a CausalBias\. Pass mask=it\.caus"
    ):
        it.attend(q, k, bias=causal_upper_left(t, T))
    with pytest.raises(
        it.errors.ArgumentError, match=r"got a CausalBias for \(3, 40\)\. Pass it\.c"
    ):
        it.attend(q, k, mask=causal_upper_left(3, T))


# --- transforms, modes and graphs -----------------------------------------------------------------


@pytest.mark.parametrize("long", [False, True])
def test_functional_transforms(long: bool) -> None:
    t = 600 if long else 12
    q, k, v = (numbers(n, 2, 2, t, 8) for n in range(3))
    rule = it.causal()
    mask = torch.ones(t, t).tril().bool()

    def ours(q: Tensor) -> Tensor:
        return it.attention(q, k, v, mask=rule)

    def theirs(q: Tensor) -> Tensor:
        return (q @ k.mT / 8**0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v

    func = torch.func
    torch.testing.assert_close(
        func.vmap(lambda a, b, c: it.attention(a, b, c, mask=rule))(q, k, v), theirs(q)
    )
    for transform in (
        lambda f: func.grad(lambda x: f(x).square().sum())(q),
        lambda f: func.jvp(f, (q,), (k,))[1],
        lambda f: func.vjp(f, q)[1](v)[0],
    ):
        torch.testing.assert_close(transform(ours), transform(theirs), atol=1e-5, rtol=1e-4)
    short = q[:1, :1, :6]

    def few(f: Callable[..., Tensor]) -> Tensor:
        return f(lambda x: it.attention(x, k[:1, :1], v[:1, :1]))(short)

    expected = func.jacrev(lambda x: (x @ k[:1, :1].mT / 8**0.5).softmax(-1) @ v[:1, :1])(short)
    for jacobian in (func.jacrev, func.jacfwd):
        torch.testing.assert_close(few(jacobian), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kernel", [None, *KERNELS])
@pytest.mark.parametrize("masked", [False, True])
def test_many_gradients_at_once(kernel: str | None, masked: bool) -> None:
    q, k, v = (numbers(n, 1, 2, 300, 16).requires_grad_() for n in range(3))
    mask = it.causal() if masked else None
    with it.kernels.use(kernel) if kernel else warnings.catch_warnings():
        y = it.attention(q, k, v, mask=mask)
    dy = numbers(3, 3, *y.shape)
    together = torch.autograd.grad(y, (q, k, v), dy, is_grads_batched=True, retain_graph=True)
    for n, each in enumerate(dy):
        for all_, one in zip(together, torch.autograd.grad(y, (q, k, v), each, retain_graph=True)):
            torch.testing.assert_close(all_[n], one, atol=1e-5, rtol=1e-4)


def test_a_vectorised_jacobian() -> None:
    k, v = numbers(1, 1, 1, 300, 4), numbers(2, 1, 1, 300, 4)
    q = numbers(0, 1, 1, 5, 4)
    jacobian = torch.autograd.functional.jacobian
    got = jacobian(lambda x: it.attention(x, k, v), q, vectorize=True)
    torch.testing.assert_close(got, jacobian(lambda x: (x @ k.mT / 2).softmax(-1) @ v, q))


@pytest.mark.parametrize("kernel", [None, *KERNELS])
def test_fake_tensors(kernel: str | None) -> None:
    with FakeTensorMode(), it.kernels.use(kernel) if kernel else warnings.catch_warnings():
        q, k, v = (torch.empty(SHAPE, requires_grad=True) for _ in range(3))
        y = it.attention(q, k, v, mask=it.causal())
        y.sum().backward()
        assert y.shape == SHAPE and q.grad is not None and q.grad.shape == SHAPE
    meta = torch.empty(SHAPE, device="meta")
    assert it.attention(meta, meta, meta).shape == SHAPE


class Call(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *given: Tensor) -> Tensor:
        return self.call(*given)


TINY = TransformerOptions(
    source_vocabulary=11,
    target_vocabulary=13,
    width=32,
    inner=48,
    heads=4,
    encoder_layers=1,
    decoder_layers=1,
)


def blocks() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    ids = torch.randint(4, 11, (2, 9)), torch.randint(4, 11, (2, 7))
    found: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        "attention": (MultiHeadAttention(64, 4), (numbers(0, 2, T, 64),)),
        "layer": (EncoderLayer(32, 4, 48), (numbers(0, 2, T, 32),)),
        "translator": (Transformer(TINY), ids),
    }
    return {name: (model.eval(), given) for name, (model, given) in found.items()}


@pytest.mark.parametrize("name", blocks())
def test_graphs_of_models(name: str) -> None:
    model, given = blocks()[name]
    torch.manual_seed(1)
    with torch.no_grad():
        expected = model(*given)
        for graph in (
            torch.compile(model, fullgraph=True, backend="aot_eager"),
            torch.export.export(model, given).module(),
            torch.jit.trace(model, given, check_trace=False),
        ):
            torch.testing.assert_close(graph(*given), expected, atol=1e-5, rtol=1e-4)
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", blocks())
def test_onnx(name: str, dynamo: bool) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, given = blocks()[name]
    model = Call(model).eval()  # dynamo=False passes options that a signature takes by name only
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.no_grad():
            if dynamo:
                made = torch.onnx.export(model, given, dynamo=True, verbose=False)
                assert made is not None
                made.save(file)
            else:
                torch.onnx.export(model, given, file, dynamo=False)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    assert len(names) == len(given)
    (got,) = session.run(None, dict(zip(names, (x.numpy() for x in given))))
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(got), model(*given), atol=1e-4, rtol=1e-3)


# --- changes in place -----------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [None, *KERNELS])
@pytest.mark.parametrize("kind", ["allowed", "segments", "padding", "offset"])
def test_a_mask_that_changed_before_backward_is_noticed(kind: str, kernel: str | None) -> None:
    q, k, v = (numbers(n, 2, 2, 600, 16).requires_grad_() for n in range(3))
    if kernel == "torch_fused" or (kernel is None and kind == "padding"):
        pytest.skip("PyTorch's kernel keeps the mask that it was given")
    ids = torch.arange(600).div(100, rounding_mode="floor").expand(2, -1).clone()
    tensor, make = {
        "allowed": (torch.rand(600, 600) < 0.7, it.allowed),
        "segments": (ids, it.segments),
        "padding": (torch.tensor([500, 400]), it.padding),
        "offset": (torch.tensor([0, -5]), it.causal),
    }[kind]
    made = make(tensor)
    with it.kernels.use(kernel) if kernel else warnings.catch_warnings():
        y = it.attention(q, k, v, mask=made)
    before = torch.autograd.grad(y.square().sum(), q, retain_graph=True)[0]
    if tensor.dtype is torch.bool:
        tensor.logical_not_()
    else:
        tensor.sub_(7)
    try:
        after = torch.autograd.grad(y.square().sum(), q)[0]
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        torch.testing.assert_close(after, before)


@pytest.mark.parametrize("which", ["q", "k", "mask", "bias"])
def test_changes_under_inference_mode_change_no_answer(which: str) -> None:
    with torch.inference_mode():
        given = {"q": numbers(0), "k": numbers(1), "bias": numbers(2, T, T)}
        given["mask"] = torch.rand(T, T) < 0.7
        given = {name: x.clone() for name, x in given.items()}
        A = it.attend(**given)
        expected = A.dense()
        given[which].logical_not_() if which == "mask" else given[which][..., ::2].add_(1)
        torch.testing.assert_close(A.dense(), expected)
        torch.testing.assert_close(A @ given["k"].clone(), expected @ given["k"])


def test_keys_of_fewer_axes_have_gradients() -> None:
    q = numbers(0, 2, 2, 5, 8).requires_grad_()
    k, v = numbers(1, 2, 2, 8).requires_grad_(), numbers(2, 2, 2, 8).requires_grad_()
    it.attention(q, k, v).sum().backward()
    expected = torch.autograd.grad((q @ k.mT / 8**0.5).softmax(-1).matmul(v).sum(), (q, k, v))
    for x, grad in zip((q, k, v), expected):
        assert x.grad is not None
        torch.testing.assert_close(x.grad, grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kernel", [None, "tiled", "eager", "native"])
@pytest.mark.parametrize("t", [8, 600])
def test_values_of_more_heads_than_queries_have_gradients(t: int, kernel: str | None) -> None:
    if kernel == "native" and kernel not in KERNELS:
        pytest.skip("no native kernel here")
    q, k, v = (numbers(n, rows, t, 8).requires_grad_() for n, rows in enumerate((1, 1, 3)))
    with it.kernels.use(kernel) if kernel else warnings.catch_warnings():
        y = it.attention(q, k, v)
    got = torch.autograd.grad(y.square().sum(), (q, k, v))
    expected = torch.autograd.grad(((q @ k.mT / 8**0.5).softmax(-1) @ v).square().sum(), (q, k, v))
    for one, other in zip(got, expected):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_an_empty_batch_of_integers() -> None:
    q = torch.zeros(0, 2, 3, 4)
    for mask in (it.causal(offset=[]), it.padding([]), it.prefix([])):
        assert it.attention(q, q, q, mask=mask).shape == q.shape
