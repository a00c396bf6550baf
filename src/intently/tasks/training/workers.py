"""The gradient of a step: in float32 or bfloat16, by one process or many.

A step uses the same batch as a single process. Its rows are divided among the
processes; the gradient is the sum over processes, divided by the number of all target tokens.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from intently.errors import ArgumentError, build
from intently.nn.models.seq2seq import load_weights, weights
from intently.tasks.text import PAD
from intently.tasks.training.batches import Batch
from intently.tasks.training.loss import BatchLoss, batch_loss
from intently.tasks.training.optimiser import Optimiser, whole
from intently.tasks.training.options import TrainingOptions
from intently.tasks.training.processes import Processes


class Worker:
    """The model that this process trains, ``net``, and its optimiser.

    A single process, and each with ``parallel="data"``, trains ``model`` itself, and
    `DistributedDataParallel` exchanges gradients. With ``parallel="sharded"``, ``net`` is a copy of
    which each process holds a shard (FSDP2: weights, gradients and optimiser state); `gather`
    copies its weights to ``model``.

    >>> from intently.nn.models.transformer import Transformer, TransformerOptions
    >>> model = Transformer(TransformerOptions(8, 8, width=16))
    >>> Worker(model, TrainingOptions(), Processes()).net is model
    True
    """

    def __init__(
        self,
        model: nn.Module,
        options: TrainingOptions,
        processes: Processes,
        batch_loss: BatchLoss = batch_loss,
    ) -> None:
        self.model, self.processes = model, processes
        self.device = next(model.parameters()).device
        sharded = processes.count > 1 and options.machine.parallel == "sharded"
        self.net = copy.deepcopy(model) if sharded else model
        narrow = options.machine.precision == "bfloat16"
        if narrow:
            check_bfloat16(self.device)
        loss = _Loss(self.net, batch_loss, options.optimiser.label_smoothing, narrow)
        self._loss: Any = loss
        if sharded:
            _shard(loss)
        elif processes.count > 1:
            self._loss = _exchanging(loss, self.device)
        self.optimiser = Optimiser(self.net, options.optimiser)

    def gradients(self, batches: Sequence[Batch]) -> tuple[float, int]:
        """Add the gradient of the mean loss; return the loss of own rows, and all tokens."""
        tokens = sum(int((batch.target_out != PAD).sum()) for batch in batches)
        rank, count = self.processes.rank, self.processes.count
        losses = []
        for number, batch in enumerate(batches, 1):
            with self._exchange(number == len(batches)):
                loss = self._loss(share(batch, rank, count).to(self.device))
                # DDP and FSDP average gradients over processes; we need the sum
                (loss / tokens if count == 1 else loss * (count / tokens)).backward()
            losses.append(loss.detach())
        return sum(loss.item() for loss in losses), tokens

    @contextlib.contextmanager
    def _exchange(self, now: bool) -> Iterator[None]:
        """Exchange gradients with the other processes now, or only accumulate them."""
        if self.net is not self.model:
            self._loss.set_requires_gradient_sync(now)
        together = self.net is self.model and self.processes.count > 1
        with self._loss.no_sync() if together and not now else contextlib.nullcontext():
            yield

    def clip(self, most: float) -> float:
        """Scale the gradient of all parameters to a norm of at most ``most``; return its norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.optimiser.parameters.values(), most)
        return whole(norm).item()

    def gather(self) -> None:
        """Copy the trained weights to the model; all processes must call it."""
        if self.net is not self.model:
            load_weights(self.model, {n: whole(t.detach()) for n, t in weights(self.net).items()})

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's state in the first process; all must call it."""
        found = {}
        for name, value in self.optimiser.tensors().items():
            full = whole(value)
            if self.processes.first:
                found[name] = full
        return found


def _exchanging(loss: _Loss, device: torch.device) -> nn.Module:
    """Return the loss in `DistributedDataParallel`: its backward pass exchanges gradients.

    Buffers are not exchanged: they are tables that grow with long batches.
    """
    from inspect import signature

    parallel: Any = nn.parallel.DistributedDataParallel
    names = "forward_sync_buffers", "broadcast_buffers"  # since PyTorch 2.13, and before
    name = next(n for n in names if n in signature(parallel).parameters)
    return parallel(loss, device_ids=None if device.type == "cpu" else [device], **{name: False})


class _Loss(nn.Module):
    """The summed loss of a batch as a module, which DDP and FSDP can wrap."""

    def __init__(self, model: nn.Module, loss: BatchLoss, smoothing: float, narrow: bool) -> None:
        super().__init__()
        self.model, self.loss, self.smoothing, self.narrow = model, loss, smoothing, narrow

    def forward(self, batch: Batch) -> Tensor:
        """Return the sum over the target tokens."""
        narrow = torch.autocast(batch.target_in.device.type, torch.bfloat16)
        with narrow if self.narrow else contextlib.nullcontext():
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
    if device.type == "cuda":
        able, lacks = torch.cuda.is_bf16_supported(including_emulation=False), "this GPU"
    else:
        names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        able = device.type == "cpu" and any(getattr(torch.cpu, n, bool)() for n in names)
        kind = "this processor has neither AVX512_BF16 nor AMX"
        lacks = kind if device.type == "cpu" else f"a device of the kind {device.type}"
    if not able:
        raise build(
            ArgumentError,
            "precision",
            "'float32' on this machine",
            "'bfloat16'",
            lacks if device.type == "cpu" else f"{lacks} does not multiply in bfloat16",
        )


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
