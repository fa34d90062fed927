"""One small training program, and a script of it; its bytes are worked out by hand."""

from __future__ import annotations

import torch
from torch import nn

ROWS, WIDTH, HIDDEN = 32, 64, 256
WEIGHT = WIDTH * HIDDEN * 4
PARAMETERS = 2 * WEIGHT
DATA = ROWS * WIDTH * 4
HIDDEN_BYTES = ROWS * HIDDEN * 4
"""Of what ``up`` gives, and of what relu makes of it."""
OUTPUT = ROWS * WIDTH * 4


class Net(nn.Module):
    """Two layers without biases."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        return self.down(hidden)


def make_step(rows=ROWS, momentum=0.9):
    """Train with SGD and momentum: a parameter, a gradient and a buffer of each weight."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum, foreach=False)
    data = torch.zeros(rows, WIDTH)

    def step():
        optimizer.zero_grad()
        loss = net(data).sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


def make_forward():
    """Run forward alone, without a graph."""
    net = Net()
    data = torch.zeros(ROWS, WIDTH)

    def step():
        with torch.no_grad():
            net(data)

    return step


def make_lstm():
    """Train one on a card, where its weights are packed into one block."""
    net = nn.LSTM(8, 16).cuda()
    data = torch.zeros(5, 4, 8, device="cuda")

    def step():
        net(data)[0].sum().backward()

    return step


def make_attention(heads=4, length=128, width=64):
    """Attend to itself, in half precision and without a graph."""
    query = torch.zeros(2, heads, length, width, dtype=torch.float16, device="cuda")

    def step():
        with torch.no_grad():
            nn.functional.scaled_dot_product_attention(query, query, query)

    return step


SCRIPT = """
import torch

kept = []


def step(i):
    row = torch.zeros(1024)
    double = row + 1
    kept.append(double)


if __name__ == "__main__":
    for i in range(8):
        step(i)
"""
"""Each of the eight steps makes two rows of 4,096 bytes and leaves one of them behind."""
ROW = 4096
