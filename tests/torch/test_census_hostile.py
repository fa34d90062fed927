"""Whatever is in the heap: no error, and none of its code is run."""

import gc
import sys
import types
import weakref

import pytest
import torch
from census_checks import Since
from torch import nn

import tensorlens

RAN = []
SPECIAL = (
    *("__eq__", "__hash__", "__len__", "__bool__", "__getattr__", "__getattribute__"),
    *("__repr__", "__str__", "__iter__", "__getitem__", "__instancecheck__", "__call__"),
    *("__contains__", "__format__", "__index__", "__sizeof__", "__reduce_ex__", "__dir__"),
)


def recorder(name):
    def ran(*args, **kwargs):
        RAN.append(name)
        raise RuntimeError(name)

    return ran


HOSTILE = {name: recorder(name) for name in SPECIAL}
HOSTILE["__class__"] = property(recorder("__class__"))
HOSTILE["__dict__"] = property(recorder("__dict__"))
Anything = type("Anything", (), HOSTILE)


class Meta(type):
    __instancecheck__ = __subclasscheck__ = recorder("metaclass")
    __getattribute__ = recorder("metaclass attribute")
    __hash__ = __eq__ = recorder("metaclass hash")


@pytest.fixture(autouse=True)
def tidy():
    yield
    RAN.clear()
    gc.collect()


def quiet_snapshot(*roots, **named):
    """Take two snapshots and print one; nothing of the heap's objects may have run."""
    RAN.clear()
    reporter = tensorlens.MemReporter(*roots, **named)
    reporter.snapshot()
    snapshot = reporter.snapshot()
    assert str(snapshot)
    assert RAN == []
    return snapshot


def names(snapshot):
    return {each.name for each in snapshot.tensors}


class TestObjects:
    def test_object_that_answers_every_attribute(self):
        since = Since()
        thing = Anything()
        object.__setattr__(thing, "held", torch.zeros(3))
        assert "hostile" not in names(quiet_snapshot(hostile=thing))
        assert [each.nbytes for each in since.records()] == [12]
        assert RAN == []

    def test_hostile_metaclass(self):
        kind = types.new_class("Odd", (), {"metaclass": Meta})
        thing = object.__new__(kind)
        held = [thing, torch.zeros(3)]
        snapshot = quiet_snapshot()
        assert "TestObjects.test_hostile_metaclass(): held[1]" in names(snapshot)
        assert len(held) == 2

    @pytest.mark.parametrize("base", [list, dict, tuple, set])
    def test_hostile_containers(self, base):
        more = {name: recorder(name) for name in ("items", "keys", "values", "get", "__iter__")}
        kind = type("Odd", (base,), {**HOSTILE, **more})
        since = Since()
        content = [torch.zeros(3)]
        thing = base.__new__(kind, content) if base is tuple else base.__new__(kind)
        if base is dict:
            dict.__setitem__(thing, "a", content[0])
        elif base is list:
            list.append(thing, content[0])
        elif base is set:
            set.add(thing, content[0])
        content.clear()
        RAN.clear()
        assert [each.nbytes for each in since.records()] == [12]
        assert RAN == []

    def test_keys_of_a_dict(self):
        class Key:
            __hash__ = object.__hash__
            __repr__ = __str__ = __eq__ = recorder("key")

        since = Since()
        table = {Key(): torch.zeros(3)}
        assert [each.nbytes for each in since.records(table=table)] == [12]
        (name,) = since.sizes(table=table)
        assert name == "table[<Key>]"
        assert RAN == []

    def test_dead_weak_proxies(self):
        class Target:
            pass

        target = Target()
        proxies = [weakref.proxy(target) for _ in range(3)]
        del target
        quiet_snapshot()
        assert len(proxies) == 3

    def test_destructors_run_when_they_would_and_not_before(self):
        class Ends:
            def __del__(self):
                RAN.append("end")

        ends = Ends()
        ends.held = torch.zeros(3)
        quiet_snapshot()
        del ends
        assert RAN == ["end"]

    def test_hostile_entry_in_sys_modules(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "hostile_module", Anything())
        monkeypatch.setitem(sys.modules, "no_module", None)
        lazy = types.ModuleType("lazy_module")
        lazy.__getattr__ = recorder("lazy")
        lazy.weights = torch.zeros(3)
        monkeypatch.setitem(sys.modules, "lazy_module", lazy)
        del lazy
        snapshot = quiet_snapshot()
        assert "lazy_module.weights" in names(snapshot)

    def test_deep_and_circular_containers(self):
        since = Since()
        chain = torch.zeros(3)
        for _ in range(100_000):
            chain = [chain]
        circle = [torch.zeros(4)]
        circle.append(circle)
        found = since.records(chain=chain, circle=circle)
        assert sorted(each.nbytes for each in found) == [12, 16]
        while type(chain) is list:
            chain = chain.pop()


class TestTensors:
    def test_torch_function_is_not_called(self):
        class Loud(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                RAN.append(func)
                raise RuntimeError

        kept = [torch.Tensor._make_subclass(Loud, torch.zeros(3).detach())]
        found = quiet_snapshot()
        name = "TestTensors.test_torch_function_is_not_called(): kept[0]"
        assert name in names(found)
        assert len(kept) == 1

    def test_torch_dispatch_is_not_called(self):
        class Loud(torch.Tensor):
            @staticmethod
            def __new__(cls, inner):
                return torch.Tensor._make_wrapper_subclass(
                    cls, inner.shape, dispatch_sizes_strides_policy="sizes", dispatch_device=True
                )

            def __init__(self, inner):
                self.inner = inner

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                RAN.append(func)
                raise RuntimeError

            __slots__ = ()
            shape = device = dtype = grad = grad_fn = property(recorder("attribute"))
            untyped_storage = data_ptr = size = stride = recorder("method")

        since = Since()
        loud = Loud(torch.zeros(3))
        RAN.clear()
        assert [each.nbytes for each in since.records()] == [12]
        assert RAN == []
        del loud

    def test_half_built_tensor_subclass(self):
        class Breaks(torch.Tensor):
            def __init__(self, *args):
                HALVES.append(self)
                raise ValueError

        since = Since()
        with pytest.raises(ValueError):
            Breaks(3)
        (record,) = since.records()
        assert (record.name, record.nbytes) == (f"{__name__}.HALVES[0]", 12)
        HALVES.clear()

    def test_empty_tensor_subclass(self):
        class Empty(torch.Tensor):
            pass

        halves = [torch._C.TensorBase.__new__(Empty)]
        quiet_snapshot()
        halves.clear()


HALVES = []


class TestOwners:
    def test_a_hostile_module(self):
        overrides = {
            name: recorder(name)
            for name in (
                *("named_parameters", "parameters", "named_modules", "children", "__len__"),
                *("__getattr__", "__eq__", "__bool__", "__iter__", "state_dict", "buffers"),
            )
        }
        kind = type("Odd", (nn.Module,), {**overrides, "__hash__": nn.Module.__hash__})
        since = Since()
        module = kind.__new__(kind)
        nn.Module.__init__(module)
        module._parameters["weight"] = nn.Parameter(torch.zeros(3))
        RAN.clear()
        assert since.sizes(module) == {"weight": ("parameter", 12)}
        assert RAN == []

    def test_half_built_modules_and_optimizers(self):
        class Early(nn.Module):
            def __init__(self):
                HALVES.append(self)
                raise ValueError

        class EarlyOptimizer(torch.optim.SGD):
            def __init__(self):
                HALVES.append(self)
                raise ValueError

        for kind in (Early, EarlyOptimizer):
            with pytest.raises(ValueError):
                kind()
        quiet_snapshot()
        quiet_snapshot(*HALVES)
        HALVES.clear()

    @pytest.mark.parametrize("damage", ["none", "numbers", "subclass", "keys", "deleted"])
    def test_optimizers_with_odd_state(self, damage):
        since = Since()
        model = nn.Linear(3, 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        if damage == "none":
            sgd.state = sgd.param_groups = None
        elif damage == "numbers":
            sgd.state, sgd.param_groups = 3, [4, {"params": 5}, {}]
        elif damage == "subclass":
            odd = type("Odd", (dict,), {name: recorder(name) for name in ("items", "__iter__")})
            sgd.state = odd()
            dict.__setitem__(sgd.state, model.weight, {"slot": torch.zeros(2)})
        elif damage == "keys":
            odd = type("Odd", (), {"__hash__": lambda self: RAN.append("__hash__") or 1})
            sgd.param_groups[0][odd()] = 1
        else:
            del sgd.state, sgd.param_groups
        RAN.clear()
        expected = {"weight": ("parameter", 24), "bias": ("parameter", 8)}
        if damage == "subclass":
            expected["SGD.weight.slot"] = ("optimizer", 8)
        assert since.sizes(model, sgd) == expected
        assert RAN == []

    @pytest.mark.parametrize("damage", [None, 3, [], {"a": 3}, {3: None}])
    def test_modules_with_odd_registries(self, damage):
        model = nn.Linear(3, 2)
        for registry in ("_parameters", "_buffers", "_modules"):
            vars(model)[registry] = damage
        quiet_snapshot(model)
        quiet_snapshot()
