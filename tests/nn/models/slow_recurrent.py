"""The recurrent encoder–decoder in NumPy and float64: one sentence, one step at a time.

Formulas as the papers have them, cells as `torch.nn` documents them; see
`intently.nn.models.recurrent_steps` for what is Cho's, Bahdanau's and Luong's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from intently.nn.models import RecurrentSeq2Seq

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    y = np.exp(x - x.max())
    return y / y.sum()


def cell(kind: str, x: Array, state: tuple[Array, ...], parts: list[Array]) -> tuple[Array, ...]:
    w, u, a, b = parts
    h = state[0]
    if kind == "rnn":
        return (np.tanh(w @ x + a + u @ h + b),)
    if kind == "lstm":
        i, f, g, o = np.split(w @ x + a + u @ h + b, 4)
        memory = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(memory), memory
    (r, z, n), (ur, uz, un) = np.split(w @ x + a, 3), np.split(u @ h + b, 3)
    z = sigmoid(z + uz)
    return ((1 - z) * np.tanh(n + sigmoid(r + ur) * un) + z * h,)


class SlowRecurrent:
    def __init__(self, model: RecurrentSeq2Seq) -> None:
        self.o = model.options
        self.p = {n: x.detach().double().numpy() for n, x in model.state_dict().items()}

    def cell_parts(self, where: str, layer: int, way: str = "") -> list[Array]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [self.p[f"{where}.cell.{name}_l{layer}{way}"] for name in names]

    def embed(self, table: str, token: int) -> Array:
        return self.p[f"{table}_embedding.weight"][token] * math.sqrt(self.o.width)

    def encode(self, source: Sequence[int]) -> tuple[list[Array], Array]:
        """The states, and the summary."""
        o = self.o
        xs = [self.embed("source", token) for token in source]
        units = o.width // (2 if o.bidirectional else 1)
        ends: list[Array] = []
        for layer in range(o.encoder_layers):
            sides, ends = [], []
            for way in ("", "_reverse")[: 1 + o.bidirectional]:
                state = (np.zeros(units),) * (2 if o.cell == "lstm" else 1)
                made = []
                for x in xs[::-1] if way else xs:
                    state = cell(o.cell, x, state, self.cell_parts("encoder", layer, way))
                    made.append(state[0])
                ends.append(made[-1])
                sides.append(made[::-1] if way else made)
            xs = [np.concatenate(side) for side in zip(*sides)]
        return xs, np.concatenate(ends)

    def energy(self, s: Array, h: Array) -> float:
        o, p = self.o, self.p
        if o.attention == "dot":
            return float(s @ h)
        if o.attention == "general":
            return float(s @ (p["attention.key.weight"] @ h))
        units = p["attention.query.weight"] @ s + p["attention.key.weight"] @ h
        if o.attention == "additive":
            units = units + p["attention.key.bias"]
        return float(p["attention.energy"] @ np.tanh(units))

    def __call__(self, source: Sequence[int], target: Sequence[int]) -> tuple[Array, Array]:
        """Logits (t, V), and weights (t, s)."""
        o, p = self.o, self.p
        states, summary = self.encode(source)
        first = np.tanh(p["bridge.weight"] @ summary + p["bridge.bias"])
        parts = list(first.reshape(-1, o.width))
        layers = [
            tuple(parts[i :: o.decoder_layers]) for i in range(o.decoder_layers)
        ]  # the outputs of all layers come first, the memory cells of an LSTM behind them
        weights: list[Array] = []

        def look(s: Array) -> Array:
            if o.attention == "none":
                return summary
            a = softmax(np.array([self.energy(s, h) for h in states]))
            weights.append(a)
            return np.sum([x * h for x, h in zip(a, states)], 0)

        def step(x: Array) -> Array:
            for i, state in enumerate(layers):
                layers[i] = cell(o.cell, x, state, self.cell_parts("decoder", i))
                x = layers[i][0]
            return x

        def read(x: Array, beside: Array) -> Array:
            return np.concatenate([x, beside]) if o.input_feeding else x

        predict = self.luong if o.attention in ("dot", "general", "concat") else self.bahdanau
        logits = predict([self.embed("target", y) for y in target], layers, look, step, read)
        return np.stack(logits), np.array(weights)

    def bahdanau(
        self, words: list[Array], layers: list, look: Callable, step: Callable, read: Callable
    ) -> list[Array]:
        found = []
        for x in words:
            c = look(layers[-1][0])
            s = step(read(x, c))
            t = self.p["decoder.output.join.weight"] @ np.concatenate([s, x, c])
            t = (t + self.p["decoder.output.join.bias"]).reshape(-1, 2).max(-1)
            found.append(self.p["target_embedding.weight"] @ t)
        return found

    def luong(
        self, words: list[Array], layers: list, look: Callable, step: Callable, read: Callable
    ) -> list[Array]:
        found, h = [], np.zeros(self.o.width)
        for x in words:
            s = step(read(x, h))
            h = np.tanh(self.p["decoder.vector.join.weight"] @ np.concatenate([look(s), s]))
            found.append(self.p["target_embedding.weight"] @ h)
        return found
