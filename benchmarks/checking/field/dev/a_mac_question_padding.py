"""The control unit of a MAC network attends to the padding of the question: lengths never reach its softmax. Source: github.com/rosinality/mac-network-pytorch/issues/7"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["padding-attended"]
words = "words beyond the length of a question keep weight"


class Control(nn.Module):
    def __init__(self, width=24, steps=3):
        super().__init__()
        self.per_step = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(steps))
        self.both = nn.Linear(2 * width, width)
        self.score = nn.Linear(width, 1)

    def weigh(self, z, lengths):
        return F.softmax(z, 1)

    def forward(self, words, question, control, lengths, step=0):
        """words (b, s, d), question (b, 2 d), control (b, d), lengths (b,)"""
        cq = self.both(torch.cat([control, self.per_step[step](question)], 1))
        z = self.score(cq.unsqueeze(1) * words)
        return (self.weigh(z, lengths) * words).sum(1)


class ControlMended(Control):
    def weigh(self, z, lengths):
        real = torch.arange(z.shape[1])[None] < lengths[:, None]
        return F.softmax(z.masked_fill(~real[..., None], float("-inf")), 1)


def asks():
    torch.manual_seed(1)
    lengths = torch.tensor([7, 4])
    return dict(inputs=dict(words=torch.randn(2, 7, 24), question=torch.randn(2, 48), control=torch.randn(2, 24), lengths=lengths),
                mask=it.padding(lengths))


def wrong():
    torch.manual_seed(0)
    return Control().eval()


def right():
    torch.manual_seed(0)
    return ControlMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
