"""The network of PyTorch's CIFAR-10 tutorial with a wide first linear layer, looked at closely.

Which tensors are in memory before training and after a step, what was there at the peak of the
next step, what does each forward line cost again in backward, and which lines take the memory?
Runs on a GPU when there is one, else on the CPU, on random data shaped like CIFAR-10; nothing is
downloaded.

    python samples/cifar10.py [--device cpu|cuda] [--steps N] [--batch N]
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import tensorlens


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 12000)
        self.fc2 = nn.Linear(12000, 84)
        self.fc3 = nn.Linear(84, 10)
        self.criterion = nn.CrossEntropyLoss()

    @tensorlens.profile
    def forward(self, x, labels=None):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        y = self.fc3(x)
        outputs = {"y": y}
        if labels is not None:
            outputs["loss"] = self.criterion(x, labels)
        return outputs


@tensorlens.profile
def backward(outputs):
    outputs["loss"].backward()


@tensorlens.profile
def train(net, optimizer, loader, device, reporter):
    before = reporter.report()
    for step, (inputs, labels) in enumerate(loader):
        inputs, labels = inputs.to(device), labels.to(device)
        if step == 1:
            recording = tensorlens.record(net, optimizer).start()
        optimizer.zero_grad()
        outputs = net(inputs, labels)
        backward(outputs)
        optimizer.step()
        if step == 0:
            after = reporter.report()
            print(after - before)
        if step == 1:
            print(recording.stop())
    return outputs["loss"].item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=4, help="full batches; one of 80 follows")
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()

    torch.manual_seed(0)
    count = options.steps * options.batch + 80
    images = torch.randn(count, 3, 32, 32)
    labels = torch.randint(0, 10, (count,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=options.batch)
    net = Net().to(options.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    reporter = tensorlens.MemReporter(net, optimizer)
    loss = train(net, optimizer, loader, options.device, reporter)
    print(f"loss after {len(loader)} steps on {options.device}: {loss:.3f}\n")


if __name__ == "__main__":
    main()
