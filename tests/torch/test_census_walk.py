"""Names of what modules and optimizers hold; nothing of them is run."""

import gc
import sys
import weakref

import pytest
import torch
from torch import nn

import tensorlens
from tensorlens.frameworks.torch.census.names.modules import ModulePaths, outermost
from tensorlens.frameworks.torch.census.names.naming import Naming
from tensorlens.frameworks.torch.census.names.optimizers import Optimizers
from tensorlens.records.names import Names


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
    given = zip(naming.nodes, naming.roles, naming.again, strict=True)
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
    assert sorted(found) == sorted(
        (f"{kind.__name__}.{name}.{slot}", 3, False)
        for name, _ in model.named_parameters()
        for slot in OPTIMIZERS[kind]
    )


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


MODEL = [
    "embed.weight",
    "norm.weight",
    "norm.bias",
    "norm.running_mean",
    "norm.running_var",
    "norm.num_batches_tracked",
    "layers.0.weight",
    "layers.0.bias",
    "layers.1.weight",
    "layers.1.bias",
    "head.weight",
]


compared = []


class Text(str):
    """A key that notes when it is compared."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        compared.append(self)
        return False


def names_of(*modules):
    return [name for name, _, _ in named(*modules)[0]]


class TestModules:
    def test_one_inside_itself(self):
        model = Model()
        model.norm._modules["up"] = model
        assert names_of(model) == MODEL

    def test_modules_have_their_first_path(self):
        model = Model()
        model.again = model.layers
        naming = Naming(Names())
        paths = ModulePaths(naming)
        paths.add([model], [naming.names.text("")])
        assert naming.names[paths.paths[id(model.layers[0])]] == "layers.0"
        assert paths.users()[id(model.embed.weight)] == [model.embed, model.head]

    def test_paths_without_end(self, monkeypatch):
        monkeypatch.setattr("tensorlens.frameworks.torch.census.names.modules.MOST_PLACES", 1000)
        inside = [nn.Module() for _ in range(12)]
        for module in inside:
            module._modules.update((str(index), other) for index, other in enumerate(inside))
        inside[5].weight = nn.Parameter(torch.ones(1))
        assert names_of(inside[5])[0] == "weight"

    def test_keys_that_are_no_texts(self):
        model = Model()
        for registry, item in (
            (model._parameters, nn.Parameter(torch.ones(1))),
            (model._modules, nn.Linear(2, 2)),
        ):
            registry[3] = registry[None] = registry[Text("odd")] = item
        vars(model)[Text("_modules")] = 1
        compared.clear()
        assert names_of(model) == MODEL
        assert compared == []

    def test_keys_of_an_unpickled_module(self):
        model = Model()
        model.__dict__ = {"".join(list(key)): item for key, item in vars(model).items()}
        assert names_of(model) == MODEL

    def test_registries_that_are_not_there(self):
        model = Model()
        vars(model)["_buffers"], vars(model)["_parameters"] = None, 3
        assert names_of(model) == MODEL
        del vars(model)["_modules"]
        assert names_of(model, object.__new__(nn.Module)) == []

    @pytest.mark.parametrize(
        "child", [3, nn.Module, sys, object()], ids=["int", "type", "module", "object"]
    )
    def test_what_is_no_module(self, child):
        model = Model()
        model._modules["odd"] = child
        assert names_of(model, model) == MODEL * 2

    def test_those_that_are_not_inside_another(self):
        model, other = Model(), nn.Module()
        other._modules["other"] = other
        assert outermost([model.layers, model, model.norm, other]) == [model, other]
        assert outermost([]) == []


def test_state_of_what_has_no_name_goes_on_from_the_optimizers():
    loose = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.state[loose] = {"slot": torch.ones(1)}
    optimizer.state[3] = {"no name": [torch.ones(1)]}
    assert {name for name, _, _ in named(optimizers=[optimizer])[0][1:]} == {
        "SGD.slot",
        "SGD[3]['no name'][0]",
    }


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
