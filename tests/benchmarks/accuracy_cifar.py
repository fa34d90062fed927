"""Estimates beside what pytorch_memlab printed on a real GPU for the lines of a CIFAR network.

`python -m tests.benchmarks.accuracy_cifar`. The figures are of torch 1.x, in MiB: that torch zeroed
gradients in place, its relu kept its input for backward, and cuBLAS took its workspaces from the
driver; the program does the same, so that today's torch runs that torch's step.
"""

import os
from collections.abc import Iterator
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from tensorlens import Estimate, estimate
from tensorlens.records import ALLOC, FREE

PUBLISHED = {
    "self.conv1": 83.04,
    "self.conv2": 87.59,
    "x.view": 87.59,
    "self.fc1": 111.31,
    "self.fc2": 111.47,
    "self.fc3": 111.48,
    "self.criterion": 111.56,
    '["loss"].backward': 69.74,
}
"""What is allocated after each line of the second step, by a part of the line."""
BEFORE, AFTER = 22.22, 67.62
BATCH, LAST_BATCH = 256, 80


class KeptInput(torch.autograd.Function):
    """The relu of that torch, which kept what went in."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.clamp_min(x, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.threshold_backward(gradient, ctx.saved_tensors[0], 0)


class Net(nn.Module):
    """As published; the loss is taken before the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 12000)
        self.fc2 = nn.Linear(12000, 84)
        self.fc3 = nn.Linear(84, 10)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        relu = KeptInput.apply
        x = self.pool(relu(self.conv1(x)))
        x = self.pool(relu(self.conv2(x)))
        x = x.view(-1, 400)
        x = relu(self.fc1(x))
        x = relu(self.fc2(x))
        outputs = {"y": self.fc3(x)}
        outputs["loss"] = self.criterion(x, labels)
        return outputs


def train() -> None:
    """Two batches of 256, the last one of 80, and one more, whose step ends the one before."""
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    for size in (BATCH, BATCH, LAST_BATCH, LAST_BATCH):
        inputs, labels = torch.randn(size, 3, 32, 32), torch.randint(0, 84, (size,))
        inputs, labels = inputs.to("cuda"), labels.to("cuda")
        optimizer.zero_grad(set_to_none=False)
        outputs = net(inputs, labels)
        outputs["loss"].backward()
        optimizer.step()


def answer() -> Estimate:
    """Return the estimate of the steps, without workspaces of cuBLAS."""
    before = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":0:0"
    try:
        return estimate("tests.benchmarks.accuracy_cifar:train", card="v100", steps=4)
    finally:
        if before is None:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]
        else:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = before


def after_lines(found: Estimate, step: str, end: str) -> dict[str, int]:
    """Return the bytes that are allocated when each line has run between two marks."""
    log = found.recording.log
    number = log.devices.index("cuda:0")
    starts = {mark.name: mark.row for mark in log.marks}
    held, after = 0, {}
    for row, kind in enumerate(log.kind):
        if log.device[row] != number:
            continue
        if kind == ALLOC:
            held += log.held.get(row, log.size[row])
        elif kind == FREE:
            held -= log.held.get(log.pair[row], log.size[row])
        if starts[step] <= row < starts[end]:
            for line in _lines(found, row):
                after[line] = held
    return after


def _lines(found: Estimate, row: int) -> Iterator[str]:
    """Give the published lines that an event is on."""
    log = found.recording.log
    if log.stack[row] < 0:
        return
    for frame in log.stacks.of(log.stack[row]):
        source = log.sources.get(frame.filename) if frame.user else None
        if source and 0 < frame.lineno <= len(source):
            text = source[frame.lineno - 1]
            yield from (part for part in PUBLISHED if part in text and "nn." not in text)


def compared() -> list[tuple[str, float, float]]:
    """Return each published line with its MiB as published and as estimated."""
    found = answer()
    after = after_lines(found, "step 2", "step 3")
    # the optimizer of the last step asks for nothing more
    trained = after_lines(found, "step 3", "step 4")['["loss"].backward']
    rows, last = [], 0
    for line, figure in PUBLISHED.items():
        # a view asks for nothing: what was there stays
        last = after.get(line, last)
        rows.append((line, figure, last / 2**20))
    # nothing but the net is there before anything is trained
    parameters = found.by_role["parameter"]
    return [
        ("before training", BEFORE, parameters / 2**20),
        *rows,
        ("after training", AFTER, trained / 2**20),
    ]


def main() -> None:
    """Print published and estimated figures."""
    cells = [(*row, 100 * (row[2] / row[1] - 1)) for row in compared()]
    headers = ("allocated after", "published MiB", "estimated", "error %")
    print(tabulate(cells, headers=headers, floatfmt=("", ".2f", ".2f", "+.2f")))


if __name__ == "__main__":
    main()
