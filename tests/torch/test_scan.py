import contextlib
import ctypes
import gc
import sys
import warnings
import weakref
from array import array
from typing import ClassVar

import numpy
import pytest
import torch

from tensorlens.frameworks.torch import (
    IRREGULAR,
    REQUIRES_GRAD,
    NativeScan,
    PythonScan,
    Scan,
    open_scan,
)
from tensorlens.native import NativeUnavailable

BASE = torch._C.TensorBase


@pytest.fixture(params=[NativeScan, PythonScan])
def scan(request):
    return native_or_skip() if request.param is NativeScan else PythonScan()


def native_or_skip():
    try:
        return NativeScan()
    except NativeUnavailable as error:
        pytest.skip(str(error))


def start(tensor):
    return tensor.untyped_storage().data_ptr()


def read(scan, tensor):
    """Add one tensor, and return its row as a dict with numbers replaced by what they number."""
    (row,) = scan.add([tensor])
    assert row >= 0
    return row_of(scan, row)


def row_of(scan, row):
    values = {column: getattr(scan, column)[row] for column in Scan.CODES}
    stride = values["stride"]
    return {
        **values,
        "device": scan.devices[values["device"]],
        "dtype": scan.dtypes[values["dtype"]],
        "shape": scan.shapes[values["shape"]],
        "stride": None if stride < 0 else scan.shapes[stride],
    }


def assert_row(found, **expected):
    assert {key: found[key] for key in expected} == expected


def test_scan_of_a_plain_tensor(scan):
    tensor = torch.zeros(2, 3)
    assert read(scan, tensor) == {
        "nbytes": 24,
        "storage": tensor.data_ptr(),
        "storage_nbytes": 24,
        "offset": 0,
        "device": "cpu",
        "dtype": "float32",
        "shape": (2, 3),
        "stride": (3, 1),
        "object": id(tensor),
        "flags": 0,
        "first": 0,
    }
    assert len(scan) == 1


def test_small_view_of_a_large_storage(scan):
    base = torch.zeros(1000, 10)
    view = base[2:4, ::5]
    assert list(scan.add([base, view])) == [0, 1]
    assert_row(
        row_of(scan, 1),
        nbytes=16,
        storage=base.data_ptr(),
        storage_nbytes=40_000,
        offset=20,
        shape=(2, 2),
        stride=(10, 5),
        first=0,
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.empty(0), {"nbytes": 0, "storage": 0, "shape": (0,), "stride": (1,)}),
        (lambda: torch.empty(3, 0, 2), {"nbytes": 0, "shape": (3, 0, 2), "stride": (2, 2, 1)}),
        (lambda: torch.tensor(1.5), {"nbytes": 4, "storage_nbytes": 4, "shape": (), "stride": ()}),
        (
            lambda: torch.zeros(1).expand(5, 7),
            {"nbytes": 140, "storage_nbytes": 4, "shape": (5, 7), "stride": (0, 0)},
        ),
        (lambda: torch.zeros(2, 3).t(), {"shape": (3, 2), "stride": (1, 3)}),
        (
            lambda: torch.zeros(1, 2, 3, 4, 5, 6, 7),
            {"nbytes": 20_160, "shape": (1, 2, 3, 4, 5, 6, 7)},
        ),
        (lambda: torch.zeros(3, dtype=torch.complex64), {"nbytes": 24, "dtype": "complex64"}),
        (lambda: torch.zeros(3, dtype=torch.complex128).conj(), {"nbytes": 48, "flags": 0}),
        (
            lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
            {"nbytes": 12, "storage_nbytes": 24, "offset": 1, "stride": (2,), "dtype": "float32"},
        ),
        (lambda: torch.zeros(3, dtype=torch.bfloat16), {"nbytes": 6, "dtype": "bfloat16"}),
        (lambda: torch.zeros(3, dtype=torch.float16), {"nbytes": 6, "dtype": "float16"}),
        (lambda: torch.zeros(3, dtype=torch.int64), {"nbytes": 24, "dtype": "int64"}),
        (lambda: torch.zeros(3, dtype=torch.uint8), {"nbytes": 3, "dtype": "uint8"}),
        (lambda: torch.zeros(3, dtype=torch.bool), {"nbytes": 3, "dtype": "bool"}),
        (
            lambda: torch.zeros(3, dtype=torch.float8_e4m3fn),
            {"nbytes": 3, "dtype": "float8_e4m3fn"},
        ),
        (
            lambda: torch.zeros(3, device="meta"),
            {"nbytes": 12, "storage": 0, "storage_nbytes": 0, "device": "meta", "flags": 0},
        ),
        (
            lambda: torch.nn.Parameter(torch.zeros(3, device="meta")),
            {"nbytes": 12, "device": "meta", "flags": REQUIRES_GRAD, "stride": (1,)},
        ),
        (lambda: torch._efficientzerotensor(3), {"nbytes": 12, "storage": 0, "storage_nbytes": 0}),
        (lambda: torch.from_numpy(numpy.zeros(4)), {"nbytes": 32, "dtype": "float64", "flags": 0}),
        (
            lambda: torch.frombuffer(bytearray(16), dtype=torch.int32, offset=4),
            {"nbytes": 12, "storage_nbytes": 12, "offset": 0, "dtype": "int32"},
        ),
        (lambda: torch.zeros(5).share_memory_(), {"nbytes": 20, "storage_nbytes": 20, "flags": 0}),
    ],
)
def test_kinds_of_plain_tensors(scan, make, expected):
    tensor = make()
    found = read(scan, tensor)
    assert_row(found, **expected)
    if found["storage"]:
        assert found["storage"] == start(tensor)


def test_every_dtype_has_the_name_that_torch_gives_it(scan):
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    tensors = []
    for dtype in dtypes:
        with contextlib.suppress(RuntimeError, NotImplementedError, TypeError):
            tensors.append(torch.empty(2, dtype=dtype, device="meta"))
    assert len(tensors) > 15
    scan.add(tensors)
    assert [scan.dtypes[number] for number in scan.dtype] == [
        str(tensor.dtype).removeprefix("torch.") for tensor in tensors
    ]
    assert list(scan.nbytes) == [2 * tensor.dtype.itemsize for tensor in tensors]


def test_untouched_gradient_of_a_parameter(scan):
    weight = torch.nn.Parameter(torch.ones(3))
    (weight * 2).sum().backward()
    assert list(scan.add([weight])) == [0]
    assert_row(row_of(scan, 0), flags=REQUIRES_GRAD, shape=(3,))
    assert_row(row_of(scan, 1), flags=0, shape=(3,), storage=start(weight.grad), first=1)
    gradient = weight.grad
    assert list(scan.add([gradient])) == [1]
    assert scan.object[1] == id(gradient)
    assert list(scan.rows_of(array("Q", [id(gradient), 0, id(weight)]))) == [1, -1, 0]


def test_gradient_of_a_gradient(scan):
    first, second, third = (torch.ones(2, requires_grad=True) for _ in range(3))
    first.grad, second.grad = second, third
    assert list(scan.add([first, third, second])) == [0, 2, 1]
    assert (list(scan.owners), list(scan.gradients)) == ([0, 1], [1, 2])


def test_gradients_in_a_circle(scan):
    one, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    one.grad, other.grad = other, one
    scan.add([one])
    assert (list(scan.owners), list(scan.gradients)) == ([0, 1], [1, 0])
    one.grad = None


def test_requires_grad_is_of_leaves_and_of_results(scan):
    leaf = torch.ones(2, requires_grad=True)
    result = leaf * 2
    scan.add([leaf, result, result.detach(), leaf.data])
    assert list(scan.flags) == [REQUIRES_GRAD, REQUIRES_GRAD, 0, 0]


def test_gradient_of_a_result_is_read_without_a_warning(scan):
    leaf = torch.ones(2, requires_grad=True)
    plain, retained = leaf * 2, leaf * 3
    retained.retain_grad()
    (plain + retained).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scan.add([plain, retained])
    assert (list(scan.owners), list(scan.gradients)) == ([1], [2])


def test_added_again_keeps_its_row(scan):
    tensors = [torch.zeros(1) for _ in range(3)]
    assert list(scan.add(tensors[:2])) == [0, 1]
    assert list(scan.add((tensors[2], tensors[1], tensors[2]))) == [2, 1, 2]
    assert len(scan) == 3
    assert list(scan.add([])) == []


def test_first_row_of_a_storage(scan):
    base = torch.zeros(4)
    scan.add([torch.zeros(2), base[1:], torch.empty(0), base, torch.empty(0), base.view(2, 2)])
    assert list(scan.first) == [0, 1, 2, 1, 4, 1]


class Hostile(torch.Tensor):
    calls: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls.append("__torch_function__")
        raise KeyboardInterrupt

    def __getattribute__(self, name):
        Hostile.calls.append(name)
        raise KeyboardInterrupt

    def __len__(self):
        raise KeyboardInterrupt

    def __hash__(self):
        raise KeyboardInterrupt

    def __eq__(self, other):
        raise KeyboardInterrupt

    @property
    def __class__(self):
        Hostile.calls.append("__class__")
        raise KeyboardInterrupt


class HostileType(type(torch.Tensor)):
    def __subclasscheck__(cls, other):
        raise KeyboardInterrupt

    def __instancecheck__(cls, other):
        raise KeyboardInterrupt

    def __getattribute__(cls, name):
        if name in ("__mro__", "__bases__", "__hash__", "__eq__"):
            raise KeyboardInterrupt
        return super().__getattribute__(name)


class OfHostileType(torch.Tensor, metaclass=HostileType):
    pass


class Dispatching(torch.Tensor):
    calls: ClassVar[list] = []

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(function)
        raise KeyboardInterrupt


def test_hostile_subclasses_are_not_asked(scan):
    tensors = [
        torch.Tensor._make_subclass(kind, torch.zeros(3))
        for kind in (Hostile, OfHostileType, Dispatching)
    ]
    Hostile.calls.clear()
    Dispatching.calls.clear()
    assert list(scan.add(tensors)) == [0, 1, 2]
    assert list(scan.nbytes) == list(scan.storage_nbytes) == [12, 12, 12]
    assert list(scan.flags) == [0, 0, 0]
    assert Hostile.calls == Dispatching.calls == []


def test_wrapper_that_wants_to_be_asked_for_everything(scan):
    wrapper = torch.Tensor._make_wrapper_subclass(
        Dispatching,
        (2, 3),
        dispatch_sizes_strides_policy="sizes",
        dispatch_device=True,
        dispatch_layout=True,
    )
    Dispatching.calls.clear()
    assert_row(
        read(scan, wrapper),
        nbytes=0,
        storage=0,
        storage_nbytes=0,
        device="cpu",
        dtype="float32",
        shape=(),
        stride=None,
        flags=IRREGULAR,
    )
    assert Dispatching.calls == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "convert", ["to_sparse", "to_sparse_csr", "to_sparse_csc", "to_mkldnn", "block"]
)
def test_tensors_without_a_storage(scan, convert):
    dense = torch.eye(4)
    if convert == "to_mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no mkldnn")
    tensor = dense.to_sparse_bsr((2, 2)) if convert == "block" else getattr(dense, convert)()
    assert_row(
        read(scan, tensor),
        nbytes=64,
        storage=0,
        storage_nbytes=0,
        device="cpu",
        dtype="float32",
        shape=(4, 4),
        stride=None,
        flags=IRREGULAR,
    )


@contextlib.contextmanager
def pointer(tensor, value):
    """Put another address where the Python object holds that of torch's."""
    slots = (ctypes.c_uint64 * (BASE.__basicsize__ // 8)).from_address(id(tensor))
    (place,) = [place for place, each in enumerate(slots) if each == tensor._cdata]
    saved, slots[place] = slots[place], value
    try:
        yield
    finally:
        slots[place] = saved


def test_half_made_object(scan):
    tensor = torch.zeros(3)
    with pointer(tensor, 0):
        assert list(scan.add([tensor])) == [-1]
    assert list(scan.add([tensor])) == [0]


def test_scan_keeps_no_tensor_alive(scan):
    tensors = [torch.zeros(3) for _ in range(3)]
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.zeros(3)
    everything = [*tensors, weight]
    before = [sys.getrefcount(each) for each in everything]
    types = sys.getrefcount(torch.nn.Parameter)
    scan.add(everything)
    assert [sys.getrefcount(each) for each in everything] == before
    types_after = sys.getrefcount(torch.nn.Parameter)
    assert types_after == types
    dead = [weakref.ref(each) for each in everything]
    del tensors, weight, everything
    assert [ref() for ref in dead] == [None] * 4


def test_native_scan_leaves_no_objects_behind():
    first = native_or_skip()
    weight = torch.nn.Parameter(torch.zeros(3))
    (weight * 2).sum().backward()
    tensors = [weight, *(torch.zeros(size, 3) for size in range(50))]
    first.add(tensors)

    def count():
        gc.collect()
        kinds = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)
        return sum(type(each) in kinds for each in gc.get_objects()), len(gc.get_objects())

    before, objects = count()
    for _ in range(200):
        scan = NativeScan()
        scan.add(tensors)
        # the gradient is not among the objects either
        assert len(scan) == 52 and scan.object[1] == 0
    del scan
    after, objects_after = count()
    assert after == before
    # other threads of the process have a few of their own
    assert abs(objects_after - objects) < 50


def test_scan_of_many_tensors():
    scan = native_or_skip()
    tensors = [torch.zeros(4) for _ in range(100_000)]
    rows = scan.add(tensors)
    assert rows == array("i", range(100_000))
    assert scan.nbytes == scan.storage_nbytes == array("q", [16]) * 100_000
    assert scan.object == array("Q", map(id, tensors))
    assert scan.storage == array("Q", (tensor.data_ptr() for tensor in tensors))
    assert scan.first == rows
    assert scan.shapes == [(4,), (1,)]
    assert scan.rows_of(scan.object) == rows


def storm():
    """Tensors of every sort, some of which share storages."""
    leaf = torch.nn.Parameter(torch.ones(4))
    result = leaf * 2
    result.sum().backward()
    base = torch.zeros(10, 10)
    resized = torch.zeros(3)
    resized.untyped_storage().resize_(0)
    return [
        *(leaf, result, base, base[3:, 2:5], base.t(), resized, torch.empty(0), torch.empty(0)),
        *(torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.tensor(3)),
        *(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), base[1].expand(4, 10)),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
        *(torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.complex64).conj()),
        *(torch._to_functional_tensor(torch.zeros(3)), torch._lazy_clone(base), 5, None),
        torch.Tensor._make_wrapper_subclass(Dispatching, (2, 3), dtype=torch.int8),
        torch.Tensor._make_wrapper_subclass(Dispatching, (2, 3), device="meta"),
        *(torch.Tensor._make_subclass(kind, torch.zeros(3)) for kind in (Hostile, Dispatching)),
        torch.quantize_per_tensor(base, 0.1, 0, torch.qint8),
    ]


@pytest.mark.filterwarnings("ignore")
def test_native_and_python_scan_agree():
    native, python = native_or_skip(), PythonScan()
    tensors = storm()
    assert native.add(tensors) == python.add(tensors)
    assert [row_of(native, row) | {"object": 0} for row in range(len(native))] == [
        row_of(python, row) | {"object": 0} for row in range(len(python))
    ]
    for column in Scan.CODES:
        if column != "object":
            assert getattr(native, column) == getattr(python, column), column
    assert (native.owners, native.gradients) == (python.owners, python.gradients)
    assert native.shares is python.shares is True
    assert native.shapes == python.shapes
    assert (native.devices, native.dtypes) == (python.devices, python.dtypes)


def test_without_a_compiler_tensors_are_read_from_python(monkeypatch):
    def refuse():
        raise NativeUnavailable("no compiler")

    scans = sys.modules[open_scan.__module__]
    monkeypatch.setattr(scans, "NativeScan", refuse)
    monkeypatch.setattr(scans, "_reason", None)
    assert read(open_scan(), torch.zeros(3))["nbytes"] == 12
    assert scans.fallback_reason() == "no compiler"
