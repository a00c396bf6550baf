"""Knowledge tracing attends to earlier states by a running sum of weights that a softmax over the whole sequence has normalised. Source: github.com/xiaopengguo/ATKT/issues/1"""
import intently as it
import torch
import torch.nn as nn

expect = ["mask-after-softmax", "not-normalised", "leak-later"]
words = "the softmax runs over all steps and later ones are cut off afterwards: rows sum to less than 1 and know the future through the normaliser"


class Tracer(nn.Module):
    def __init__(self, mended, skills=12, width=16, hidden=24, inner=20):
        super().__init__()
        self.mended = mended
        self.skill, self.answer = nn.Embedding(skills, width), nn.Embedding(2, width)
        self.memory = nn.LSTM(2 * width, hidden, batch_first=True)
        self.inner = nn.Linear(hidden, inner)
        self.score = nn.Linear(inner, 1, bias=False)
        self.guess = nn.Linear(2 * hidden, skills)

    def look_back(self, states):
        a = self.score(torch.tanh(self.inner(states)))
        if self.mended:
            t = states.shape[1]
            grid = a.transpose(1, 2).expand(-1, t, -1)
            later = torch.ones(t, t, dtype=torch.bool).triu()          # a step sees those before it
            weights = grid.masked_fill(later, torch.finfo(grid.dtype).min).softmax(-1).masked_fill(later, 0.0)
            past = weights @ states
        else:
            weighted = a.softmax(dim=1) * states
            past = weighted.cumsum(1) - weighted
        return torch.cat([past, states], 2)

    def forward(self, skill, answer):
        s, r = self.skill(skill), self.answer(answer)
        ok = answer[..., None] == 1
        steps = torch.where(ok, torch.cat([s, r], -1), torch.cat([r, s], -1))
        states, _ = self.memory(steps)
        return torch.sigmoid(self.guess(self.look_back(states)))


def build(mended):
    torch.manual_seed(0)
    return Tracer(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(skill=torch.randint(0, 12, (2, 8)), answer=torch.randint(0, 2, (2, 8))), mask=it.causal(offset=-1))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    other = dict(x, skill=x["skill"].clone())
    other["skill"][:, -1] = (other["skill"][:, -1] + 1) % 12
    leaks = not torch.allclose(wrong()(**x)[:, 2], wrong()(**other)[:, 2], atol=1e-7)
    return leaks and torch.allclose(right()(**x)[:, 2], right()(**other)[:, 2], atol=1e-7)
