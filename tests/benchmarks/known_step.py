"""A step whose bytes are known by hand, and one that leaks: the questions to profilers are of it.

Float32 throughout; a matrix of 2,048 by 1,024 is 8 MiB, a weight of 1,024 by 1,024 is 4 MiB::

    python -m tests.benchmarks.known_step [step | leaky_step]
"""

import sys

import torch
import torch._dynamo  # else the first step of an optimizer imports it, as bytes of that line
from torch import nn

MIB = 1 << 20
BATCH, WIDTH, LEAKED_ROWS, STEPS = 2048, 1024, 256, 20
MATRIX = BATCH * WIDTH * 4
PARAMETERS = GRADIENTS = SLOTS = 2 * WIDTH * WIDTH * 4
"""SGD with momentum has one slot as large as each weight."""
ACTIVATIONS = 2 * MATRIX
"""Made by forward and alive in backward: ``active`` and ``output``."""
PEAK_LINE = "output.backward(target)"
OWN_AT_PEAK = WIDTH * WIDTH * 4 + 2 * MATRIX
"""Allocated by that line: the second weight's gradient, those of ``active`` and of relu's input."""
PEAK = PARAMETERS + SLOTS + 2 * MATRIX + ACTIVATIONS + OWN_AT_PEAK
"""With inputs and target. From the second step on, when there are slots."""
LEAK_LINE = "history.append(active.detach()[:LEAKED_ROWS].clone())"
LEAK = LEAKED_ROWS * WIDTH * 4


class Net(nn.Module):
    """Two layers without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(inputs)))


def parts():
    """Return model, optimizer, inputs and the gradient of the output."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
    return model, optimizer, torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)


def make_step():
    """Return the step."""
    return step_of(*parts())


def step_of(model, optimizer, inputs, target):
    """Return the step of these parts."""

    def step():
        optimizer.zero_grad()
        active = torch.relu(model.first(inputs))
        output = model.second(active)
        output.backward(target)
        optimizer.step()

    return step


def leaky_step_of(model, optimizer, inputs, target, history):
    """Return a step that keeps 1 MiB each time."""

    def leaky_step():
        optimizer.zero_grad()
        active = torch.relu(model.first(inputs))
        output = model.second(active)
        output.backward(target)
        optimizer.step()
        history.append(active.detach()[:LEAKED_ROWS].clone())

    return leaky_step


def main() -> None:
    """Train for some steps."""
    history: list[torch.Tensor] = []
    is_leaky = sys.argv[1:] == ["leaky_step"]
    step = leaky_step_of(*parts(), history) if is_leaky else make_step()
    for _ in range(STEPS):
        step()


if __name__ == "__main__":
    main()
