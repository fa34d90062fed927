"""Whatever is in the heap: nothing of it runs, nothing of it is kept, and no error comes."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from census_models import Mlp

from tensorlens.frameworks.torch import Holdings, PythonScan, live_tensors
from tensorlens.heap import holders, objects

RAN = []
SPECIAL = (
    *("__eq__", "__hash__", "__len__", "__bool__", "__getattr__", "__getattribute__"),
    *("__repr__", "__str__", "__iter__", "__getitem__", "__call__", "__contains__"),
)


def recorder(name):
    def ran(*args, **kwargs):
        RAN.append(name)
        raise RuntimeError(name)

    return ran


Anything = type("Anything", (), {name: recorder(name) for name in SPECIAL})


@pytest.fixture(autouse=True)
def tidy():
    yield
    RAN.clear()
    gc.collect()


def address(tensor):
    return tensor.untyped_storage().data_ptr()


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        RAN.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


class OddArray(np.ndarray):
    @property
    def base(self):
        RAN.append("base")
        raise RuntimeError

    def __array_finalize__(self, other):
        pass

    nbytes = __array_interface__ = base


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        ctx.odd = [Anything(), (x.detach() + 1,)]
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def test_holdings_among_hostile_objects():
    kept = [Anything(), torch.zeros(5), Anything()]
    where = address(kept[1])
    loud = [torch.zeros(5).as_subclass(Loud)]
    with torch._C.DisableTorchFunctionSubclass():
        loud_address = address(loud[0])
    RAN.clear()
    found = Holdings([where, loud_address]).survivors
    assert RAN == []
    assert [[id(tensor) for tensor in each.tensors] for each in found] == [
        [id(kept[1])],
        [id(loud[0])],
    ]


def test_an_array_of_a_derived_type():
    tensor = torch.zeros(50)
    arrays = [tensor.numpy().view(OddArray)]
    where = address(tensor)
    del tensor
    RAN.clear()
    (found,) = Holdings([where]).survivors
    assert RAN == []
    assert [each is arrays[0] for each in found.arrays] == [True]
    assert found.shown == found.size == 200


def test_tuples_that_share_tuples():
    array = torch.zeros(5).numpy()
    shared = (array,)
    for _ in range(60):
        shared = (shared, shared)
    kept = [shared]
    (found,) = Holdings([array.__array_interface__["data"][0]]).survivors
    assert [each is array for each in found.arrays] == [True]
    assert len(kept) == 1


def test_tensors_in_containers_of_a_context():
    weight = torch.ones(5, requires_grad=True)
    loss = Keeping.apply(weight, torch.zeros(3)).sum()
    RAN.clear()
    below = Holdings([address(loss)]).below([loss])
    assert RAN == []
    # three floats that were given, and five in a tuple in a list
    assert (below.bytes, below.tensors) == (32, 2)


def test_a_container_that_contains_itself():
    loop = []
    loop.append(loop)
    loop.append({"tensor": np.zeros(3), "loop": loop})
    weight = torch.ones(5, requires_grad=True)
    loss = Keeping.apply(weight, loop).sum()
    assert Holdings([address(loss)]).below([loss]).bytes == 20


def test_no_address_at_all():
    holdings = Holdings([])
    assert holdings.survivors == []
    assert holdings.below([]).bytes == 0


def test_the_same_address_twice():
    kept = torch.zeros(5)
    first, second = Holdings([address(kept)] * 2).survivors
    assert first.tensors[0] is second.tensors[0] is kept


def test_holdings_leave_no_garbage():
    model = Mlp()
    losses = [model(model.batch()).sum()]
    gone = weakref.ref(losses[0])
    gc.collect()
    gc.disable()
    try:
        holdings = Holdings([address(losses[0])])
        assert holdings.below(losses).bytes > 0
        assert not gc.isenabled()
        losses.clear()
        assert gone() is not None
        del holdings
        assert gone() is None
    finally:
        gc.enable()


def test_holdings_without_native_readers(monkeypatch):
    monkeypatch.setattr(live_tensors, "open_scan", PythonScan)
    for room in (holders, objects):
        monkeypatch.setattr(room, "native", lambda: None)
    weight = torch.ones(5, requires_grad=True)
    batch = torch.ones(5)
    loss = (weight * batch).sum()
    where = address(batch)
    del batch
    for _ in range(2):
        holdings = Holdings([where, address(loss)])
        first, second = holdings.survivors
        assert first.tensors == ()
        assert [each.item is loss for each in first.holders] == [True]
        assert [each is loss for each in second.tensors] == [True]
        assert holdings.below([loss]).bytes == 20
        del holdings, first, second


def test_under_other_threads():
    stop = threading.Event()
    kept = [torch.zeros(5)]

    def work():
        model = Mlp()
        while not stop.is_set():
            model(model.batch()).sum().backward()
            tuple(torch.zeros(2) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            (found,) = Holdings([address(kept[0])]).survivors
            assert [each is kept[0] for each in found.tensors] == [True]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_holdings_of_numpy_memory():
    bridged = torch.from_numpy(np.zeros(5, np.float32))
    (found,) = Holdings([address(bridged)]).survivors
    assert [each is bridged for each in found.tensors] == [True]
    assert (found.size, found.shown) == (20, 20)
