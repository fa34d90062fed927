"""Names of what models and optimizers hold that were found, not given: stable, and in step."""

import functools
import gc
import weakref

import pytest
import torch
from census_checks import Since
from torch import nn

import tensorlens
from tensorlens.frameworks.torch import FirstSeenOrder

HELD = []


class Holder:
    pass


class Trainer:
    def __init__(self):
        self.net = nn.Linear(3, 2)
        self.opt = stepped(sgd, self.net)


@pytest.fixture(autouse=True)
def tidy():
    torch.manual_seed(0)
    yield
    HELD.clear()
    gc.enable()
    gc.collect()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def stepped(kind, *models):
    optimizer = kind([each for model in models for each in model.parameters()])
    for model in models:
        model(torch.ones(1, model.in_features)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def states(found, role="optimizer"):
    return {name: size for name, (its, size) in found.items() if its == role}


class TestOrder:
    def test_a_collection_renumbers_nothing(self):
        since = Since()
        gc.disable()
        one = nn.Linear(5, 1, bias=False)
        first = stepped(sgd, one)
        gc.collect()
        other = nn.Linear(4, 1, bias=False)
        second = stepped(sgd, other)
        expected = {"SGD.one.weight.momentum_buffer": 20, "SGD#2.other.weight.momentum_buffer": 16}
        reporter = tensorlens.MemReporter()
        before = reporter.snapshot()
        for generation in (0, 1, 2):
            assert states(since.sizes()) == expected
            gc.collect(generation)
        assert "no tensor appeared, went or changed its size" in str(reporter.diff(before))
        # a new one comes last, wherever the collector has it
        newest = nn.Linear(3, 1, bias=False)
        third = stepped(sgd, newest)
        expected["SGD#3.newest.weight.momentum_buffer"] = 12
        for generation in (0, 1, 2):
            assert states(since.sizes()) == expected
            gc.collect(generation)
        assert all((first, second, third))

    def test_given_owners_come_first(self):
        since = Since()
        gc.disable()
        one, other = nn.Linear(5, 1, bias=False), nn.Linear(4, 1, bias=False)
        first, second = stepped(sgd, one), stepped(sgd, other)
        assert states(since.sizes(second)) == {
            "SGD.other.weight.momentum_buffer": 16,
            "SGD#2.one.weight.momentum_buffer": 20,
        }
        assert states(since.sizes()) == {
            "SGD.one.weight.momentum_buffer": 20,
            "SGD#2.other.weight.momentum_buffer": 16,
        }
        assert first is not second

    def test_weights_that_two_models_share(self):
        since = Since()
        gc.disable()
        one = nn.Linear(5, 1, bias=False)
        gc.collect()
        other = nn.Linear(5, 1, bias=False)
        other.weight = one.weight
        where = "TestOrder.test_weights_that_two_models_share(): "
        for _ in range(3):
            assert since.sizes() == {f"{where}one.weight": ("parameter", 20)}
            gc.collect()

    def test_dead_owners_are_forgotten(self):
        seen, items = FirstSeenOrder(), [Holder() for _ in range(3)]
        assert seen.ordered(items) == items
        assert seen.ordered(items[::-1]) == items
        ends = weakref.ref(items[0])
        del items[0]
        assert ends() is None
        assert len(seen._seen) == 2
        items.append(Holder())
        assert seen.ordered(items[::-1]) == items

    def test_a_hostile_comparison(self):
        class Hostile(torch.optim.SGD):
            def __eq__(self, other):
                raise RuntimeError("compared")

            def __hash__(self):
                raise RuntimeError("hashed")

        since = Since()
        net = nn.Linear(5, 1, bias=False)
        ours = [Hostile(net.parameters(), lr=0.1, momentum=0.9) for _ in range(2)]
        net(torch.ones(1, 5)).sum().backward()
        ours[1].step()
        ours[1].zero_grad()
        assert states(since.sizes()) == {"Hostile#2.net.weight.momentum_buffer": 20}


class TestStateFollowsItsParameter:
    def test_state_of_found_models(self):
        since = Since()
        a, b = nn.Linear(5, 5), nn.Linear(5, 6)
        ours = stepped(sgd, a, b)
        where = "TestStateFollowsItsParameter.test_state_of_found_models(): "
        for given in ([], [ours]):
            assert since.sizes(*given) == {
                f"{where}a.weight": ("parameter", 100),
                f"{where}a.bias": ("parameter", 20),
                f"{where}b.weight": ("parameter", 120),
                f"{where}b.bias": ("parameter", 24),
                "SGD.a.weight.momentum_buffer": ("optimizer", 100),
                "SGD.a.bias.momentum_buffer": ("optimizer", 20),
                "SGD.b.weight.momentum_buffer": ("optimizer", 120),
                "SGD.b.bias.momentum_buffer": ("optimizer", 24),
            }

    def test_state_of_a_trainer_object(self):
        since = Since()
        trainer = Trainer()
        where = "TestStateFollowsItsParameter.test_state_of_a_trainer_object(): trainer.net"
        for given in ([], [trainer.opt]):
            assert since.sizes(*given) == {
                f"{where}.weight": ("parameter", 24),
                f"{where}.bias": ("parameter", 8),
                "SGD.trainer.net.weight.momentum_buffer": ("optimizer", 24),
                "SGD.trainer.net.bias.momentum_buffer": ("optimizer", 8),
            }
        assert since.sizes(trainer) == {
            "Trainer.net.weight": ("parameter", 24),
            "Trainer.net.bias": ("parameter", 8),
            "SGD.Trainer.net.weight.momentum_buffer": ("optimizer", 24),
            "SGD.Trainer.net.bias.momentum_buffer": ("optimizer", 8),
        }
        assert states(since.sizes(trainer, opt=trainer.opt)) == {
            "opt.Trainer.net.weight.momentum_buffer": 24,
            "opt.Trainer.net.bias.momentum_buffer": 8,
        }

    def test_state_in_global_closure_and_generator(self):
        since = Since()
        gc.disable()
        HELD.append(nn.Linear(5, 1, bias=False))

        def make():
            kept = nn.Linear(4, 1, bias=False)
            return (lambda: kept), stepped(sgd, HELD[0], kept)

        def batches():
            inner = nn.Linear(3, 1, bias=False)
            yield stepped(sgd, inner)
            del inner

        running = batches()
        ours = *make(), next(running)
        assert states(since.sizes()) == {
            f"SGD.{__name__}.HELD[0].weight.momentum_buffer": 20,
            "SGD.kept.weight.momentum_buffer": 16,
            "SGD#2.inner.weight.momentum_buffer": 12,
        }
        assert len(ours) == 3

    def test_nested_optimizer_state(self):
        since = Since()
        net = nn.Linear(3, 2, bias=False)
        ours = torch.optim.SGD(net.parameters(), lr=0.1)
        ours.state[net.weight] = {"old": [torch.zeros(5)]}
        assert states(since.sizes()) == {"SGD.net.weight.old[0]": 20}

    def test_state_in_a_tuple_of_model_and_optimizer(self):
        since = Since()
        both = [nn.Linear(3, 2, bias=False)]
        both.append(stepped(sgd, both[0]))
        assert states(since.sizes()) == {"SGD.both[0].weight.momentum_buffer": 24}


LIBRARY = """
class Connector:
    def __init__(self, net):
        self._strategy = Strategy(net)


class Strategy:
    def __init__(self, net):
        self._module = net
        self.hook = self.register()

    def register(self):
        def hook():
            return self

        return hook


class Engine:
    def __init__(self, net):
        self._connector = Connector(net)

    def fit(self, then):
        net = self._connector._strategy._module
        return then()


def fit(make, then):
    net = make()
    return then()
"""


@pytest.fixture
def library():
    """What a library outside of the program's own folder defines."""
    variables = {"__name__": "engines"}
    exec(compile(LIBRARY, "/opt/site-packages/engines/engine.py", "exec"), variables)
    return variables


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2, bias=False)


def names_of_net():
    found = tensorlens.MemReporter().snapshot().tensors
    return {each.name for each in found if each.shape == (2, 3) and each.role == "parameter"}


def test_a_model_that_only_a_library_leads_to_is_called_by_its_class(library):
    engine = library["Engine"](Net())
    assert names_of_net() == {"Net.fc.weight"}
    assert engine.fit(names_of_net) == {"Net.fc.weight"}
    hook = engine._connector._strategy.hook
    del engine
    assert names_of_net() == {"Net.fc.weight"}
    del hook
    gc.collect()
    assert library["fit"](Net, names_of_net) == {"Net.fc.weight"}


def test_a_variable_of_the_program_comes_before_the_class(library):
    net = Net()
    engine = library["Engine"](net)
    found = engine.fit(names_of_net)
    where = "test_a_variable_of_the_program_comes_before_the_class()"
    assert found == {f"{where}: net.fc.weight"}


def test_two_models_of_one_class_have_distinct_names(library):
    one, other = library["Engine"](Net()), library["Engine"](Net())
    found = names_of_net()
    assert len(found) == 2 and "Net.fc.weight" not in found
    del one, other


CALLS = {
    "/opt/site-packages/engines/precision.py": """
def backward(make, then):
    value = make()
    return then(value)
""",
    f"{torch.__path__[0]}/gradients.py": """
def make_gradients(out, then):
    return then()
""",
}


def test_a_variable_of_the_framework_comes_after_those_of_other_libraries():
    variables = {"__name__": "calls"}
    for file, source in CALLS.items():
        exec(compile(source, file, "exec"), variables)

    def names():
        found = tensorlens.MemReporter().snapshot().tensors
        return {each.name for each in found if each.shape == (2, 3, 5, 7)}

    inner = functools.partial(variables["make_gradients"], then=names)
    make = functools.partial(torch.zeros, 2, 3, 5, 7)
    assert variables["backward"](make, inner) == {"backward(): value"}
