"""An additive attention in a melody model applies its softmax over the last axis of scores (batch, time, 1), so every weight is 1. Source: github.com/tsunrise/everybody-compose/pull/53"""
import torch
import torch.nn as nn

expect = ["not-normalised"]
words = "the softmax runs over an axis of one, every weight is 1, and the context is the sum of all states"


class MelodyModel(nn.Module):
    over = 2

    def __init__(self, notes=16, embed=12, hidden=20):
        super().__init__()
        self.notes, self.hidden = notes, hidden
        self.reader = nn.LSTM(2, embed, batch_first=True, bidirectional=True)
        self.note = nn.Embedding(notes, embed)
        self.energy = nn.Sequential(nn.Linear(2 * embed + hidden, embed), nn.LeakyReLU(), nn.Linear(embed, 1))
        self.weigh = nn.Softmax(dim=self.over)
        self.mix = nn.Sequential(nn.Linear(3 * embed, 3 * embed), nn.LeakyReLU())
        self.writer = nn.LSTM(3 * embed, hidden, batch_first=True)
        self.out = nn.Linear(hidden, notes)

    def look(self, states, h):
        b, t, _ = states.shape
        query = h.permute(1, 0, 2).expand(b, t, -1)
        w = self.weigh(self.energy(torch.cat([query, states], -1)))
        return torch.bmm(w.view(b, 1, t), states)

    def forward(self, beats, notes):
        """beats (b, t, 2), notes (b, t): the note before each beat"""
        b, t, _ = beats.shape
        states, _ = self.reader(beats)
        h = c = beats.new_zeros(1, b, self.hidden)
        ys = []
        for i in range(t):
            x = torch.cat([self.look(states, h), self.note(notes[:, i : i + 1])], -1)
            y, (h, c) = self.writer(self.mix(x) + x, (h, c))
            ys.append(self.out(y))
        return torch.cat(ys, 1)


class MelodyModelMended(MelodyModel):
    over = 1


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(beats=torch.rand(2, 6, 2), notes=torch.randint(0, 16, (2, 6))))


def wrong():
    torch.manual_seed(0)
    return MelodyModel().eval()


def right():
    torch.manual_seed(0)
    return MelodyModelMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-4)
