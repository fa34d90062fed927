"""Names in a recording are the same whenever they are looked for: in a function, in a method."""

import torch
from torch import nn

import tensorlens

SIZE, ROWS = 16, 8


class Attention(nn.Module):
    """A layer of a graph attention network: it masks its scores, so it calls ``ones_like``."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE, SIZE))

    def forward(self, x):
        scores = x @ self.weight
        masked = torch.where(scores > 0, scores, -9e16 * torch.ones_like(scores))
        return torch.softmax(masked, dim=-1)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Attention(), Attention()

    def forward(self, x):
        return self.second(nn.functional.elu(self.first(x)))


def step(model, optimizer, data):
    optimizer.zero_grad()
    loss = model(data).exp().sum()
    loss.backward()
    optimizer.step()


def names(recording):
    """Return the names of what of the model was there at any time, and what was computed."""
    log = recording.log
    rows = [row for row, kind in enumerate(log.kind) if kind <= 1]
    return {block.name for block in recording.blocks(rows) if block.role != "temporary"}


def test_a_model_has_one_name_whatever_functions_call_it():
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), momentum=0.9)
    data = torch.randn(ROWS, SIZE)
    with tensorlens.record() as recording:
        for _ in range(3):
            step(network, optimizer, data)
    found = names(recording)
    outer = f"{test_a_model_has_one_name_whatever_functions_call_it.__name__}(): "
    assert f"{outer}network.first.weight" in found
    assert f"{outer}network.second: MmBackward0.self" in found
    assert {
        "network.first: SoftmaxBackward0.result",
        "network.second: SoftmaxBackward0.result",
    } < found
    assert "SGD.network.second.weight.momentum_buffer" in found
    assert not [name for name in found if "step(): model" in name or "(): self" in name]


def test_the_mask_of_a_dropout_is_in_the_dropout():
    network = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Sequential(nn.Dropout(), nn.Identity()))
    with tensorlens.record() as recording:
        for _ in range(3):
            network(torch.randn(ROWS, SIZE)).sum().backward()
    assert [name for name in names(recording) if "MulBackward0.other" in name] == [
        "network.1.0: MulBackward0.other"
    ]


def test_no_variable_of_a_forward_method_names_what_a_gradient_is_not_yet_asked_of():
    network = Network()
    with tensorlens.record() as recording:
        for _ in range(3):
            network(torch.randn(ROWS, SIZE)).sum().backward()
    assert not [name for name in names(recording) if "forward()" in name]


def test_a_module_that_runs_is_called_by_its_class_where_only_its_method_knows_it():
    seen = {}

    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            found = tensorlens.MemReporter().snapshot()
            seen.update({row.name: row.nbytes for row in found.tensors if row.role == "parameter"})
            return self.fc(x)

    Probe()(torch.randn(ROWS, SIZE))
    assert seen["Probe.fc.weight"] == 4 * SIZE * SIZE
    assert seen["Probe.fc.bias"] == 4 * SIZE


def test_gradient_belongs_to_the_module_of_its_parameter():
    network = Network()
    optimizer = torch.optim.Adam(network.parameters())
    data = torch.randn(ROWS, SIZE)
    with tensorlens.record() as recording:
        for _ in range(2):
            step(network, optimizer, data)
        recording.mark("end")
    # a weight, its gradient, two averages; each state counts its steps, in 4 B
    own = 4 * (4 * SIZE * SIZE) + 4
    moment = recording.at("end")
    by_module = moment.by_module
    assert by_module["network.first"] == by_module["network.second"] == own
    others = {block.name for block in moment.tensors if block.module is None}
    assert not [name for name in others if "network" in name]
    assert sum(by_module.values()) == moment.bytes
