"""Programs in which something takes memory that need not."""

import functools
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

WIDTH, LAYERS, BLOCKS = 64, 3, 4
PARAMETERS = BLOCKS * LAYERS
PARAMETER_BYTES = PARAMETERS * WIDTH * WIDTH * 4
BATCH = 1024
OUTPUT_BYTES = BATCH * WIDTH * 4
CLASSES = 1000


class Layer(nn.Module):
    """Keeps its output for backward, and its input, which is the output before it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return functional.relu(x + self.second(functional.relu(self.norm(self.first(x)))))


def make_stack():
    """Gradients are filled with zeros, and Adam has two numbers for each parameter."""
    net = nn.Sequential(*(nn.Sequential(*(Layer() for _ in range(LAYERS))) for _ in range(BLOCKS)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-6)
    data = torch.randn(BATCH, WIDTH)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = net(data).sum()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return step


def make_convolutions():
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        *(Residual(16) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data, wanted = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(data), wanted)
        loss.backward()
        optimizer.step()
        return loss

    return step


def make_encoder():
    """Logits wait for backward, which has no use for them."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    net = nn.Sequential(
        nn.Embedding(CLASSES, 64),
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        nn.Linear(64, CLASSES),
    )
    optimizer = torch.optim.AdamW(net.parameters())
    words = torch.randint(CLASSES, (8, 64))

    def step():
        optimizer.zero_grad(set_to_none=False)
        logits = net(words)
        loss = functional.cross_entropy(logits.view(-1, CLASSES), words.view(-1))
        loss.backward()
        optimizer.step()
        return loss

    return step


LOGITS_BYTES = 8 * 64 * CLASSES * 4


def make_keeper(keeps=True):
    """What the last step gave is kept while the next one runs, and so are its gradients."""
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4 * WIDTH))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    data = torch.randn(BATCH, WIDTH)
    last = []

    def step():
        optimizer.zero_grad()
        outputs = net(data)
        outputs.pow(2).sum().backward()
        optimizer.step()
        if keeps:
            last[:] = [outputs.detach()]

    return step


def make_late(width=512, first=False):
    """Gradients go after forward, when they have been beside all that it kept; or before it."""
    net = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    data = torch.randn(width, width)

    def step():
        if first:
            optimizer.zero_grad()
        loss = net(data).sum()
        if not first:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def make_lean():
    """Nothing that could be given up."""
    weight = torch.ones(1 << 20, requires_grad=True)

    def step():
        weight.sum().backward()
        weight.grad = None

    return step


COLUMNS, ROWS, WORKERS, PREFETCH = 5000, 16, 2, 4
LOADED_BYTES = ROWS * COLUMNS * 4 + ROWS * 8
"""A batch of float32 rows, and a number of int64 each."""


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40 * ROWS

    def __getitem__(self, at):
        return torch.full((COLUMNS,), float(at)), at


def make_loading(workers=WORKERS, prefetch=PREFETCH):
    """Batches wait for the step, and the output of the model for backward."""
    loader = DataLoader(Rows(), ROWS, num_workers=workers, prefetch_factor=prefetch)
    net = nn.Linear(COLUMNS, 16, bias=False)
    batches = iter(loader)

    def step():
        rows, numbers = next(batches)
        net.zero_grad()
        loss = (net(rows).sum(1) * numbers).sum()
        loss.backward()
        return loss

    return step


class CachingBlock(nn.Module):
    """Adds its input to a cache, as an attention of transformers does its keys."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x, cache, place):
        known = x
        if cache is not None:
            known = cache[place] = torch.cat([*cache.get(place, ()), x])[None]
        return x + self.inner(known.reshape(-1, x.shape[1]))[-len(x) :]


class CachingModel(nn.Module):
    def __init__(self, blocks=4, width=64, switch=True):
        super().__init__()
        self.config = SimpleNamespace(use_cache=True) if switch else None
        self.blocks = nn.ModuleList(CachingBlock(width) for _ in range(blocks))

    def forward(self, x):
        cache = {} if self.config is None or self.config.use_cache else None
        for place, block in enumerate(self.blocks):
            x = block(x, cache, place)
        return x


def make_caching(switch=True):
    """Blocks with a cache, whose use the model's configuration switches off where it has one."""
    model = CachingModel(switch=switch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(1024, 64)

    def step():
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def make_always_caching():
    return make_caching(switch=False)


class Adapted(nn.Module):
    """A linear layer that is not trained, beside two small ones that are, as LoRA has them."""

    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x):
        return torch.relu(self.base(x) + self.up(self.down(x)))


class Supported(nn.Module):
    """Has what transformers' models have to checkpoint their blocks."""

    supports_gradient_checkpointing = True

    def __init__(self, width, blocks):
        super().__init__()
        self.first = nn.Linear(width, width).requires_grad_(False)
        self.blocks = nn.ModuleList(
            nn.Sequential(Adapted(width), Adapted(width)) for _ in range(blocks)
        )

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        for block in self.blocks:
            block.forward = functools.partial(
                checkpoint, block.forward, **(gradient_checkpointing_kwargs or {})
            )


class Delegating(nn.Module):
    """Hands attributes of the model inside on, as PEFT's models do."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)

    def forward(self, x):
        return self.model(x)


def make_adapted(change=None):
    """Adapters beside layers that are not trained, under autocast of its own."""
    torch.manual_seed(0)
    model = Delegating(Supported(64, 4))
    if change is not None:
        exec(change, {"model": model})
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    x = torch.ones(1024, 64)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


def make_following():
    """A step that reads Adam's state, which plain SGD does not have."""
    model = nn.Sequential(nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 200))
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        model(torch.ones(4, 200)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return optimizer.state[model[0].weight]["exp_avg"].sum()

    return step


class Wrapper(torch.optim.Optimizer):
    """Stands before an optimizer and has all from it, as accelerate's does."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def state(self):
        return self.optimizer.state

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.optimizer.step(closure)


def train_wrapped():
    model = nn.Linear(200, 200)
    optimizer = Wrapper(torch.optim.Adam(model.parameters()))
    for _ in range(9):
        model(torch.ones(4, 200)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


SCRIPT = """
import torch
from suggest_programs import CachingModel

def main():
    model = CachingModel(switch=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.ones(1024, 64)
    for _ in range(9):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

main()
"""
TOP_LEVEL = SCRIPT.replace("def main():", "if True:").replace("main()", "")
