"""`watch` changes nothing, acts for its own thread or task, nests, and is undone."""

from __future__ import annotations

import copy
import gc
import importlib.util
import inspect
import io
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import intently as it
from intently.observe.sources import by_hand
from intently.observe.watching import doors
from intently.observe.watching.scope import current, running

from ..show.refusals import refuses
from . import attending
from .attending import (
    PLAIN,
    FromImport,
    HoldsFunction,
    HoldsPartial,
    SelfAttention,
    Stack,
    close,
    seen_by,
    stack,
    watched,
)

pytestmark = pytest.mark.usefixtures("undone")


@pytest.mark.parametrize("kind", [SelfAttention, FromImport, HoldsFunction])
@pytest.mark.parametrize("how", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_outputs_are_the_same_and_weights_exact(kind: type[SelfAttention], how: Any) -> None:
    model, x = Stack(kind(), kind()), torch.randn(2, 7, 32)
    with how():
        seen, first = watched(model, x), model.layers[0]
        close(seen["layers.0", 0], first.weights(x), gap=1e-6)  # type: ignore[operator]
    assert seen.layers == ("layers.0", "layers.1")
    assert len(seen.calls) == (4 if kind is HoldsFunction else 2)
    if kind is HoldsFunction:
        assert HoldsFunction.static is PLAIN[0] and first.own is PLAIN[0]


def test_what_partials_dicts_and_lists_hold_is_seen() -> None:
    model, x = Stack(HoldsPartial(), HoldsPartial()), torch.randn(2, 7, 32)
    first: Any = model.layers[0]
    partials = (HoldsPartial.static, first.own, *first.several)
    with it.watch(model) as seen:
        inner = watched(model, x)
    assert (len(seen.calls), len(inner.calls)) == (20, 10)
    assert all(entry.verified for entry in seen.calls)
    close(seen["layers.0", 3], first.weights(x), gap=1e-6)
    after = (HoldsPartial.static, first.own, *first.several)
    assert all(x is y for x, y in zip(partials, after, strict=True))
    assert HoldsPartial.table["sdpa"] is PLAIN[0]


@pytest.mark.parametrize("kind", [HoldsFunction, HoldsPartial])
def test_a_model_may_be_copied_and_pickled_meanwhile(kind: type[SelfAttention]) -> None:
    model, x = Stack(kind()), torch.randn(2, 7, 32)
    with it.watch(model) as seen:
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        file = io.BytesIO()
        torch.save(model, file)
        assert all(torch.equal(other(x), model(x)) for other in copies)
    file.seek(0)
    copies.append(torch.load(file, weights_only=False))
    assert seen.layers == ("layers.0",)
    for other in copies:
        layer = vars(other.layers[0])
        assert getattr(layer["own"], "func", layer["own"]) is PLAIN[0]
        assert layer.get("several", PLAIN)[0] is PLAIN[0]
        assert len(seen_by(other, x).calls) == (2 if kind is HoldsFunction else 5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_graphs_that_attend_unseen_are_named() -> None:
    block, x = SelfAttention(), torch.randn(1, 5, 32)
    graphs: dict[str, nn.Module] = {
        "a ScriptModule of torch.jit": torch.jit.trace(block, x),  # type: ignore[dict-item]
        "an exported or traced graph": torch.export.export(block, (x,)).module(),
    }
    for kind, graph in graphs.items():
        model = Stack(graph, SelfAttention(), torch.jit.trace(nn.Linear(32, 32), x))  # type: ignore[arg-type]
        seen = seen_by(model, x)
        why = f"it is {kind}, which calls no function that could be watched: watch the model"
        assert seen.layers == ("layers.1",) and why in str(seen.coverage())
        assert list(seen.coverage().unseen) == ["layers.0"]
        assert not seen_by(model, x, layers="layers.1").coverage().unseen


def test_gradients_are_the_same() -> None:
    model, x = stack(), torch.randn(2, 7, 32)
    plain = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    with it.watch(model, gradients=True):
        found = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    assert all(map(torch.equal, found, plain))


def test_an_exception_undoes_it() -> None:
    with pytest.raises(ZeroDivisionError), it.watch(stack()):
        assert F.scaled_dot_product_attention is not PLAIN[0]
        raise ZeroDivisionError
    with pytest.raises(RuntimeError), it.watch(model := stack()) as seen:
        model(torch.zeros(1, 2, 3))
    assert seen.layers == ()


def test_watches_nest() -> None:
    one, two, x = stack(2), stack(1), torch.randn(1, 5, 32)
    with it.watch(one) as outer:
        one(x)
        with it.watch(two) as inner, it.watch() as every:
            one(x)
            two(x)
        two(x)
    assert [len(seen.calls) for seen in (outer, inner, every)] == [4, 1, 3]
    assert every.layers == ("Stack.layers.0", "Stack.layers.1")


def test_the_fast_path_of_transformer_encoders_stays_on() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 6, 32)
    padded = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    ran: list[int] = []
    fast = torch._transformer_encoder_layer_fwd

    def counted(*args: object) -> torch.Tensor:
        ran.append(1)
        return fast(*args)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
        watched(model, x, src_key_padding_mask=padded)
    assert len(ran) == 4


def test_a_shared_module_is_called_twice() -> None:
    layer, x = SelfAttention(), torch.randn(1, 5, 32)
    seen = seen_by(Stack(layer, layer), x)
    assert seen.layers == ("layers.0",)
    close(seen["layers.0", 1], layer.weights(x + layer(x)), gap=1e-6)
    with pytest.raises(it.errors.ArgumentError, match=r"seen\['layers.0', i\] with i from 0 to 1"):
        seen["layers.0"]


def test_modules_outside_the_model_are_not_seen() -> None:
    model, other, x = stack(1), SelfAttention(), torch.randn(1, 5, 32)
    with it.watch(model) as seen:
        other(x)
        F.scaled_dot_product_attention(x, x, x)
    assert seen.layers == ()
    with it.watch(model.layers[0]) as seen:
        model(x)
    assert seen.layers == ("SelfAttention",)


def test_without_a_model_all_is_seen() -> None:
    x = torch.randn(1, 5, 32)
    with it.watch() as seen:
        assert running() is None
        F.scaled_dot_product_attention(x, x, x)
        it.attention(x, x, x)
        SelfAttention()(x)
    assert seen.layers == ("attention", "SelfAttention")
    assert [entry.source for entry in seen.calls] == ["functional", "intently", "functional"]


def test_our_own_products_are_seen_once() -> None:
    q = torch.randn(1, 4, 600, 16)
    with it.watch() as seen:
        y = it.scaled_dot_product_attention(q, q, q, is_causal=True)
        it.attend(q, q, mask=it.causal()).matmul(q)
    assert [entry.source for entry in seen.calls] == ["intently", "intently"]
    assert torch.allclose(seen["attention", 0] @ q, y)


def test_layers_are_chosen_by_patterns() -> None:
    model, x = Stack(stack(2), stack(2)), torch.randn(1, 5, 32)
    for layers, count in (("layers.0", 2), ("layers.*.layers.1", 2), (["layers.1.layers.0"], 1)):
        assert len(seen_by(model, x, layers=layers).layers) == count, layers
    message = r"layers: expected .*; got 'layers.7'. The nearest are 'layers.[01]'"
    with pytest.raises(it.errors.ArgumentError, match=message), it.watch(model, layers="layers.7"):
        pass


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"store": "ram"}, it.errors.ArgumentError, 'store: expected "copy", "reference" or "dis'),
        ({"dtype": torch.float8_e5m2}, it.errors.ArgumentError, "dtype: expected float16"),
        ({"dtype": "half"}, it.errors.ArgumentError, "dtype: expected float16"),
        ({"tokens": [None]}, it.errors.KindError, "tokens: expected a list of texts"),
        (
            {"dtype": torch.half, "store": "reference"},
            it.errors.ArgumentError,
            "dtype: expected None with",
        ),
        ({"budget": -1}, it.errors.ArgumentError, "budget: expected an int ≥ 0; got -1"),
        ({"model": [1]}, it.errors.KindError, "model: expected an nn.Module"),
        ({"layers": [3]}, it.errors.KindError, "layers: expected names .* as text"),
    ],
)
def test_wrong_arguments(options: Any, kind: type[Exception], told: str) -> None:
    watch = it.watch(**options)
    refuses(kind, {told: watch.__enter__})
    told = "runs; got one that was not entered"
    refuses(it.errors.KernelError, {told: lambda: watch.__exit__(None, None, None)})


def test_a_pipeline_is_answered_with_the_models_in_it() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.encoder, self.model = nn.Linear(2, 2), nn.Linear(2, 2)

    told = "got Pipeline. Pass a module inside it: pipeline.model, pipeline.encoder"
    pipeline: Any = Pipeline()
    refuses(
        it.errors.KindError,
        {told: it.watch(pipeline).__enter__, told + ".": lambda: it.edit(pipeline, it.edits.off())},
    )


def test_keras_on_another_backend_is_answered_with_the_backend() -> None:
    if importlib.util.find_spec("keras") is None:
        pytest.skip("needs Keras")
    code = "import intently as it, keras; it.watch(keras.layers.Dense(2)).__enter__()"
    environment = {**os.environ, "KERAS_BACKEND": "numpy"}
    run = [sys.executable, "-c", code]
    told = subprocess.run(run, capture_output=True, text=True, env=environment).stderr
    assert "on its torch backend only: set KERAS_BACKEND=torch" in told, told


def test_a_watch_is_entered_and_left_once() -> None:
    watch = it.watch()
    told = "runs; got one that was not entered"
    refuses(it.errors.KernelError, {told: lambda: watch.__exit__(None, None, None)})
    with watch:
        pass
    refuses(
        it.errors.KernelError,
        {
            "one block for each watch": watch.__enter__,
            "runs; got one that was left": lambda: watch.__exit__(None, None, None),
        },
    )


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("cycle", [False, True])
def test_a_watch_that_is_dropped_and_never_left_is_undone(cycle: bool, follows: bool) -> None:
    model, x = stack(1), torch.randn(1, 5, 32)
    watch = it.watch(model, deep=follows)
    seen = watch.__enter__()
    model(x)
    if cycle:
        watch.itself = watch  # type: ignore[attr-defined]
    del watch
    gc.collect()
    assert doors.active() == 0 and current() == ()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    model(x)
    assert len(seen.calls) == 1 and seen["layers.0"].shape == (1, 4, 5, 5)


def test_what_the_collector_asks_for_while_names_are_replaced_is_done_afterwards() -> None:
    """A finaliser may run at any time, in the thread that holds the lock."""
    left = it.watch()
    left.__enter__()
    held = [left]
    del left

    def drops(original: object) -> object:
        held.clear()
        return original

    class Owner:
        name = len

    claim = doors.Claim([doors.Target(Owner, "name", drops)])  # type: ignore[arg-type]
    doors.install(claim)
    assert not held and doors.active() == 1
    doors.remove(claim)
    assert Owner.name is len


def test_what_was_left_replaced_is_mended_by_the_next_watch() -> None:
    class Owner:
        name = len

    target = doors.Target(Owner, "name", lambda original: sum)
    doors.install(doors.Claim([target]))  # whose claim is gone
    assert Owner.name is sum
    with it.watch():
        assert Owner.name is len


def test_ctrl_c_at_any_instruction_leaves_nothing_replaced() -> None:
    def functions() -> tuple[Any, ...]:
        return (
            torch.softmax,
            torch.Tensor.softmax,
            F.softmax,
            attending.scaled_dot_product_attention,
        )

    model, x, plain = (
        nn.MultiheadAttention(8, 2, batch_first=True),
        torch.randn(1, 3, 8),
        functions(),
    )
    places: dict[tuple[CodeType, int], int] = {}
    """Each instruction that begins or ends a watch, and how often it runs."""
    files = doors.__file__, inspect.getfile(it.watch)
    wanted: tuple[CodeType, int] | None = None
    left = 0

    def traced(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        place = frame.f_code, frame.f_lasti
        if event == "opcode" and wanted is None:
            places[place] = places.get(place, 0) + 1
        elif event == "opcode" and place == wanted:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return traced

    def watches() -> it.Recording:
        before = sys.gettrace()
        sys.settrace(traced)
        try:
            with it.watch(model) as seen:
                model(x, x, x)
        finally:
            sys.settrace(before)
        return seen

    watches()  # everything is imported, and the modules are searched
    places.clear()
    watches()
    assert len(places) > 300
    for place, times in places.items():
        for left in {1, times}:
            wanted = place
            with pytest.raises(KeyboardInterrupt):
                watches()
            assert left == 0 and doors.active() == 0 and current() == (), place
            now = F.scaled_dot_product_attention, nn.Module.__call__, nn.Module._call_impl
            assert now == PLAIN and functions() == plain, place
    wanted = None
    assert [call.name for call in watches().calls] == ["MultiheadAttention"]


@pytest.mark.parametrize("when", ["__enter__", "__exit__"])
def test_a_mode_that_fails_leaves_nothing_replaced(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails:
        def __init__(self, whole: bool) -> None:
            assert whole

        def __enter__(self) -> None:
            if when == "__enter__":
                raise ZeroDivisionError

        def __exit__(self, *error: object) -> None:
            raise ZeroDivisionError

    monkeypatch.setattr(by_hand, "following", Fails)
    with pytest.raises(ZeroDivisionError), it.watch(deep=True):
        assert when == "__exit__"


def test_no_special_method_is_replaced_for_a_model() -> None:
    """Python would update every subclass of `nn.Module`, up to thousands."""
    with it.watch(stack()):
        assert (nn.Module.__call__, nn.Module._call_impl) != PLAIN[1:]
        assert nn.Module.__call__ is PLAIN[1]


def test_a_forward_that_took_the_place_of_another_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    def forward(self: Layer, x: torch.Tensor) -> torch.Tensor:
        return x if x.ndim else flash_attn_func(x)  # type: ignore[name-defined]

    model, x = Stack(Layer()), torch.randn(1, 5, 32)  # type: ignore[arg-type]
    assert not seen_by(model, x).coverage().unseen
    monkeypatch.setattr(Layer, "forward", forward)
    assert "its code names flash_attn_func" in seen_by(model, x).coverage().unseen["layers.0"]


def test_names_imported_within_the_block_are_put_back(
    imports: Callable[[str], dict[str, object]],
) -> None:
    with it.watch():
        found = imports("imported_meanwhile")
        assert found["f"] is not PLAIN[0]
    assert found["f"] is PLAIN[0]


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, object]]:
    """Make a module that imports the function; return its names."""

    def made(name: str) -> dict[str, object]:
        module = type(sys)(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec("from torch.nn.functional import scaled_dot_product_attention as f", vars(module))
        return vars(module)

    return made


def test_a_module_that_takes_the_place_of_another_is_searched(
    imports: Callable[[str], dict[str, object]],
) -> None:
    old = imports("old_module")
    with it.watch():
        assert old["f"] is not PLAIN[0]
    del sys.modules["old_module"]  # one less, and one more
    new = imports("new_module")
    with it.watch():
        assert new["f"] is not PLAIN[0]
    with it.watch():
        del sys.modules["new_module"]
        bound = imports("bound_meanwhile")
        assert bound["f"] is not PLAIN[0]
    assert bound["f"] is PLAIN[0]


def test_a_patch_of_somebody_else_stays() -> None:
    with it.watch():
        vars(F)["scaled_dot_product_attention"] = print
    found, vars(F)["scaled_dot_product_attention"] = F.scaled_dot_product_attention, PLAIN[0]
    assert found is print


class Processor(nn.Module):
    def __call__(self, x: Any, added: Any = 0) -> Any:
        return x + added


class Host(nn.Module):
    """Passes on what its processor takes, as the attention of diffusers does."""

    def __init__(self) -> None:
        super().__init__()
        self.processor = Processor()

    def forward(self, x: Any, **given: Any) -> Any:
        taken = inspect.signature(self.processor.__call__).parameters
        return self.processor(x, **{n: y for n, y in given.items() if n in taken})


def test_the_signature_of_a_module_stays() -> None:
    host, x = Host(), torch.ones(3)
    with it.watch(host):
        assert torch.equal(host(x, added=1), x + 1)


def test_modes_of_the_user_see_the_model_alone() -> None:
    model, x = stack(1), torch.randn(1, 5, 32)
    with FlopCounterMode(display=False) as plain:
        model(x)
    with it.watch(model) as seen, FlopCounterMode(display=False) as watched:
        model(x)
    assert plain.get_total_flops() == watched.get_total_flops() and seen.calls[0].verified


def test_checkpointing_is_seen_once() -> None:
    model, x = stack(1), torch.randn(1, 5, 32, requires_grad=True)
    with it.watch(model) as seen:
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert len(seen.calls) == 1


def test_what_holds_no_numbers_is_listed() -> None:
    model, x = stack(1), torch.randn(3, 1, 5, 32)
    with it.watch(model) as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch has no batching rule for it
        torch.func.vmap(model)(x)
    assert "torch.func" in seen.coverage().unseen["layers.0"]
    with it.watch(model.to("meta")) as seen:
        model(x[0].to("meta"))
    assert "meta device" in str(seen.coverage())
    with pytest.raises(it.errors.ArgumentError, match=r"meta device"):
        seen["layers.0"]


def test_tracing_traces_nothing_of_ours() -> None:
    model, x = stack(1), torch.randn(1, 5, 32)
    with it.watch(model) as seen:
        traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), model(x)) and "jit.trace" in str(seen.coverage())
