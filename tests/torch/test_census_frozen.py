"""Names of what autograd keeps in layers that are frozen or checkpointed."""

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tensorlens

SIZE, ROWS = 8, 4


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(SIZE, SIZE)
        self.down = torch.nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return self.down(torch.sigmoid(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, call=None) -> None:
        super().__init__()
        self.inp = torch.nn.Linear(SIZE, SIZE)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))
        self.layers.requires_grad_(False)
        self.call = call

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = self.call(layer, x) if self.call else layer(x)
        return x


def names(net: Net) -> set[str]:
    y = net(torch.randn(ROWS, SIZE))
    found = {
        each.name
        for each in tensorlens.MemReporter(net).snapshot().tensors
        if each.role == "activation" and each.storage_nbytes == ROWS * SIZE * 4
    }
    del y
    return found


def test_activations_of_frozen_layers_have_their_module() -> None:
    found = names(Net())
    for layer in range(3):
        assert f"layers.{layer}: SigmoidBackward0.result" in found


def plain(layer, x):
    return checkpoint(layer, x, use_reentrant=False)


def method(layer, x):
    return checkpoint(functools.partial(layer.__call__), x, use_reentrant=False)


def closure(layer, x):
    def custom_forward(*inputs):
        return layer(*inputs)

    return checkpoint(custom_forward, x, use_reentrant=False)


def reentrant(layer, x):
    return checkpoint(layer, x, use_reentrant=True)


@pytest.mark.parametrize("call", [plain, method, closure, reentrant])
def test_inputs_of_checkpointed_layers_have_the_layer(call) -> None:
    found = names(Net(call))
    assert {f"layers.{layer}: checkpoint input[0]" for layer in range(3)} <= found


def test_a_function_that_refers_to_several_modules_is_none_of_them() -> None:
    def both(pair, x):
        first, second = pair, torch.nn.Identity()
        return checkpoint(lambda x: second(first(x)), x, use_reentrant=False)

    assert not any(name.startswith("layers.0: checkpoint") for name in names(Net(both)))


class Norm(torch.nn.Module):
    """A norm of several operators, as those of language models are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(SIZE))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)))


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.fc = torch.nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return x + self.fc(self.norm(x))


@pytest.mark.parametrize("frozen", [True, False])
def test_tensor_between_layers_belongs_to_one(frozen) -> None:
    net = Net()
    net.layers = torch.nn.ModuleList(Residual() for _ in range(3))
    net.layers.requires_grad_(not frozen)
    found = names(net)
    # the norm's input is what the layer before ends with
    assert {"layers.0: PowBackward0.self", "layers.1: PowBackward0.self"} <= found
    assert not [name for name in found if name.startswith("layers: ")]


def test_modules_without_parameters_have_their_number() -> None:
    linear = functools.partial(torch.nn.Linear, SIZE, SIZE)
    net = torch.nn.Sequential(
        linear(), torch.nn.Sigmoid(), linear(), torch.nn.Tanh(), torch.nn.Sigmoid(), linear()
    )
    y = net(torch.randn(ROWS, SIZE))
    found = {each.name for each in tensorlens.MemReporter(net=net).snapshot().tensors}
    wanted = {"1: SigmoidBackward0", "3-4: TanhBackward0", "3-4: SigmoidBackward0"}
    assert {f"net.{name}.result" for name in wanted} <= found
    del y


class Cached(torch.nn.Module):
    """Keeps the keys that its frozen layer made of the batch, and scales them."""

    def __init__(self) -> None:
        super().__init__()
        self.key = torch.nn.Linear(SIZE, SIZE)
        self.key.requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.ones(SIZE))

    def forward(self, x):
        keys = self.key(x)
        return keys * self.scale + x * self.scale, keys


def test_output_of_frozen_layer_is_no_input() -> None:
    net = Cached()
    reporter = tensorlens.MemReporter(net)
    batch = torch.randn(ROWS, SIZE)
    y, keys = net(batch)
    roles = {each.name.rpartition(": ")[2]: each.role for each in reporter.snapshot().tensors}
    assert (roles["batch"], roles["keys"]) == ("input", "activation")
    with tensorlens.record(net) as recording:
        other = torch.randn(ROWS, SIZE)
        z, kept = net(other)
    found = {each.name.rpartition(": ")[2]: each.role for each in recording.peak("cpu").tensors}
    assert (found["other"], found["kept"]) == ("input", "activation")
    del y, keys, z, kept
