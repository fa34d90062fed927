"""The network that pytorch_memlab's figures were published for: every byte of them by name.

The article printed, on a GPU, 22.22 MiB used and allocated before training; after an epoch whose
last batch has 80 images, 67.59 MiB used of 67.62 allocated, with 14 tensors it had no name for.
"""

import gc

import torch
from torch import nn
from torch.nn import functional as F

import tensorlens

PARAMETERS = {
    "conv1.weight": 6 * 3 * 5 * 5,
    "conv1.bias": 6,
    "conv2.weight": 16 * 6 * 5 * 5,
    "conv2.bias": 16,
    "fc1.weight": 12000 * 400,
    "fc1.bias": 12000,
    "fc2.weight": 84 * 12000,
    "fc2.bias": 84,
    "fc3.weight": 10 * 84,
    "fc3.bias": 10,
}
WITH_GRADIENT = [name for name in PARAMETERS if not name.startswith("fc3")]
"""The loss takes x rather than y: fc3 gets no gradient."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 12000)
        self.fc2 = nn.Linear(12000, 84)
        self.fc3 = nn.Linear(84, 10)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x, labels):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 400)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return {"y": self.fc3(x), "loss": self.criterion(x, labels)}


def counted(snapshot, known):
    """Return name to bytes of the rows that stand for a storage, those of before aside."""
    return {
        each.name.removeprefix("test_cifar_tables_of_the_article(): "): each.storage_nbytes
        for each in snapshot.tensors
        if each.alias_of is None and each.device == "cpu" and each.storage not in known
    }


def in_blocks(sizes):
    """Return MiB as the article prints them: a GPU hands out multiples of 512 B."""
    return f"{sum(-(-size // 512) * 512 for size in sizes) / 2**20:.2f}"


def test_cifar_tables_of_the_article():
    gc.collect()
    known = {each.storage for each in tensorlens.MemReporter().snapshot().tensors}
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    reporter = tensorlens.MemReporter(net, optimizer)
    before = counted(reporter.snapshot(), known)
    assert before == {name: 4 * count for name, count in PARAMETERS.items()}
    assert in_blocks(before.values()) == "22.22"
    for batch in (256, 80):
        inputs, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
        optimizer.zero_grad()
        outputs = net(inputs, labels)
        outputs["loss"].backward()
        optimizer.step()
    snapshot = reporter.snapshot()
    assert snapshot.ledger["cpu"].unnamed == 0
    after = counted(snapshot, known)
    held = after.pop("fc3: AddmmBackward0.mat1")
    assert after == {
        **before,
        **{f"{name}.grad": 4 * PARAMETERS[name] for name in WITH_GRADIENT},
        **{f"SGD.{name}.momentum_buffer": 4 * PARAMETERS[name] for name in WITH_GRADIENT},
        "inputs": 80 * 3 * 32 * 32 * 4,
        "labels": 80 * 8,
        "outputs['y']": 80 * 10 * 4,
        "outputs['loss']": 4,
    }
    assert in_blocks(after.values()) == "67.59"
    # what was allocated and not in the article's list: the graph of y, which backward never frees
    assert held == 80 * 84 * 4
    assert in_blocks([*after.values(), held]) == "67.62"
