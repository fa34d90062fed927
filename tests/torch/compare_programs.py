"""Programs whose memory can be told by hand."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, LAYERS, BLOCKS = 64, 4, 4
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
    # by itself: what else takes random numbers in a process is not this test's
    torch.manual_seed(0)
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


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.convolutions[0](x)))
        return F.relu(x + self.norms[1](self.convolutions[1](y)))


class Encoder(nn.Module):
    """Layers that are copies of one, as ``nn.TransformerEncoder`` makes them."""

    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(500, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)).mean(1))


def make_cnn(batch, width=16):
    blocks = nn.Sequential(*(Residual(width) for _ in range(3)))
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    net = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), blocks, *ends)
    return _classifying(net, torch.randn(batch, 3, 32, 32))


def make_encoder(batch, width=64, length=64):
    return _classifying(Encoder(width), torch.randint(500, (batch, length)))


def _classifying(net, data):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    labels = torch.randint(10, (len(data),))

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(data), labels)
        loss.backward()
        optimizer.step()
        return loss

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
