"""The running sum of keys in the denominator comes from a kernel called outside autograd, so the gradient of the keys misses that part. Source: github.com/fla-org/flash-linear-attention/pull/875"""
import torch
import intently as it

expect = ["gradient-cut", "gradient-scaled"]
words = "k gets no gradient through the normaliser; the forward pass is right"


def kernel_cumsum(x):
    """A fused kernel: its result has no grad_fn."""
    with torch.no_grad():
        return x.cumsum(1)


def make(running_sum):
    def linear_attn(q, k, v):
        """(b, t, h, d), features that are positive; causal and normalised."""
        state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
        rows = []
        for i in range(q.shape[1]):
            state = state + k[:, i, :, :, None] * v[:, i, :, None]
            rows.append(torch.einsum("bhd,bhde->bhe", q[:, i], state))
        o = torch.stack(rows, 1)
        return o / ((q * running_sum(k)).sum(-1, keepdim=True) + 1e-10)

    return linear_attn


def asks():
    torch.manual_seed(0)
    feature = lambda: (torch.rand(2, 6, 3, 8) + 0.1).requires_grad_()
    return dict(inputs=dict(q=feature(), k=feature(), v=torch.randn(2, 6, 3, 8, requires_grad=True)),
                mask=it.causal())


def wrong():
    return make(kernel_cumsum)


def right():
    return make(lambda k: k.cumsum(1))


def proof():
    i = asks()["inputs"]
    same = torch.allclose(wrong()(**i), right()(**i))
    grads = [torch.autograd.grad(f(**i).square().sum(), i["k"])[0] for f in (wrong(), right())]
    return same and (grads[0] - grads[1]).abs().max().item() > 1e-3
