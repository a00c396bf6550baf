"""The learning rate of a step, its gradient by one process or many, and the optimiser's update.

AdamW updates all parameters, or Muon the hidden matrices and AdamW the rest. The learning rate is a
pure function of the step, so checkpoints need not store it. A step uses the same batch as a single
process: its rows are divided among the processes, and the gradient is the sum over processes,
divided by the number of all target tokens.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from intently.errors import ArgumentError, build
from intently.nn.models.shared import check_alike, load_weights, weights
from intently.tasks.text import PAD
from intently.tasks.training.batches import Batch
from intently.tasks.training.loss import BatchLoss, batch_loss
from intently.tasks.training.options import OptimiserOptions, ScheduleOptions, TrainingOptions
from intently.tasks.training.processes import Processes

SHARE, LONGEST = 0.2, 500
"""The rate rises in this part of a run's steps by default, of its seconds at most; and in at most
so many steps."""


def warmup_of(steps: int, longest: int = LONGEST) -> int:
    """Return the default warm-up, in steps: a fifth of a short run."""
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
    flags: dict[str, Any] = {}
    if options.schedule.warmup is None:
        before = None if stored is None else stored.schedule.warmup
        flags["warmup"] = warmup_of(options.schedule.steps, longest) if before is None else before
    if options.run.best_by is None:
        flags["best_by"] = (stored and stored.run.best_by) or score
    return options.with_flags(**flags)


class Optimiser:
    """One or two PyTorch optimisers that step together, with a flat mapping of tensors as state.

    Weight decay applies only to weight matrices: parameters with two axes and "weight" in their
    name that are not embeddings. Embedding tables, norms and biases do not decay. AdamW after
    Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization"; Muon after Jordan et al.
    2024, its updates scaled to the size of AdamW's (Liu et al. 2025, "Muon is Scalable for LLM
    Training", section 2.2), so that one learning rate serves both.

    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
    >>> optimiser = Optimiser(model, OptimiserOptions(weight_decay=0.1))
    >>> [names for names in optimiser.groups.values()]
    [['1.weight'], ['0.weight', '1.bias']]
    """

    def __init__(self, model: nn.Module, options: OptimiserOptions) -> None:
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        self.groups: dict[str, list[str]] = {"matrices": [], "others": []}
        for name, parameter in self.parameters.items():
            *_, last = name.split(".")  # weight, qkv_weight, or weight_hh_l0 of a recurrent cell
            matrix = parameter.ndim == 2 and "weight" in last and id(parameter) not in tables
            self.groups["matrices" if matrix else "others"].append(name)
        matrices, others = ([self.parameters[n] for n in g] for g in self.groups.values())
        decay = options.weight_decay
        self._optimisers: list[torch.optim.Optimizer] = []
        adamw = [{"params": others, "weight_decay": 0.0}]
        if options.optimiser == "adamw":
            adamw.insert(0, {"params": matrices, "weight_decay": decay})
        elif matrices:
            scaled = {"weight_decay": decay, "adjust_lr_fn": "match_rms_adamw"}
            self._optimisers.append(torch.optim.Muon(matrices, **scaled))
        # eps as in Vaswani et al. 2017, section 5.3; fused: bit-equal from run to run, and faster
        self._optimisers.append(torch.optim.AdamW(adamw, betas=options.betas, eps=1e-9, fused=True))
        names = {parameter: name for name, parameter in self.parameters.items()}
        self._places = {
            f"{kind}/{names[parameter]}": (optimiser, parameter, kind)
            for optimiser in self._optimisers
            for group in optimiser.param_groups
            for parameter in group["params"]
            for kind in _KINDS[type(optimiser)]
        }
        """Where each tensor of the state is."""

    def step(self, learning_rate: float) -> None:
        """Update the parameters by their gradients, then drop the gradients."""
        slow = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")  # in bfloat16
        slow = slow and all(p.device.type == "cpu" for p in self.parameters.values())
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate
            muon = isinstance(optimiser, torch.optim.Muon)
            with InFloat32() if muon and slow else nullcontext():
                optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state: ``exp_avg/encoder.0.up.weight`` and so on."""
        return {
            name: optimiser.state[parameter][kind]
            for name, (optimiser, parameter, kind) in self._places.items()
            if parameter in optimiser.state
        }

    def load(self, tensors: Mapping[str, Tensor], where: str = "") -> None:
        """Load the state that :meth:`tensors` of an equal optimiser returned after a step.

        Raises CheckpointError, naming ``where`` the tensors are from, if one is missing or belongs
        to no parameter.
        """
        blank = {
            name: torch.empty(() if kind == "step" else p.shape, dtype=p.dtype, device="meta")
            for name, (_, p, kind) in self._places.items()
        }
        check_alike(blank, tensors, "it is the state of another optimiser", where)
        for optimiser in self._optimisers:
            optimiser.state.clear()
        for name, value in tensors.items():
            optimiser, parameter, kind = self._places[name]
            # a copy in aligned memory, because the last bits may depend on alignment
            aligned = torch.empty_like(value, device=parameter.device).copy_(value)
            optimiser.state[parameter][kind] = _placed(aligned, parameter)


class InFloat32(TorchFunctionMode):
    """``x.bfloat16()`` is a copy in the dtype of x, so that Muon orthogonalises in float32.

    PyTorch's Muon rounds to bfloat16, whose products take eight times as long on CPUs with AVX2.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        narrows = func is torch.Tensor.bfloat16
        return args[0].clone() if narrows else func(*args, **(kwargs or {}))


_KINDS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.Muon: ("momentum_buffer",),
}
"""The state of each parameter in an optimiser."""


class TrainedModel:
    """The model that this process trains, ``net``, and its optimiser.

    A single process, and each with ``parallel="data"``, trains ``model`` itself, and
    `DistributedDataParallel` exchanges gradients. With ``parallel="sharded"``, ``net`` is a copy of
    which each process holds a shard (FSDP2: weights, gradients and optimiser state); `gather`
    copies its weights to ``model``.
    """

    def __init__(
        self,
        model: nn.Module,
        options: TrainingOptions,
        processes: Processes,
        loss: BatchLoss = batch_loss,
    ) -> None:
        self.model, self.processes = model, processes
        self.device = next(model.parameters()).device
        sharded = processes.count > 1 and options.machine.parallel == "sharded"
        self.net = copy.deepcopy(model) if sharded else model
        narrow = options.machine.precision == "bfloat16"
        self._loss: Any = _Loss(self.net, loss, options.optimiser.label_smoothing, narrow)
        if sharded:
            _shard(self._loss)
        elif processes.count > 1:
            parallel: Any = nn.parallel.DistributedDataParallel
            # buffers are tables that grow with long batches: they are not exchanged
            names = "forward_sync_buffers", "broadcast_buffers"  # since PyTorch 2.13, and before
            name = next(n for n in names if n in inspect.signature(parallel).parameters)
            devices = None if self.device.type == "cpu" else [self.device]
            self._loss = parallel(self._loss, device_ids=devices, **{name: False})
        self.optimiser = Optimiser(self.net, options.optimiser)

    def gradients(self, batches: Sequence[Batch]) -> tuple[float, int]:
        """Add the gradient of the mean loss; return the loss of own rows, and all tokens.

        The processes exchange gradients with the last batch, and only accumulate them before.
        """
        tokens = sum(int((batch.target_out != PAD).sum()) for batch in batches)
        rank, count = self.processes.rank, self.processes.count
        sharded, losses = self.net is not self.model, []
        for number, batch in enumerate(batches, 1):
            last = number == len(batches)
            if sharded:
                self._loss.set_requires_gradient_sync(last)
            alone = count > 1 and not sharded and not last
            with self._loss.no_sync() if alone else nullcontext():
                loss = self._loss(share(batch, rank, count).to(self.device))
                # DDP and FSDP average gradients over processes; we need the sum
                (loss / tokens if count == 1 else loss * (count / tokens)).backward()
            losses.append(loss.detach())
        return sum(loss.item() for loss in losses), tokens

    def clip(self, most: float) -> float:
        """Scale the gradient of all parameters to a norm of at most ``most``; return its norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.optimiser.parameters.values(), most)
        return whole(norm).item()

    def gather(self) -> None:
        """Copy the trained weights to the model; all processes must call it."""
        if self.net is not self.model:
            load_weights(self.model, {n: whole(t.detach()) for n, t in weights(self.net).items()})

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's state in the first process, {} in others; all must call it."""
        tensors = self.optimiser.tensors().items()
        if self.processes.first:
            return {name: whole(tensor) for name, tensor in tensors}
        for _, tensor in tensors:  # one at a time, and none is kept
            whole(tensor)
        return {}


class _Loss(nn.Module):
    """The summed loss of a batch as a module, which DDP and FSDP can wrap."""

    def __init__(self, model: nn.Module, loss: BatchLoss, smoothing: float, narrow: bool) -> None:
        super().__init__()
        self.model, self.loss, self.smoothing, self.narrow = model, loss, smoothing, narrow

    def forward(self, batch: Batch) -> Tensor:
        """Return the sum over the target tokens."""
        kind = batch.target_in.device.type
        with torch.autocast(kind, torch.bfloat16) if self.narrow else nullcontext():
            return self.loss(self.model, batch, self.smoothing)[0]


def share(batch: Batch, rank: int, count: int) -> Batch:
    """Return the rows of a batch for process ``rank`` of ``count``.

    A process without rows gets one without targets, so that it takes part in the exchange.

    >>> rows = torch.tensor([[4, 5]])
    >>> both = [share(Batch(rows, None, rows, rows), rank, 2) for rank in (0, 1)]
    >>> [part.target_out.tolist() for part in both]
    [[[0, 0]], [[4, 5]]]
    """
    if count == 1:
        return batch
    rows = len(batch.target_in)
    start, stop = rows * rank // count, rows * (rank + 1) // count
    if start == stop:
        part = share(batch, 0, rows)
        return part._replace(target_out=torch.full_like(part.target_out, PAD))
    return batch.map(lambda tensor: tensor[start:stop])


def check_bfloat16(device: torch.device) -> None:
    """Raise ArgumentError unless the hardware of ``device`` multiplies in bfloat16 natively."""
    lacks = f"a device of the kind {device.type} does not multiply in bfloat16"
    able = False
    if device.type == "cuda":
        able = torch.cuda.is_bf16_supported(including_emulation=False)
        lacks = "this GPU does not multiply in bfloat16"
    elif device.type == "cpu":
        names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        able = any(getattr(torch.cpu, name, bool)() for name in names)
        lacks = "this processor has neither AVX512_BF16 nor AMX"
    if not able:
        raise build(ArgumentError, "precision", "'float32' on this machine", "'bfloat16'", lacks)


def _shard(loss: _Loss) -> None:
    """Shard the parameters over all processes by layer, gathering one layer at a time."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    parameters = list(weights(loss).values())
    for parameter in parameters:
        dist.broadcast(parameter, 0)
    mesh = init_device_mesh(parameters[0].device.type, (dist.get_world_size(),))
    for stack in ("encoder", "decoder"):
        layers = getattr(loss.model, stack, None)
        for layer in layers if isinstance(layers, nn.ModuleList) else ():
            fully_shard(layer, mesh=mesh)
    fully_shard(loss, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    """Return a sharded tensor as a plain one; all processes must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore


def _placed(value: Tensor, parameter: Tensor) -> Tensor:
    """Return this process' shard of a whole state, where the parameter is sharded."""
    if not hasattr(parameter, "full_tensor") or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
