"""The attention of a translation tutorial makes its weights of the decoder alone: a linear layer of input and state with one output per source position. Source: github.com/spro/practical-pytorch/issues/84"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["scores-other", "differs-from-reference"]
words = "weights have no relation to the encoder's outputs; Bahdanau's energy takes the decoder state and each encoder state"


class DecoderOverPlaces(nn.Module):
    """embedded (b, e), hidden (b, d), encoder_outputs (b, s, d)."""

    def __init__(self, embed=16, width=24, max_length=8):
        super().__init__()
        self.attn = nn.Linear(embed + width, max_length)
        self.combine = nn.Linear(embed + width, width)

    def forward(self, embedded, hidden, encoder_outputs):
        energies = self.attn(torch.cat((embedded, hidden), 1))[:, :encoder_outputs.size(1)]
        weights = F.softmax(energies, dim=1)
        context = torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1)
        return F.relu(self.combine(torch.cat((embedded, context), 1))), weights


class DecoderOverStates(DecoderOverPlaces):
    def __init__(self, embed=16, width=24, max_length=8):
        super().__init__(embed, width, max_length)
        self.attn = nn.Linear(2 * width, width)
        self.v = nn.Linear(width, 1, bias=False)

    def forward(self, embedded, hidden, encoder_outputs):
        pairs = torch.cat((hidden.unsqueeze(1).expand(-1, encoder_outputs.size(1), -1), encoder_outputs), -1)
        weights = F.softmax(self.v(torch.tanh(self.attn(pairs))).squeeze(-1), dim=1)
        context = torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1)
        return F.relu(self.combine(torch.cat((embedded, context), 1))), weights


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(embedded=torch.randn(2, 16), hidden=torch.randn(2, 24), encoder_outputs=torch.randn(2, 8, 24)))


def wrong():
    torch.manual_seed(1)
    return DecoderOverPlaces().eval()


def right():
    torch.manual_seed(1)
    return DecoderOverStates().eval()


@torch.no_grad()
def proof():
    q = asks()["inputs"]
    other = dict(q, encoder_outputs=q["encoder_outputs"].flip(1) * 2)
    moves = lambda f: float((f(**q)[1] - f(**other)[1]).abs().max())
    return moves(wrong()) == 0 and moves(right()) > 1e-3
