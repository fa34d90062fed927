"""Programs whose memory can be told by hand."""

import torch
from torch import nn

WIDTH, LAYERS, BLOCKS = 64, 4, 6
PARAMETERS = BLOCKS * LAYERS
PARAMETER_BYTES = PARAMETERS * WIDTH * WIDTH * 4


class Layer(nn.Module):
    """Keeps its output for backward, and its input, which is the output before it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def make_step(batch=1024):
    net = nn.Sequential(*(nn.Sequential(*(Layer() for _ in range(LAYERS))) for _ in range(BLOCKS)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    data = torch.randn(batch, WIDTH)

    def step():
        optimizer.zero_grad()
        loss = net(data).sum()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return step


def make_large(batch):
    """Hold 4 MiB for each of the batch, and train something small."""
    held = torch.ones(batch, 1 << 20)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step():
        optimizer.zero_grad()
        (weight * held[0, :1]).sum().backward()
        optimizer.step()

    return step
