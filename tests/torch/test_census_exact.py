"""After forward, backward and step, what is named is what the allocator has handed out."""

import gc
import inspect

import pytest
import torch
from census_models import MODELS, Mlp, Transformer

import tensorlens
from tensorlens.frameworks.torch import native


@pytest.fixture(autouse=True)
def tidy():
    torch.manual_seed(0)
    yield
    gc.collect()


def check(reporter):
    """Take a snapshot, hold it against the allocator's own count, and against itself."""
    allocator = native.install()[0]
    before = allocator.allocated()
    snapshot = reporter.snapshot()
    assert allocator.allocated() == before
    ledger = snapshot.ledger["cpu"]
    assert ledger.allocated == before
    assert (ledger.unnamed, ledger.blocks) == (0, ())
    assert ledger.named == before
    counted = [each for each in snapshot.tensors if each.device == "cpu" and not each.alias_of]
    assert not [each for each in counted if not each.name]
    return snapshot


def optimizers():
    for name, kind in sorted(vars(torch.optim).items()):
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer):
            if kind is not torch.optim.Optimizer:
                yield name


def step(model, optimizer, reporter):
    x = model.batch()
    target = torch.zeros(len(x), dtype=torch.long)
    output = model(x)
    loss = torch.nn.functional.cross_entropy(output, target)
    check(reporter)
    loss.backward()
    check(reporter)
    optimizer.step()
    return check(reporter)


@pytest.mark.parametrize("kind", MODELS)
def test_models_for_two_steps(kind):
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters())
    reporter = tensorlens.MemReporter(model, optimizer)
    check(reporter)
    for _ in range(2):
        optimizer.zero_grad()
        step(model, optimizer, reporter)


@pytest.mark.parametrize("name", list(optimizers()))
def test_every_optimizer_of_torch(name):
    kind = getattr(torch.optim, name)
    if name == "SparseAdam":
        model = torch.nn.Embedding(50, 8, sparse=True)
        model.batch = lambda: torch.randint(0, 50, (3,))
    elif name == "Muon":
        model = torch.nn.Linear(20, 5, bias=False)
        model.batch = lambda: torch.randn(3, 20)
    else:
        model = Mlp()
    needs_rate = inspect.signature(kind).parameters["lr"].default is inspect.Parameter.empty
    optimizer = kind(model.parameters(), **({"lr": 0.1} if needs_rate else {}))
    reporter = tensorlens.MemReporter(model, optimizer)
    for _ in range(2):
        x = model.batch()

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        snapshot = check(reporter)
    states = [each for each in snapshot.tensors if each.role == "optimizer"]
    alive = [value for state in optimizer.state.values() for value in tensors_in(state)]
    assert sorted(each.nbytes for each in states) == sorted(each.nbytes for each in alive)
    assert all(each.name.startswith(name + ".") for each in states)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


@pytest.mark.parametrize("kind", MODELS)
def test_exact_with_gradient_accumulation(kind):
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    reporter = tensorlens.MemReporter(model, optimizer)
    for _ in range(2):
        for _ in range(2):
            loss = model(model.batch()).square().mean()
            check(reporter)
            loss.backward()
            check(reporter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        check(reporter)


@pytest.mark.parametrize("kind", MODELS)
def test_exact_under_autocast(kind):
    model = kind()
    optimizer = torch.optim.Adam(model.parameters())
    reporter = tensorlens.MemReporter(model, optimizer)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(model.batch())
            # copies of weights may live in autocast's own cache until its end
            loss = output.float().square().mean()
        check(reporter)
        loss.backward()
        check(reporter)
        optimizer.step()
        optimizer.zero_grad()
        check(reporter)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_exact_without_gradients(kind, off):
    model = kind()
    reporter = tensorlens.MemReporter(model)
    with off():
        output = model(model.batch())
        check(reporter)
    assert output is not None
    check(reporter)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*((kind, "grad") for kind in MODELS), (Transformer, "no_grad")],
)
def test_exact_inside_forward(kind, mode):
    model = kind()
    reporter = tensorlens.MemReporter(model)
    seen = []

    def look(module, arguments, output):
        seen.append(check(reporter))

    for module in model.modules():
        module.register_forward_hook(look)
    with torch.set_grad_enabled(mode != "no_grad"):
        model(model.batch())
    assert len(seen) >= len(list(model.modules())) - 1


def test_inside_backward_of_a_custom_function():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            seen.append(check(reporter))
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    model = Mlp()
    reporter = tensorlens.MemReporter(model)
    Look.apply(model(model.batch())).sum().backward()
    assert len(seen) == 1


def test_retained_gradients_and_second_derivatives():
    model = Mlp()
    reporter = tensorlens.MemReporter(model)
    x = model.batch().requires_grad_()
    hidden = model.fc1(x)
    hidden.retain_grad()
    (slope,) = torch.autograd.grad(hidden.tanh().sum(), x, create_graph=True)
    check(reporter)
    slope.square().sum().backward()
    snapshot = check(reporter)
    names = {each.name for each in snapshot.tensors}
    assert {"fc1.weight.grad", "test_retained_gradients_and_second_derivatives(): x.grad"} <= names
