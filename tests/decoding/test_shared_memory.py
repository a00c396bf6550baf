from __future__ import annotations

import pytest
import torch

from .slow_beam import tiny_model

SOURCE = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
LENGTHS = torch.tensor([4, 3])
TARGET = torch.tensor([[1, 4, 5], [1, 6, 7], [1, 3, 3], [1, 8, 9], [1, 4, 4], [1, 10, 3]])


@torch.no_grad()
def test_beams_that_share_a_memory_see_what_repeated_ones_see() -> None:
    model = tiny_model(0)
    memory = model.encode(SOURCE, LENGTHS)
    repeated = memory.expand(torch.tensor([0, 0, 0, 1, 1, 1]))
    expected = model.decode(TARGET, repeated)
    torch.testing.assert_close(model.decode(TARGET, memory), expected)
    cache = model.new_cache(keep_queries=True)
    steps = [model.decode(TARGET[:, :2], memory, cache), model.decode(TARGET[:, 2:], memory, cache)]
    torch.testing.assert_close(torch.cat(steps, 1), expected)


@torch.no_grad()
def test_history_has_the_rows_of_the_targets() -> None:
    model = tiny_model(0)
    memory, caches = model.encode(SOURCE, LENGTHS), []
    for rows in (memory, memory.expand(torch.tensor([0, 0, 0, 1, 1, 1]))):
        cache = model.new_cache(keep_queries=True)
        model.decode(TARGET[:, :2], rows, cache)
        model.decode(TARGET[:, 2:], rows, cache)
        caches.append(cache.history)
    shared, repeated = caches
    assert list(shared) == [
        "decoder.0.self",
        "decoder.0.cross",
        "decoder.1.self",
        "decoder.1.cross",
    ]
    for name, steps in shared.items():
        assert [tuple(q.shape) for q, _ in steps] == [(6, 2, 2, 8), (6, 2, 1, 8)]
        for (q, k), (other_q, other_k) in zip(steps, repeated[name]):
            torch.testing.assert_close(q, other_q)
            torch.testing.assert_close(k, other_k)


@torch.no_grad()
def test_the_cache_follows_reordered_targets() -> None:
    model = tiny_model(0)
    memory, cache = model.encode(SOURCE, LENGTHS), model.new_cache()
    model.decode(TARGET[:, :2], memory, cache)
    index = torch.tensor([2, 2, 0, 5, 3, 3])
    cache.reorder_targets(index)
    found = model.decode(TARGET[:, 2:], memory, cache)
    whole = torch.cat([TARGET[index, :2], TARGET[:, 2:]], 1)
    torch.testing.assert_close(found, model.decode(whole, memory)[:, 2:])


def test_targets_that_do_not_fit_the_memory_are_refused() -> None:
    model = tiny_model(0)
    memory = model.encode(SOURCE, LENGTHS)
    with pytest.raises(ValueError) as caught:
        model.decode(TARGET[:3], memory)
    assert str(caught.value) == (
        "target: expected m rows for each of the n=2 of memory; got shape (3, 3). "
        "The memory belongs to another batch. Pick rows: memory.expand."
    )


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError) as caught:
        tiny_model(0).encode(torch.tensor([[5, 13]]))
    assert str(caught.value) == (
        "source: expected ids from 0 to 12; got 5 to 13. They come from another tokenizer than the "
        "model's."
    )
