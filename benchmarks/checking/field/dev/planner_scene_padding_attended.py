"""The diffusion transformer of a driving planner attends to the whole scene, absent neighbours and lanes included: cross-attention gets no padding mask. Source: github.com/tier4/Diffusion-Planner/pull/156"""
import torch
from torch import nn

expect = ["padding-attended"]
words = "rows of the scene that stand for nothing are zero, and still get weight as keys"


class PlannerBlock(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm3 = nn.LayerNorm(width)
        self.self_attention = nn.MultiheadAttention(width, heads, 0.1, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(width, heads, 0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def look(self, x, scene, present):
        return self.cross_attention(self.norm3(x), scene, scene, need_weights=False)[0]

    def forward(self, x, scene, present, when):
        a, b, c, d, e, f = self.modulate(when)[:, None].chunk(6, dim=-1)
        h = self.norm1(x) * (1 + b) + a
        x = x + c * self.self_attention(h, h, h, need_weights=False)[0]
        x = x + f * self.mlp(self.norm2(x) * (1 + e) + d)
        return x + self.look(x, scene, present)


class PlannerBlockMended(PlannerBlock):
    def look(self, x, scene, present):
        return self.cross_attention(self.norm3(x), scene, scene, key_padding_mask=~present, need_weights=False)[0]


class Planner(nn.Module):
    """Denoises the trajectories of all agents, given the encoded scene and the diffusion time."""

    def __init__(self, kind, steps=4, width=32, depth=1):
        super().__init__()
        self.start = nn.Linear(steps * 2, width)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(kind(width) for _ in range(depth))
        self.end = nn.Linear(width, steps * 2)

    def forward(self, trajectories, scene, present, time):
        scene = scene * present[..., None]
        x, when = self.start(trajectories), self.time(time)
        for block in self.blocks:
            x = block(x, scene, present, when)
        return self.end(x)


LENGTHS = [8, 5]


def given():
    present = torch.arange(8) < torch.tensor(LENGTHS)[:, None]
    return dict(trajectories=torch.randn(2, 5, 8), scene=torch.randn(2, 8, 32), present=present, time=torch.rand(2, 1))


def asks():
    import intently as it
    return dict(inputs=given(), mask={"blocks.0.cross_attention": it.padding(LENGTHS)})


def wrong():
    torch.manual_seed(0)
    return Planner(PlannerBlock).eval()


def right():
    torch.manual_seed(0)
    return Planner(PlannerBlockMended).eval()


def proof():
    a = given()
    short = dict(a, scene=a["scene"][1:, :5], present=a["present"][1:, :5], trajectories=a["trajectories"][1:], time=a["time"][1:])
    with torch.no_grad():
        same = lambda m: torch.allclose(m(**a)[1:], m(**short), atol=1e-5)
        return same(right()) and not same(wrong())


if __name__ == "__main__":
    print(proof())
