"""A decoder step attends to the encoded features and then joins the source's context with itself. Source: github.com/CUNY-CL/yoyodyne/pull/147"""
import torch
from torch import nn
import intently as it

expect = ["output-lost", "cross-ignores-context"]
words = "the context of the features is computed and not used"


def asks():
    torch.manual_seed(3)
    n, m = torch.tensor([7, 5]), torch.tensor([4, 3])
    return dict(inputs=dict(symbol=torch.tensor([[3], [6]]), hidden=torch.randn(1, 2, 32), cell=torch.randn(1, 2, 32),
                            source=torch.randn(2, 7, 32), source_lengths=n, features=torch.randn(2, 4, 32), feature_lengths=m),
                mask={"source_attention*": it.padding(n), "feature_attention*": it.padding(m)})


class Additive(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.join = nn.Linear(2 * width, width)
        self.direction = nn.Linear(width, 1, bias=False)

    def forward(self, state, memory, lengths):
        state = state[:, None].expand(-1, memory.shape[1], -1)
        score = self.direction(torch.tanh(self.join(torch.cat([state, memory], 2)))).squeeze(2)
        empty = torch.arange(memory.shape[1]) >= lengths[:, None]
        share = score.masked_fill(empty, float("-inf")).softmax(1)
        return torch.bmm(share[:, None], memory), share


class InflectionStep(nn.Module):
    def __init__(self, width=32, symbols=12):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.source_attention, self.feature_attention = Additive(width), Additive(width)
        self.lstm = nn.LSTM(3 * width, width, batch_first=True)
        self.head = nn.Linear(3 * width, symbols)

    def both(self, context, feature_context):
        return torch.cat([context, context], 2)

    def forward(self, symbol, hidden, cell, source, source_lengths, features, feature_lengths):
        context, share = self.source_attention(hidden[-1], source, source_lengths)
        feature_context, _ = self.feature_attention(hidden[-1], features, feature_lengths)
        context = self.both(context, feature_context)
        y, (hidden, cell) = self.lstm(torch.cat([self.embed(symbol), context], 2), (hidden, cell))
        return self.head(torch.cat([y, context], 2)), share, hidden, cell


class InflectionStepMended(InflectionStep):
    def both(self, context, feature_context):
        return torch.cat([context, feature_context], 2)


def wrong():
    torch.manual_seed(0)
    return InflectionStep().eval()


def right():
    torch.manual_seed(0)
    return InflectionStepMended().eval()


def proof():
    x = asks()["inputs"]
    y = dict(x, features=x["features"] + 1)
    moved = lambda f: (f(**x)[0] - f(**y)[0]).abs().max()
    return bool(moved(wrong()) == 0 and moved(right()) > 1e-3)
