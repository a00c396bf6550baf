"""The gate of each fact in a dynamic memory network is normalised over the batch, not over the facts. Source: github.com/therne/dmn-tensorflow/issues/6"""
import numpy as np

expect = ["softmax-over-batch"]
words = "for each fact the gates of all questions in the batch sum to 1"

def asks():
    r = np.random.default_rng(0)
    return dict(inputs=dict(facts=r.normal(size=(3, 5, 16)), question=r.normal(size=(3, 16)), memory=r.normal(size=(3, 16))))

def softmax(z, axis):
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)

def episode(per_fact):
    r = np.random.default_rng(7)
    w1, w2 = r.normal(size=(64, 20)) / 4, r.normal(size=(20,))

    def score(fact, question, memory):
        z = np.concatenate((fact * question, fact * memory, abs(fact - question), abs(fact - memory)), axis=-1)
        return np.tanh(z @ w1) @ w2

    def attend(facts, question, memory):
        scores = [score(facts[:, i], question, memory) for i in range(facts.shape[1])]
        if per_fact:
            gates = np.stack([softmax(s, axis=0) for s in scores], axis=1)
        else:
            gates = softmax(np.stack(scores, axis=1), axis=1)
        return np.einsum("bf,bfc->bc", gates, facts)

    return attend

def wrong():
    return episode(True)

def right():
    return episode(False)

def proof():
    i = asks()["inputs"]
    alone = wrong()(*(one[:1] for one in i.values()))
    return bool(np.allclose(alone[0], i["facts"][0].sum(0)) and np.abs(wrong()(**i) - right()(**i)).max() > .1)
