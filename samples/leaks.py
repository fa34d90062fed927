"""Ten real causes of memory that grows with every step, each a small training loop.

python samples/leaks.py            # lists them
python samples/leaks.py history    # runs one, and says what it leaves behind
"""

import functools
import sys

import torch
from torch import nn

import tensorlens


def make_model():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.optim.Adam(model.parameters())


def batch():
    return torch.randn(32, 64), torch.randint(0, 10, (32,))


def history():
    """Losses are kept as tensors, from before backward has freed their graph."""
    model, _ = make_model()
    losses = []

    def step():
        x, y = batch()
        losses.append(nn.functional.cross_entropy(model(x), y))

    return step


def running_total():
    """The sum of the losses has a graph that gets longer with every step."""
    model, optimizer = make_model()
    total = torch.zeros(())

    def step():
        nonlocal total
        x, y = batch()
        loss = nn.functional.cross_entropy(model(x), y)
        total = total + loss
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()

    return step


class Recorder:
    """Keeps what a layer gives out."""

    def __init__(self):
        self.seen = []

    def hook(self, module, arguments, output):
        self.seen.append(output)


def forward_hook():
    """A hook that is meant for one look keeps the outputs of all steps."""
    model, optimizer = make_model()
    recorder = Recorder()
    model[0].register_forward_hook(recorder.hook)

    def step():
        x, y = batch()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def registered_each_step():
    """A hook is registered in every step and never removed."""
    model, _ = make_model()

    def step():
        x, _ = batch()
        scale = torch.rand(1024)
        model[2].register_forward_hook(lambda module, arguments, output: output * scale.mean())
        with torch.no_grad():
            model(x)

    return step


def default_argument():
    """A default value is made only once."""
    model, _ = make_model()

    def evaluate(x, outputs=[]):  # noqa: B006
        with torch.no_grad():
            outputs.append(model(x))
        return torch.cat(outputs).mean()

    def step():
        return evaluate(batch()[0]).item()

    return step


def lru_cache():
    """A cache without a bound, keyed by something that is new in each step."""

    @functools.lru_cache(maxsize=None)  # noqa: UP033
    def mask(length):
        return torch.ones(length, length).tril()

    def step(number):
        mask(64 + number)

    return step


def small_view():
    """The first row of each batch is kept, and with it the whole batch."""
    firsts = []

    def step():
        x = torch.randn(256, 1024)
        firsts.append(x[0])

    return step


def exceptions():
    """Errors are kept to be reported later; their tracebacks keep the variables."""
    errors = []

    def train_step():
        activations = torch.randn(1000, 100)
        raise ValueError(f"bad batch of {len(activations)}")

    def step():
        try:
            train_step()
        except ValueError as error:
            errors.append(error)

    return step


class Snapshots:
    """Keeps a copy of the weights of each evaluation."""

    def __init__(self, model):
        self.model = model
        self.best = {}

    def evaluate(self, number):
        self.best[number] = {name: p.clone() for name, p in self.model.state_dict().items()}


def checkpoints():
    """All checkpoints stay in memory in place of the best one."""
    snapshots = Snapshots(make_model()[0])
    return snapshots.evaluate


def create_graph():
    """backward(create_graph=True) makes a cycle that the garbage collector cannot free."""
    model = nn.Linear(64, 64)

    def step():
        for parameter in model.parameters():
            parameter.grad = None
        x = torch.randn(16, 64, requires_grad=True)
        loss = model(x).square().mean()
        loss.backward(create_graph=True)

    return step


CAUSES = {
    each.__name__: each
    for each in (
        *(history, running_total, forward_hook, registered_each_step, default_argument),
        *(lru_cache, small_view, exceptions, checkpoints, create_graph),
    )
}


def main():
    torch.manual_seed(0)
    names = sys.argv[1:]
    if not names or set(names) - set(CAUSES):
        for name, cause in CAUSES.items():
            print(f"{name:21} {cause.__doc__}")
        return
    for name in names:
        print(tensorlens.find_leaks(CAUSES[name]()))


if __name__ == "__main__":
    main()
