"""The Luong attention of a chatbot tutorial weighs all encoder outputs of a batch, also the zeros behind shorter sentences. Source: github.com/pytorch/tutorials/issues/593"""
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

expect = ["padding-attended"]
words = "no mask of source lengths before the softmax"


class Encoder(nn.Module):
    def __init__(self, embedding, width):
        super().__init__()
        self.embedding = embedding
        self.gru = nn.GRU(width, width, 2, bidirectional=True)

    def forward(self, source, lengths):
        packed = pack_padded_sequence(self.embedding(source), lengths)
        out, state = self.gru(packed)
        out, _ = pad_packed_sequence(out)
        forth, back = out.chunk(2, dim=2)
        return forth + back, state


class Luong(nn.Module):
    def __init__(self, method, width):
        super().__init__()
        self.method = method
        if method == "general":
            self.general = nn.Linear(width, width)

    def scores(self, state, memory):
        if self.method == "general":
            memory = self.general(memory)
        return (state * memory).sum(dim=2).t()

    def forward(self, state, memory, lengths):
        return F.softmax(self.scores(state, memory), dim=1).unsqueeze(1)


class LuongMended(Luong):
    def forward(self, state, memory, lengths):
        score = self.scores(state, memory)
        beyond = torch.arange(score.shape[1])[None] >= lengths[:, None]
        return F.softmax(score.masked_fill(beyond, float("-inf")), dim=1).unsqueeze(1)


class Chat(nn.Module):
    """Teacher forcing: every step attends, and its context joins the GRU's output."""

    def __init__(self, attention, words=20, width=16):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.encoder = Encoder(self.embedding, width)
        self.gru = nn.GRU(width, width, 2)
        self.attention = attention("dot", width)
        self.concat = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, words)

    def forward(self, source, lengths, target):
        memory, state = self.encoder(source, lengths)
        state = state[:2]
        steps = []
        for word in target:
            out, state = self.gru(self.embedding(word)[None], state)
            weight = self.attention(out, memory, lengths)
            context = weight.bmm(memory.transpose(0, 1)).squeeze(1)
            steps.append(self.out(torch.tanh(self.concat(torch.cat((out[0], context), dim=1)))))
        return torch.stack(steps)


LENGTHS = [7, 4]


def given():
    source = torch.tensor([[3, 4, 5, 6, 7, 8, 2], [9, 10, 11, 2, 0, 0, 0]]).t()
    return dict(source=source, lengths=torch.tensor(LENGTHS), target=torch.tensor([[1, 12, 13, 14, 15], [1, 16, 17, 18, 19]]).t())


def asks():
    import intently as it
    return dict(inputs=given(), mask=it.padding(LENGTHS))


def wrong():
    torch.manual_seed(0)
    return Chat(Luong).eval()


def right():
    torch.manual_seed(0)
    return Chat(LuongMended).eval()


def proof():
    a = given()
    alone = dict(source=a["source"][:4, 1:], lengths=a["lengths"][1:], target=a["target"][:, 1:])
    with torch.no_grad():
        same = lambda m: torch.allclose(m(**a)[:, 1:], m(**alone), atol=1e-5)
        return same(right()) and not same(wrong())


if __name__ == "__main__":
    print(proof())
