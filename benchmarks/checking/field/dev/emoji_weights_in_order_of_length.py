"""An LSTM that sorts its texts by length puts its scores back into the caller's order, but returns the attention weights in the sorted order. Source: github.com/huggingface/torchMoji/issues/25"""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

expect = ["output-reordered", "batch-mixed"]
words = "the returned weights of a row are those of another text of the batch, unless texts come sorted by length"


class Pooling(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention_vector = nn.Parameter(torch.randn(width) / width ** 0.5)

    def forward(self, states, lengths):
        logits = states @ self.attention_vector
        unnorm = (logits - logits.amax(1, keepdim=True)).exp()
        masked = unnorm * (torch.arange(states.shape[1])[None] < lengths[:, None]).float()
        weights = masked / masked.sum(1, keepdim=True)
        return (states * weights.unsqueeze(-1)).sum(1), weights


class EmojiModel(nn.Module):
    def __init__(self, vocab=70, embed=20, hidden=16, classes=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, embed, padding_idx=0)
        self.lstm_0 = nn.LSTM(embed, hidden, batch_first=True, bidirectional=True)
        self.lstm_1 = nn.LSTM(2 * hidden, hidden, batch_first=True, bidirectional=True)
        self.attention_layer = Pooling(4 * hidden + embed)
        self.output_layer = nn.Linear(4 * hidden + embed, classes)

    def reorder(self, outputs, weights, perm_idx):
        back = perm_idx.argsort()
        return outputs[back], weights[back]

    def forward(self, input_seqs):
        lengths = (input_seqs != 0).sum(1)
        lengths, perm_idx = lengths.sort(descending=True)
        x = torch.tanh(self.embed(input_seqs[perm_idx]))
        pack = lambda y: pack_padded_sequence(y, lengths.cpu(), batch_first=True)
        unpack = lambda y: pad_packed_sequence(y, batch_first=True, total_length=input_seqs.shape[1])[0]
        first, _ = self.lstm_0(pack(x))
        second, _ = self.lstm_1(first)
        pooled, weights = self.attention_layer(torch.cat((unpack(second), unpack(first), x), dim=2), lengths)
        return self.reorder(self.output_layer(pooled).softmax(-1), weights, perm_idx)


class Reported(EmojiModel):
    def reorder(self, outputs, weights, perm_idx):
        reordered = outputs.new_empty(outputs.shape)
        reordered[perm_idx] = outputs
        return reordered, weights


def asks():
    ids = torch.randint(1, 70, (3, 8))
    for row, n in enumerate((4, 8, 6)):
        ids[row, n:] = 0
    return dict(inputs=dict(input_seqs=ids))


def _make(cls):
    torch.manual_seed(0)
    return cls().eval()


def wrong():
    return _make(Reported)


def right():
    return _make(EmojiModel)


def proof():
    ids = asks()["inputs"]["input_seqs"]
    bad, good = wrong()(ids), right()(ids)
    real = ids != 0
    return torch.equal(bad[0], good[0]) and bool((good[1] > 0).eq(real).all()) and not bool((bad[1] > 0).eq(real).all())
