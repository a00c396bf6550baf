"""Linear attention in pieces keeps the sum of k v from piece to piece, and divides by keys of the present piece only. Source: github.com/fla-org/flash-linear-attention/pull/268"""
import torch
import torch.nn.functional as F
import intently as it

expect = ["not-normalised", "cached-step-differs"]
words = "from the second piece on the denominator lacks all earlier keys"

def asks():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 8, 8)
    return dict(inputs=dict(q=q, k=k, v=v), mask=it.causal())

def in_pieces(carries):
    def attend(q, k, v, piece=3):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
        keys = q.new_zeros(*q.shape[:2], 1, q.shape[-1])
        out = []
        for a, b, c in zip(q.split(piece, 2), k.split(piece, 2), v.split(piece, 2)):
            near = (a @ b.mT).tril()
            top = near @ c + a @ state
            seen = b.cumsum(2) + keys
            out.append(top / (a * seen).sum(-1, keepdim=True))
            state = state + b.mT @ c
            if carries:
                keys = keys + b.sum(2, keepdim=True)
        return torch.cat(out, 2)

    return attend

def wrong():
    return in_pieces(False)

def right():
    return in_pieces(True)

def proof():
    i = asks()["inputs"]
    i["v"] = torch.ones_like(i["v"])
    a, b = wrong()(**i), right()(**i)
    return bool(torch.allclose(b, torch.ones_like(b), atol=1e-5) and torch.allclose(a[:, :, :3], b[:, :, :3], atol=1e-5) and a[:, :, 3:].min() > 1.2)
