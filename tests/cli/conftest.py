"""What commands are run on: a small corpus in place of every named one, and two files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from intently.nn.models.kinds import new_model as new_translator
from intently.tasks.corpora import Corpus
from intently.tasks.language.text_model import TextModel, Variant, language_options, new_model
from intently.tasks.text import Tokenizer
from intently.tasks.training import TrainingOptions
from intently.tasks.translation.translator import Translator

from ..samples import parallel, write_pairs


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intently.cli.evaluate.RESAMPLED", 5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str, str | None]]:
    """A small corpus in place of every named one; what was asked for."""
    asked = []

    def load(name: str, source: str, target: str, data_dir: str | None = None) -> Corpus:
        asked.append((name, source, target, data_dir))
        train, dev, test = parallel("train", 60), parallel("validation", 3), parallel("test", 4)
        tests = {"test_one": test, "test_two": test}
        return Corpus(name, source, target, train, dev, tests, "made by hand")

    monkeypatch.setattr("intently.tasks.recipes.load_corpus", load)
    return asked


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Sixty pairs, line by line, in the folder of the test."""
    return write_pairs(parallel("train", 60), tmp_path)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny transformers models with a tokenizer, as save_pretrained writes them."""
    import tokenizers
    import transformers
    from tokenizers import models, pre_tokenizers

    words = ["<unk>", "</s>", "<pad>", *["The", "cat", "sat", "on", "the", "mat"]]
    folder = tmp_path_factory.mktemp("transformers")
    known = {word: n for n, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", pad_token="<pad>"
    )
    ids: dict[str, Any] = {"eos_token_id": 1, "bos_token_id": 1, "pad_token_id": 2}
    ids["vocab_size"] = len(words)
    size: dict[str, Any] = {
        **{"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2},
        **{"intermediate_size": 16, **ids},
    }
    t5: dict[str, Any] = {"d_model": 16, "d_kv": 8, "num_heads": 2, "num_layers": 1, "d_ff": 16}
    torch.manual_seed(0)
    for name, model in {
        "gpt2": transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=16, n_head=2, n_layer=2, n_positions=8, **ids)
        ),
        "llama": transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**size, num_key_value_heads=2)
        ),
        "bert": transformers.BertModel(transformers.BertConfig(**size)),
        "t5": transformers.T5ForConditionalGeneration(
            transformers.T5Config(**t5, **ids, decoder_start_token_id=2)
        ),
        "t5-bare": transformers.T5Model(transformers.T5Config(**t5, **ids)),
    }.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def save_language_model(folder: str | Path, text: str, positions: Any = "rotary") -> TextModel:
    """A language model without training, with two layers, two heads and a window of 16."""
    options = language_options(text * 50, width=16, heads=2, layers=2, window=16)
    tokenizer, variant = Tokenizer.train([text], "character"), Variant(positions=positions)
    model = new_model(options, tokenizer.size, variant).eval()
    return TextModel.load(TextModel(model, tokenizer, options, variant).save(folder))


def save_recurrent(folder: str | Path, attention: str) -> None:
    """A recurrent translator without training."""
    tokenizer = Tokenizer.train(["I drink milk."], "character")
    options = TrainingOptions().with_flags(model="recurrent", attention=attention, width=8)
    model = new_translator(options.shape(tokenizer.size, tokenizer.size))
    Translator(model, tokenizer, tokenizer, max_length=5).save(folder)
