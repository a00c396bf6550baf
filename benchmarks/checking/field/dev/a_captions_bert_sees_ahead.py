"""A captioner feeds its decoder with BERT states of the whole caption: BERT is bidirectional, so each step knows the words it should predict. Source: github.com/ajamjoom/Image-Captions/issues/3"""
import torch
import torch.nn as nn
from transformers import BertConfig, BertModel
import intently as it

expect = ["mask-missing", "leak-later"]
words = "word states of an autoregressive decoder come from attention without a causal mask"


def bert(causal):
    return BertModel(BertConfig(vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
                                max_position_embeddings=32, is_decoder=causal), add_pooling_layer=False)


class Captioner(nn.Module):
    causal = False

    def __init__(self, image=20, size=28, vocab=40):
        super().__init__()
        self.words = bert(self.causal)
        self.of_image, self.of_state, self.energy = nn.Linear(image, 16), nn.Linear(size, 16), nn.Linear(16, 1)
        self.start = nn.Linear(image, size)
        self.cell = nn.GRUCell(24 + image, size)
        self.out = nn.Linear(size, vocab)

    def forward(self, regions, caption):
        """regions (b, r, image), caption (b, t)"""
        words = self.words(input_ids=caption).last_hidden_state
        h = torch.tanh(self.start(regions.mean(1)))
        ys = []
        for i in range(caption.shape[1]):
            z = self.energy(torch.relu(self.of_image(regions) + self.of_state(h)[:, None]))
            look = (z.softmax(1) * regions).sum(1)
            h = self.cell(torch.cat([words[:, i], look], -1), h)
            ys.append(self.out(h))
        return torch.stack(ys, 1)


class CaptionerMended(Captioner):
    causal = True


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(regions=torch.randn(2, 5, 20), caption=torch.randint(1, 40, (2, 7))), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return Captioner().eval()


def right():
    torch.manual_seed(0)
    return CaptionerMended().eval()


def proof():
    i = asks()["inputs"]
    other = i["caption"].clone()
    other[:, -1] = 1 + other[:, -1] % 39
    a, b = wrong()(**i)[:, :-1], wrong()(i["regions"], other)[:, :-1]
    c, d = right()(**i)[:, :-1], right()(i["regions"], other)[:, :-1]
    return not torch.allclose(a, b, atol=1e-6) and torch.allclose(c, d, atol=1e-6)
