"""Each head multiplies its scores by n_embd ** -0.5 instead of head_size ** -0.5. Source: github.com/cneuralnetwork/solving-ml-papers/issues/1"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["scale-model-width"]
words = "scores are scaled by the width of the model, not of one head"
WIDTH, HEADS, CONTEXT, VOCAB = 32, 4, 16, 23


class OneHead(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.to_key = nn.Linear(WIDTH, size, bias=False)
        self.to_query = nn.Linear(WIDTH, size, bias=False)
        self.to_value = nn.Linear(WIDTH, size, bias=False)
        self.register_buffer("past", torch.ones(CONTEXT, CONTEXT).tril().bool())
        self.drop = nn.Dropout(0.1)

    def factor(self, x, q):
        return x.shape[-1] ** -0.5

    def forward(self, x):
        steps = x.shape[1]
        q, k, v = self.to_query(x), self.to_key(x), self.to_value(x)
        scores = (q @ k.mT) * self.factor(x, q)
        scores = scores.masked_fill(~self.past[:steps, :steps], float("-inf"))
        return self.drop(F.softmax(scores, -1)) @ v


class OneHeadMended(OneHead):
    def factor(self, x, q):
        return q.shape[-1] ** -0.5


class Layer(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.heads = nn.ModuleList(head(WIDTH // HEADS) for _ in range(HEADS))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        a = self.norm_a(x)
        x = x + self.out(torch.cat([h(a) for h in self.heads], -1))
        return x + self.down(F.relu(self.up(self.norm_b(x))))


class CharModel(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(Layer(head), Layer(head))
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, VOCAB)

    def forward(self, idx):
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1]))
        return self.logits(self.norm(self.layers(x)))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(idx=torch.randint(0, VOCAB, (2, 8))), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return CharModel(OneHead).eval()


def right():
    torch.manual_seed(0)
    return CharModel(OneHeadMended).eval()


def proof():
    idx = asks()["inputs"]["idx"]
    return not torch.allclose(wrong()(idx), right()(idx), atol=1e-5)
