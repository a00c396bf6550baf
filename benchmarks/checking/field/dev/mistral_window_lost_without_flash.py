"""A patched Mistral attention hands its window to the flash path only; on the path of scaled_dot_product_attention it is plain causal. Source: github.com/unslothai/unsloth/pull/8253"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["window-missing", "mask-in-one-path"]
words = "texts longer than the window attend to their whole history"

HAS_FLASH = False


def flash(q, k, v, window_size):
    raise NotImplementedError("needs a GPU")


def run(q, k, v, window):
    """Dispatch to what is installed."""
    if HAS_FLASH:
        return flash(q, k, v, window_size=(window - 1, 0))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def run_mended(q, k, v, window):
    if HAS_FLASH:
        return flash(q, k, v, window_size=(window - 1, 0))
    at = torch.arange(q.shape[2])
    back = at[:, None] - at[None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back < window), enable_gqa=True)


class MistralAttention(nn.Module):
    def __init__(self, dispatch, width=32, heads=4, groups=2, window=4):
        super().__init__()
        self.dispatch, self.size, self.window = dispatch, width // heads, window
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def turn(self, x):
        half = self.size // 2
        angle = torch.arange(x.shape[2])[:, None] * 10000.0 ** -(torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)

    def forward(self, hidden_states):
        q, k, v = (p(hidden_states).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = self.dispatch(self.turn(q), self.turn(k), v, self.window)
        return self.o_proj(y.transpose(1, 2).flatten(2))


def asks():
    import intently as it
    return dict(inputs=dict(hidden_states=torch.randn(2, 9, 32)), mask=it.window(3, 0))


def wrong():
    torch.manual_seed(0)
    return MistralAttention(run).eval()


def right():
    torch.manual_seed(0)
    return MistralAttention(run_mended).eval()


def proof():
    a = torch.randn(2, 9, 32)
    b = a.clone()
    b[:, 0] += 1
    kept = lambda m: torch.allclose(m(a)[:, 4:], m(b)[:, 4:], atol=1e-5)
    return kept(right()) and not kept(wrong())


if __name__ == "__main__":
    print(proof())
