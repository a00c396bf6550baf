"""An adapter projects image tokens to keys and values of their own, and then attends to those of the other tokens a second time. Source: github.com/Francis-Rings/StableAnimator/issues/111"""
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

expect = ["cross-ignores-context", "mask-other"]
words = "the image tokens of the context have no influence: their keys and values are never used"


class AdaptedCrossAttention(nn.Module):
    def __init__(self, uses_own, width=32, context=24, heads=4, image_tokens=3, strength=0.8):
        super().__init__()
        self.heads, self.n, self.strength, self.uses_own = heads, image_tokens, strength, uses_own
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v, self.to_k_image, self.to_v_image = (nn.Linear(context, width, bias=False) for _ in range(4))
        self.to_out = nn.Linear(width, width)

    def _split(self, a):
        return a.view(a.shape[0], -1, self.heads, a.shape[-1] // self.heads).transpose(1, 2)

    def forward(self, hidden_states, encoder_hidden_states):
        first, image = encoder_hidden_states[:, : -self.n], encoder_hidden_states[:, -self.n :]
        q = self._split(self.to_q(hidden_states))
        k, v = self._split(self.to_k(first)), self._split(self.to_v(first))
        y = sdpa(q, k, v)
        image_k, image_v = self._split(self.to_k_image(image)), self._split(self.to_v_image(image))
        more = sdpa(q, image_k, image_v) if self.uses_own else sdpa(q, k, v)
        y = (y + self.strength * more).transpose(1, 2).flatten(2)
        return self.to_out(y)


def _inputs():
    torch.manual_seed(16)
    return dict(hidden_states=torch.randn(2, 6, 32), encoder_hidden_states=torch.randn(2, 8, 24))


def asks():
    return dict(inputs=_inputs())


def _build(uses_own):
    torch.manual_seed(17)
    return AdaptedCrossAttention(uses_own).eval()


def wrong():
    return _build(False)


def right():
    return _build(True)


def proof():
    x = _inputs()
    context = x["encoder_hidden_states"].clone()
    context[:, -3:] += 1
    y = dict(x, encoder_hidden_states=context)
    moved = lambda m: (m(**x) - m(**y)).abs().max()
    return bool(moved(wrong()) < 1e-6 and moved(right()) > 1e-2)
