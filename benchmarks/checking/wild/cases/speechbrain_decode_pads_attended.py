"""decode() passes no mask of the memory: cross-attention attends to padded frames."""

import importlib
import sys

import torch
from torch import Tensor, nn

from wild.program import Adapter, apart, hollow, mended, normal, stand_in, tokens

meta = {
    "package": "speechbrain",
    "url": "https://github.com/speechbrain/speechbrain/issues/1107",
    "kind": "mistake",
    "name": ("padding-attended",),
    "intent": {"mask": "causal()", "arguments": {"enc_len": "lengths"}},
    "needs": {"affected": ("sb-0.5.10",), "mended": ("sb-0.5.13",)},
}
PARTS = ("embedding", "attention", "normalization", "activations", "containers", "linear", "CNN")


def make() -> Adapter:
    """A decoder of speech, one layer, called as a beam search calls it."""
    inner = ("nnet", "lobes", "lobes.models", "lobes.models.transformer", "dataio", "utils")
    hollow("speechbrain", *(f"speechbrain.{x}" for x in inner))
    stand_in("hyperpyyaml", "sentencepiece", "torchaudio")

    def length_to_mask(length: Tensor, max_len: int | None = None, **_: object) -> Tensor:
        steps = torch.arange(int(max_len or length.max()))
        return (steps < length[:, None]).to(length.dtype)

    stand_in("speechbrain.dataio.dataio", length_to_mask=length_to_mask)
    nnet = sys.modules["speechbrain.nnet"]
    sys.modules["speechbrain"].nnet = nnet  # type: ignore[attr-defined]
    for part in PARTS:
        setattr(nnet, part, importlib.import_module(f"speechbrain.nnet.{part}"))
    library = importlib.import_module("speechbrain.lobes.models.transformer.TransformerASR")
    torch.manual_seed(0)
    model = library.TransformerASR(
        **dict(tgt_vocab=50, input_size=16, d_model=32, nhead=4, num_encoder_layers=1),
        **dict(num_decoder_layers=1, d_ffn=32, dropout=0.0),
    )

    def run(model: nn.Module, tgt: Tensor, enc: Tensor, enc_len: Tensor) -> Tensor:
        return model.decode(tgt, enc, *([enc_len] if mended() else []))[0]

    return Adapter(model.eval(), run)


def inputs() -> dict[str, Tensor]:
    """Nine frames and six, for five tokens each."""
    return {"tgt": tokens(2, 5), "enc": normal(2, 9, 32), "enc_len": torch.tensor([9, 6])}


def wrong() -> tuple[bool, float]:
    """Outputs change with a padded frame."""
    decode, given = make(), inputs()
    changed = given["enc"].clone()
    changed[1, 7] += 1
    effect = apart(decode(**{**given, "enc": changed})[1], decode(**given)[1])
    return effect > 1e-3, effect
