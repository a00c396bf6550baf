"""The learning rate of a step, and the optimiser that takes it.

AdamW updates all parameters, or Muon the hidden matrices and AdamW the rest. The learning rate is a
pure function of the step, so checkpoints need not store it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from intently.nn.models.seq2seq import check_alike
from intently.tasks.training.options import OptimiserOptions, ScheduleOptions, TrainingOptions

SHARE = 0.2
"""Part of a run in which the rate rises: of its steps by default, of its seconds at most."""

LONGEST = 500
"""Default warm-up of a long run, in steps."""


def warmup_of(steps: int, longest: int = LONGEST) -> int:
    """Return the default warm-up, in steps: a fifth of a short run.

    >>> warmup_of(150), warmup_of(10_000)
    (30, 500)
    """
    return min(longest, int(SHARE * steps))


def learning_rate(step: int, options: ScheduleOptions) -> float:
    """Return the learning rate of step 1, 2, …, ``options.steps``.

    It rises linearly to ``options.learning_rate`` over ``warmup`` steps, by default `warmup_of` the
    run. Then it

    - falls with the inverse square root of the step (``"inverse_sqrt"``: Vaswani et al. 2017,
      equation 3, rescaled to its peak),
    - falls as half a cosine to zero at the last step (``"cosine"``: Loshchilov and Hutter 2017,
      "SGDR", equation 5, one cycle without restarts), or
    - stays (``"constant"``).

    Over the last ``cooldown`` share of the steps, the rate is multiplied by a factor that falls
    linearly to zero; a cosine needs none. A run resumed with other ``steps`` follows the cosine, or
    the cooldown, of its new length.

    >>> options = ScheduleOptions(steps=400, learning_rate=1.0, warmup=100, cooldown=0.25)
    >>> [learning_rate(step, options) for step in (50, 100, 225, 400)]
    [0.5, 1.0, 0.6666666666666666, 0.005]
    >>> options = ScheduleOptions(steps=400, learning_rate=1.0, warmup=100, schedule="cosine")
    >>> [round(learning_rate(step, options), 3) for step in (50, 100, 200, 250, 400)]
    [0.5, 1.0, 0.75, 0.5, 0.0]
    """
    warmup = warmup_of(options.steps) if options.warmup is None else options.warmup
    warmup = max(1, warmup)
    rate = options.learning_rate * min(1.0, step / warmup)
    if step > warmup and options.schedule == "inverse_sqrt":
        rate *= (warmup / step) ** 0.5
    elif step > warmup and options.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * (step - warmup) / (options.steps - warmup)))
    cooling = options.cooldown * options.steps
    return rate * min(1.0, (options.steps + 1 - step) / cooling) if cooling >= 1 else rate


def risen(seconds: float, options: ScheduleOptions) -> float:
    """Return how much of the time for warming up has passed, 1 for all; 0 for a run without limit.

    A run with ``seconds`` does not know how many steps fit, so its warm-up ends after its steps, or
    after a fifth of the time, whichever comes first.

    >>> risen(5.0, ScheduleOptions(seconds=50)), risen(5.0, ScheduleOptions())
    (0.5, 0.0)
    """
    return 0.0 if options.seconds is None else min(1.0, seconds / (SHARE * options.seconds))


def settled(
    options: TrainingOptions,
    stored: TrainingOptions | None = None,
    *,
    longest: int = LONGEST,
    score: str | None = None,
) -> TrainingOptions:
    """Return the options with the default warm-up, and the default ``score`` as best_by, filled in.

    A resumed run takes those of its ``stored`` options, so that more steps do not change the
    warm-up; a new run takes `warmup_of`.

    >>> settled(TrainingOptions().with_flags(steps=150)).schedule.warmup
    30
    """
    usual = {"warmup": warmup_of(options.schedule.steps, longest), "best_by": score}
    if stored is not None:
        before = {"warmup": stored.schedule.warmup, "best_by": stored.run.best_by}
        usual |= {name: value for name, value in before.items() if value is not None}
    given = {"warmup": options.schedule.warmup, "best_by": options.run.best_by}
    return options.with_flags(**{n: usual[n] for n, value in given.items() if value is None})


class Optimiser:
    """One or two PyTorch optimisers that step together, with a flat mapping of tensors as state.

    Weight decay applies only to weight matrices: parameters with two axes and "weight" in their
    name that are not embeddings. Embedding tables, norms and biases do not decay. AdamW after
    Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization"; Muon after Jordan et al.
    2024, its
    updates scaled to the size of AdamW's (Liu et al. 2025, "Muon is Scalable for LLM Training",
    section 2.2), so that one learning rate serves both.

    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
    >>> optimiser = Optimiser(model, OptimiserOptions(weight_decay=0.1))
    >>> [names for names in optimiser.groups.values()]
    [['1.weight'], ['0.weight', '1.bias']]
    """

    def __init__(self, model: nn.Module, options: OptimiserOptions) -> None:
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._names: dict[Tensor, str] = {p: name for name, p in self.parameters.items()}
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        self.groups: dict[str, list[str]] = {"matrices": [], "others": []}
        for name, parameter in self.parameters.items():
            own = name.rpartition(".")[2]  # weight, qkv_weight, or weight_hh_l0 of a recurrent cell
            matrix = parameter.ndim == 2 and "weight" in own and id(parameter) not in tables
            self.groups["matrices" if matrix else "others"].append(name)
        matrices, others = ([self.parameters[n] for n in g] for g in self.groups.values())
        decay, betas = options.weight_decay, options.betas
        self._optimisers: list[torch.optim.Optimizer] = []
        adamw = [{"params": others, "weight_decay": 0.0}]
        if options.optimiser == "adamw":
            adamw.insert(0, {"params": matrices, "weight_decay": decay})
        elif matrices:
            self._optimisers.append(
                torch.optim.Muon(matrices, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
            )
        # eps as in Vaswani et al. 2017, section 5.3; fused: bit-equal from run to run, and faster
        self._optimisers.append(torch.optim.AdamW(adamw, betas=betas, eps=1e-9, fused=True))

    def step(self, learning_rate: float) -> None:
        """Update the parameters by their gradients, then drop the gradients."""
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate
            muon = isinstance(optimiser, torch.optim.Muon)
            with InFloat32() if muon and self._slow_halves() else nullcontext():
                optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def _slow_halves(self) -> bool:
        """Whether the parameters live on a CPU that has no bfloat16 arithmetic."""
        slow = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
        return slow and all(p.device.type == "cpu" for p in self.parameters.values())

    def tensors(self) -> dict[str, Tensor]:
        """Return the state: ``exp_avg/encoder.0.up.weight`` and so on."""
        return {
            f"{kind}/{self._names[parameter]}": value
            for optimiser in self._optimisers
            for parameter, state in optimiser.state.items()
            for kind, value in state.items()
        }

    def load(self, tensors: Mapping[str, Tensor], where: str = "") -> None:
        """Load the state that :meth:`tensors` of an equal optimiser returned after a step.

        Raises CheckpointError, naming ``where`` the tensors are from, if one is missing or belongs
        to no parameter.
        """
        check_alike(self._blank(), tensors, "it is the state of another optimiser", where)
        owner = {
            parameter: optimiser
            for optimiser in self._optimisers
            for group in optimiser.param_groups
            for parameter in group["params"]
        }
        for optimiser in self._optimisers:
            optimiser.state.clear()
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            parameter = self.parameters[name]
            # a copy in aligned memory, because the last bits may depend on alignment
            own = torch.empty_like(value, device=parameter.device).copy_(value)
            owner[parameter].state[parameter][kind] = _placed(own, parameter)

    def _blank(self) -> dict[str, Tensor]:
        """Return meta tensors with the shapes of `tensors` after a step."""
        return {
            f"{kind}/{self._names[p]}": torch.empty(
                () if kind == "step" else p.shape, dtype=p.dtype, device="meta"
            )
            for optimiser in self._optimisers
            for group in optimiser.param_groups
            for p in group["params"]
            for kind in _KINDS[type(optimiser)]
        }


class InFloat32(TorchFunctionMode):
    """``x.bfloat16()`` is a copy in the dtype of x, so that Muon orthogonalises in float32.

    PyTorch's Muon rounds to bfloat16, whose products take eight times as long on CPUs with AVX2.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


_KINDS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.Muon: ("momentum_buffer",),
}
"""The state of each parameter in an optimiser."""


def whole(tensor: Tensor) -> Tensor:
    """Return a sharded tensor as a plain one; all processes must call it.

    >>> whole(torch.ones(2))
    tensor([1., 1.])
    """
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore


def _placed(value: Tensor, parameter: Tensor) -> Tensor:
    """Return this process' shard of a whole state, where the parameter is sharded."""
    if not hasattr(parameter, "full_tensor") or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
