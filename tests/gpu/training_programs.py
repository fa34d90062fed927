"""Training steps that need no cuDNN, which a stand-in of a card does not have."""

from itertools import pairwise

import torch
from torch import nn


def _training(net, loss_of, optimizer):
    net = net.cuda()
    optimizer = optimizer(net.parameters())

    def step():
        optimizer.zero_grad()
        loss = loss_of(net)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return step


def _classified(inputs, classes):
    inputs = inputs.cuda()
    labels = torch.randint(0, classes, (len(inputs),), device="cuda")
    return lambda net: nn.functional.cross_entropy(net(inputs), labels)


def perceptron():
    """Three layers up to 512 wide."""
    widths = pairwise((256, 512, 512))
    layers = [each for wide in widths for each in (nn.Linear(*wide), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(512, 10))
    return _training(net, _classified(torch.randn(96, 256), 10), torch.optim.Adam)


def small_layers():
    """Twenty ``Linear(64, 64)``."""
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))
    return _training(
        net,
        _classified(torch.randn(32, 64), 64),
        lambda parameters: torch.optim.Adam(parameters, foreach=False),
    )


class _Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        shape = (*x.shape[:2], self.heads, -1)
        query, key, value = (
            part.reshape(shape).transpose(1, 2) for part in self.inner(self.first(x)).chunk(3, 2)
        )
        scores = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(-1)
        x = x + self.outer((scores @ value).transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def _transformer(dtype):
    net = nn.Sequential(nn.Embedding(65, 128), *(_Block(128, 4) for _ in range(4)))
    net.append(nn.Linear(128, 65))
    tokens = torch.randint(0, 65, (4, 64), device="cuda")

    def loss_of(net):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            return nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())

    return _training(net, loss_of, torch.optim.AdamW)


def transformer():
    """Four blocks with attention written out."""
    return _transformer(None)


def transformer_in_bfloat16():
    """The same in autocast."""
    return _transformer(torch.bfloat16)


def lstm():
    """Two layers without cuDNN."""
    torch.backends.cudnn.enabled = False
    inputs = torch.randn(16, 20, 64, device="cuda")
    net = nn.LSTM(64, 128, 2, batch_first=True)
    return _training(net, lambda net: net(inputs)[0].square().mean(), torch.optim.RMSprop)
