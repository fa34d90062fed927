"""Names of what torch's own modules and optimizers hold, walked natively and in Python."""

import gc
import sys
import weakref
from array import array

import pytest
import torch
from torch import nn

import tensorlens
from tensorlens.frameworks.heap import walk
from tensorlens.frameworks.heap.native import native
from tensorlens.frameworks.torch.census.modules import KINDS, ModulePaths
from tensorlens.frameworks.torch.census.naming import Naming
from tensorlens.frameworks.torch.census.optimizers import Optimizers
from tensorlens.records.names import Names


@pytest.fixture(params=["native", "python"], autouse=True)
def engine(request, monkeypatch):
    if request.param == "native" and native() is None:
        pytest.skip("no compiler")
    if request.param == "python":
        monkeypatch.setattr(walk, "native", lambda: None)
    return request.param


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 2)
        self.norm = nn.BatchNorm1d(2)
        self.gap = None
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.embed.weight


def named(*modules, optimizers=(), again=True):
    """Return ``(name, role number, again)`` of all that is given, in order, and the naming."""
    naming = Naming(Names())
    nodes = [naming.names.text("") for _ in modules]
    ModulePaths(naming).add(modules, nodes, again=again)
    known = len(naming.items)
    seeing = Optimizers(naming)
    for optimizer in optimizers:
        seeing.add(optimizer)
    given = zip(naming.given.nodes, naming.roles, naming.again, strict=True)
    found = [(naming.names[node], role, bool(again)) for node, role, again in given]
    return found[known:] if optimizers else found, naming


def test_the_names_of_named_parameters():
    model = Model()
    found, naming = named(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    assert [name for name, role, _ in found if role == 0] == list(parameters)
    assert [name for name, role, _ in found if role == 1] == list(buffers)
    both = parameters | buffers
    assert all(both[name] is item for (name, _, _), item in zip(found, naming.items, strict=True))
    assert naming.names[naming.node_of(model.head.weight)] == "embed.weight"


def test_torch_modules_are_walked_natively(engine):
    if engine == "native":
        models = [
            Model(),
            nn.Transformer(8, 2, 1, 1, 8),
            nn.LSTM(2, 2),
            nn.ParameterDict({"a": nn.Parameter()}),
        ]
        names = Names()
        nodes = array("i", [names.text("") for _ in models])
        (part,) = walk.walk_registries(models, nodes, names, KINDS)
        assert part.done == 4


OPTIMIZERS = {
    torch.optim.Adam: ["step", "exp_avg", "exp_avg_sq"],
    torch.optim.SGD: ["momentum_buffer"],
    torch.optim.RMSprop: ["step", "square_avg", "momentum_buffer"],
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers(kind):
    model = Model()
    arguments = {} if kind is torch.optim.Adam else {"momentum": 0.9}
    optimizer = kind(model.parameters(), lr=0.1, **arguments)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    found, _ = named(model, optimizers=[optimizer])
    assert found == [
        (f"{kind.__name__}.{name}.{slot}", 3, False)
        for name, _ in model.named_parameters()
        for slot in OPTIMIZERS[kind]
    ]


def test_an_optimizer_of_what_no_model_has():
    loose = nn.Parameter(torch.ones(1))
    loose.grad = torch.ones(1)
    optimizer = torch.optim.SGD([loose], lr=0.1, momentum=0.9)
    optimizer.step()
    found, _ = named(optimizers=[optimizer, torch.optim.Adagrad([loose])])
    assert found == [
        ("SGD.param_groups[0].params[0]", 0, True),
        ("SGD.param_groups[0].params[0].momentum_buffer", 3, False),
        ("Adagrad.SGD.param_groups[0].params[0].step", 3, False),
        ("Adagrad.SGD.param_groups[0].params[0].sum", 3, False),
    ]


def test_half_built_and_hostile_modules():
    class Raises(nn.Module):
        def __getattr__(self, name):
            raise RuntimeError(name)

        @property
        def weight(self):
            raise RuntimeError("weight")

        def named_parameters(self, *arguments, **options):
            raise RuntimeError("named_parameters")

    model, hostile = Model(), Raises()
    vars(hostile)["_buffers"]["kept"] = torch.ones(1)
    model.half_built = nn.Module.__new__(nn.Module)
    model.hostile = hostile
    names = [name for name, _, _ in named(model)[0]]
    assert names[-1] == "hostile.kept"
    assert len(names) == 12


def test_all_names_of_tied_weights():
    model = Model()
    (tied,) = [
        each.names
        for each in tensorlens.MemReporter(model).snapshot().tensors
        if each.name == "embed.weight"
    ]
    assert tied == ("embed.weight", "head.weight")


def test_nothing_is_kept():
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    weight = model.embed.weight
    reporter = tensorlens.MemReporter()
    before = sys.getrefcount(weight)
    reporter.snapshot()
    assert sys.getrefcount(weight) == before
    seen = weakref.ref(weight), weakref.ref(model)
    del model, optimizer, weight
    gc.collect()
    assert [ref() for ref in seen] == [None, None]
