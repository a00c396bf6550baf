"""A sentence-pair classifier pads its texts and sets the attention mask to 1 everywhere, padding included. Source: github.com/yg211/bert_nli/pull/3"""
import torch
import torch.nn as nn
from transformers import BertConfig, BertModel
import intently as it

expect = ["padding-attended"]
words = "the mask of padded tokens is 1, so BERT attends to padding"


class PairClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                         intermediate_size=48, max_position_embeddings=32))
        self.head = nn.Linear(32, 3)

    def mask(self, ids, lengths):
        return torch.ones_like(ids)

    def forward(self, ids, segments, lengths):
        y = self.bert(input_ids=ids, token_type_ids=segments, attention_mask=self.mask(ids, lengths))
        return self.head(y.pooler_output)


class PairClassifierMended(PairClassifier):
    def mask(self, ids, lengths):
        return (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()


def asks():
    torch.manual_seed(1)
    lengths = torch.tensor([8, 5])
    real = torch.arange(8)[None] < lengths[:, None]
    ids = torch.randint(1, 50, (2, 8)) * real
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0]])
    return dict(inputs=dict(ids=ids, segments=segments, lengths=lengths), mask=it.padding(lengths))


def wrong():
    torch.manual_seed(0)
    return PairClassifier().eval()


def right():
    torch.manual_seed(0)
    return PairClassifierMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-6)
