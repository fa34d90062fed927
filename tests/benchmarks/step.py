"""A training step of about 2 ms (MLP, Adam)."""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

STEPS = 40
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def training(wrap: Wrap, batch: int) -> Callable[[], Any]:
    """Return a function that runs STEPS training steps, its parts passed through `wrap`."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    optimizer = torch.optim.Adam(net.parameters())
    criterion = nn.CrossEntropyLoss()
    inputs, labels = torch.randn(batch, 256), torch.randint(0, 10, (batch,))

    def step():
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = wrap(step)

    def train():
        total = 0.0
        for _ in range(STEPS):
            total = total + step()
        return total

    return wrap(train)


def batch_of_two_milliseconds() -> int:
    """Return the batch size at which a step takes about 2 ms on this machine."""
    for batch in (32, 48, 64, 96, 128, 192, 256):
        train = training(lambda function: function, batch)
        train()
        times = []
        for _ in range(5):
            begun = perf_counter_ns()
            train()
            times.append(perf_counter_ns() - begun)
        if sorted(times)[2] / STEPS > 1.9e6:
            return batch
    return batch
