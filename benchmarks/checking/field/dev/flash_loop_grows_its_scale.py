"""Flash attention in powers of two: inside the loop over key blocks the scale is multiplied by log2(e) in place, once more for each block. Source: github.com/flagos-ai/FlagGems/pull/424"""
import torch

expect = ["other-scale", "scores-other"]
words = "keys of block n are scored by log2(e)^(n - 1) times the scale: later keys get ever sharper scores"


def asks():
    return dict(inputs=dict(q=torch.randn(2, 2, 5, 16), k=torch.randn(2, 2, 8, 16), v=torch.randn(2, 2, 8, 16)))


LOG2E = 1.44269504


def make(scale_of_block):
    def flash_attention(q, k, v, block=2):
        qk_scale = q.shape[-1] ** -0.5
        m = q.new_full(q.shape[:-1], float("-inf"))
        l = torch.zeros_like(m)
        acc = q.new_zeros(q.shape[:-1] + v.shape[-1:])
        for number, (keys, values) in enumerate(zip(k.split(block, -2), v.split(block, -2))):
            qk = q @ keys.mT * scale_of_block(qk_scale, number)
            m_ij = torch.maximum(m, qk.amax(-1))
            p = torch.exp2(qk - m_ij[..., None])
            alpha = torch.exp2(m - m_ij)
            l = l * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p @ values
            m = m_ij
        return acc / l[..., None]

    return flash_attention


def wrong():
    return make(lambda scale, number: scale * LOG2E ** (number + 1))


def right():
    return make(lambda scale, number: scale * LOG2E)


def proof():
    call = asks()["inputs"]
    exact = torch.nn.functional.scaled_dot_product_attention(**{n: call[s] for n, s in zip(("query", "key", "value"), "qkv")})
    return (right()(**call) - exact).abs().max().item() < 1e-5 and (wrong()(**call) - exact).abs().max().item() > 1e-2
