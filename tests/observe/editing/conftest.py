"""What pytest does not collect here, and a model that several tests edit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

collect_ignore = ["keras_cases.py"]
"""`interop/test_keras.py` runs it in a process of its own."""


@pytest.fixture(scope="module")
def gpt2() -> Any:
    """GPT-2 of three layers and four heads of 8, uneven."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    size: dict[str, Any] = {"n_layer": 3, "n_head": 4, "n_embd": 32, "n_positions": 16}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    config = GPT2Config(vocab_size=50, initializer_range=0.3, **size, **ends)
    return GPT2LMHeadModel(config).eval()
