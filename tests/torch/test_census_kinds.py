"""Every kind of tensor: its exact bytes, and the sum that is the allocator's own count."""

import copy
import gc
import time
import warnings

import pytest
import torch
from census_checks import Since
from torch import nn

from tensorlens.frameworks.torch import native

numpy = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        # torch warns of kinds that are new or old
        warnings.simplefilter("ignore")
        yield
    gc.collect()


def shown(records):
    return {
        name.partition("(): ")[2] or name: (each.nbytes, each.storage_nbytes)
        for name, each in records.items()
    }


@pytest.mark.parametrize(
    ("make", "expected", "layout"),
    [
        (
            lambda: torch.sparse_coo_tensor([[0, 1, 2]], [1.0, 2.0, 3.0], (5,)),
            {"x.indices": 24, "x.values": 12},
            "sparse_coo tensor (5,)",
        ),
        (
            lambda: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
            {"x.crow_indices": 24, "x.col_indices": 16, "x.values": 8},
            "sparse_csr tensor (2, 2)",
        ),
        (
            lambda: torch.sparse_csc_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
            {"x.ccol_indices": 24, "x.row_indices": 16, "x.values": 8},
            "sparse_csc tensor (2, 2)",
        ),
        (
            lambda: torch.sparse_bsr_tensor([0, 1, 2], [0, 1], 2 * [3 * [3 * [1.0]]], (6, 6)),
            {"x.crow_indices": 24, "x.col_indices": 16, "x.values": 72},
            "sparse_bsr tensor (6, 6)",
        ),
    ],
    ids=["coo", "csr", "csc", "bsr"],
)
def test_sparse_tensor(make, expected, layout):
    since = Since()
    x = make()
    found = since()
    assert {name: nbytes for name, (nbytes, _) in shown(found).items()} == expected
    assert {each.note for each in found.values()} == {f"part of a {layout}"}
    assert since.grown() == sum(expected.values())
    del x
    assert since() == {}


def test_a_sparse_gradient():
    since = Since()
    model = nn.Embedding(5, 2, sparse=True)
    model(torch.tensor([1, 1])).sum().backward()
    # two rows of two floats, and their numbers
    assert since.sizes(model) == {
        "weight": ("parameter", 40),
        "weight.grad.indices": ("gradient", 16),
        "weight.grad.values": ("gradient", 16),
    }


def test_jagged_tensor():
    parts = [torch.zeros(2), torch.zeros(3)]
    torch.nested.nested_tensor(parts, layout=torch.jagged)
    del parts
    since = Since()
    x = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    found = shown(since())
    assert found["x._values"] == (20, 20)
    assert found["x._offsets"] == (24, 24)
    assert since.grown() == 44
    del x


def test_meta_tensors_have_a_size_and_no_storage():
    since = Since()
    x = torch.zeros(5, device="meta")
    (record,) = since().values()
    assert (record.device, record.nbytes, record.storage_nbytes) == ("meta", 20, 0)
    assert since.grown() == 0
    del x


def test_views_of_complex_numbers_share_a_storage():
    since = Since()
    x = torch.zeros(5, dtype=torch.complex64)
    conjugate, real, negative = x.conj(), torch.view_as_real(x), torch._neg_view(x)
    found = since()
    (counted,) = [name for name, each in found.items() if each.alias_of is None]
    assert counted.endswith("(): x")
    assert [each.alias_of for each in found.values() if each.alias_of] == 3 * [counted]
    assert {each.nbytes for each in found.values()} == {40}
    assert since.grown() == 40
    del conjugate, real, negative


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *[(torch.bfloat16, 2), (torch.float16, 2), (torch.float64, 8), (torch.bool, 1)],
        *[(torch.float8_e4m3fn, 1), (torch.float8_e5m2, 1), (torch.complex128, 16)],
        *[(torch.uint16, 2), (torch.uint64, 8)],
    ],
    ids=str,
)
def test_tensor_dtypes(dtype, size):
    since = Since()
    x = torch.empty(5, dtype=dtype)
    (record,) = since().values()
    assert record.nbytes == record.storage_nbytes == since.grown() == 5 * size
    assert f"torch.{record.dtype}" == str(dtype)
    del x


class TestViews:
    def test_view_of_a_live_tensor(self):
        since = Since()
        base = torch.zeros(100)
        part = base[3:4]
        found = since()
        where = "TestViews.test_view_of_a_live_tensor(): "
        assert found[where + "base"].alias_of is None
        record = found[where + "part"]
        assert (record.nbytes, record.storage_nbytes, record.offset) == (4, 400, 3)
        assert record.alias_of == where + "base"
        assert since.grown() == 400
        del part

    @pytest.mark.parametrize("grad", [True, False])
    def test_alone_of_a_large_storage(self, grad):
        since = Since()
        # a detached one does not keep its base, a view does
        part = torch.zeros(1_000_000)[3:4] if grad else torch.zeros(1_000_000)[3:4].detach()
        records = [each for each in since.records() if each.name.endswith(": part")]
        assert [(each.nbytes, each.storage_nbytes) for each in records] == [(4, 4_000_000)]
        assert since.grown() == 4_000_000
        del part

    def test_the_base_that_only_its_view_holds(self):
        since = Since()
        part = torch.zeros(1_000_000)[3:4]
        found = since()
        # torch keeps the base as part._base
        counted = [name for name, each in found.items() if each.alias_of is None]
        assert all("part" in name for name in counted), counted
        del part

    def test_expanded_view(self):
        since = Since()
        wide = torch.zeros(2, 1).detach().expand(2, 1000).detach()
        assert shown(since()) == {"wide": (8000, 8)}
        assert since.grown() == 8
        del wide

    def test_a_copy_that_was_put_off(self):
        since = Since()
        x = torch.zeros(4)
        y = torch._lazy_clone(x)
        found = since()
        assert sorted(each.alias_of is None for each in found.values()) == [False, True]
        assert since.grown() == 16
        y.add_(1)
        assert [each.alias_of for each in since().values()] == [None, None]
        assert since.grown() == 32


class TestStorages:
    def test_resized_to_nothing(self):
        since = Since()
        x = torch.zeros(100)
        x.untyped_storage().resize_(0)
        assert shown(since()) == {"x": (400, 0)}
        assert since.grown() == 0

    def test_set_to_nothing(self):
        since = Since()
        x = torch.zeros(100)
        x.set_()
        assert shown(since()) == {"x": (0, 0)}
        assert since.grown() == 0

    def test_resized_storage(self):
        since = Since()
        x = torch.zeros(2)
        x.untyped_storage().resize_(800)
        assert shown(since()) == {"x": (8, 800)}
        assert since.grown() == 800

    def test_alone_it_is_a_block_of_the_ledger(self):
        since = Since()
        kept = torch.zeros(77, dtype=torch.uint8).untyped_storage()
        assert since(unnamed=77) == {}
        assert 77 in [block.nbytes for block in since.last.ledger["cpu"].blocks]
        assert len(kept) == 77

    def test_copied_storage(self):
        since = Since()
        x = torch.zeros(4)
        y = copy.deepcopy(x)
        assert shown(since()) == {"x": (16, 16), "y": (16, 16)}
        assert since.grown() == 32
        del y

    def test_behind_an_array(self):
        since = Since()
        array = torch.zeros(4).numpy()
        (record,) = since.records()
        assert (record.nbytes, record.alias_of) == (16, None)
        assert since.grown() == 16
        del array, record
        assert since() == {}


class TestMemoryOfOthers:
    def test_numpy_memory(self):
        since = Since()
        x = torch.from_numpy(numpy.zeros(100))
        (record,) = since().values()
        assert record.nbytes == 800
        assert record.note == "memory of NumPy or another library, not torch's allocator"
        assert since.grown() == 0
        del x

    def test_shared_memory(self):
        since = Since()
        x = torch.zeros(100).share_memory_()
        (record,) = since().values()
        assert record.nbytes == 400
        assert record.note == "shared memory, not torch's allocator"
        assert since.grown() == 0
        del x

    def test_from_a_worker(self):
        since = Since()
        context = torch.multiprocessing.get_context("fork")
        queue, done = context.Queue(), context.Event()
        worker = context.Process(target=_send, args=(queue, done))
        worker.start()
        received = queue.get(timeout=60)
        (record,) = [each for each in since.records() if each.name.endswith(": received")]
        done.set()
        worker.join(60)
        assert worker.exitcode == 0
        assert record.nbytes == 4000
        assert record.note == "shared memory, not torch's allocator"
        assert received.sum() == 1000

    def test_mapped_file(self, tmp_path):
        file = tmp_path / "weights.pt"
        torch.save({"a": torch.zeros(1000)}, file)
        since = Since()
        state = torch.load(file, mmap=True)
        (record,) = since().values()
        assert record.name.endswith("state['a']")
        assert record.nbytes == 4000
        assert record.note == "mapped from weights.pt, not torch's allocator"
        assert since.grown() == 0
        del state


def _send(queue, done):
    queue.put(torch.ones(1000))
    done.wait(60)


def test_fake_tensors_are_left_out_with_a_note():
    from torch._subclasses import FakeTensorMode

    since = Since()
    before = sum(int(note.split()[0]) for note in since.before.notes if "fake" in note)
    with FakeTensorMode():
        fakes = [torch.zeros(100), torch.zeros(3)]
    assert since() == {}
    told = f"{before + 2} fake tensors were left out: they hold no memory"
    assert told in since.last.notes
    assert since.grown() == 0
    del fakes


class Named(torch.Tensor):
    pass


class Pair(torch.Tensor):
    """Two inner tensors, and operators that must not be asked for."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape)

    def __init__(self, a, b):
        self.a, self.b = a, b

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            # a Parameter is made of what this gives
            return args[0]
        raise AssertionError(func)


class Slotted(torch.Tensor):
    __slots__ = ("empty", "inner")

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(func)


class TestSubclasses:
    def test_plain_subclass(self):
        since = Since()
        x = torch.Tensor._make_subclass(Named, torch.zeros(3).detach())
        found = {name: each for name, each in since().items() if each.alias_of is None}
        assert shown(found) == {"x": (12, 12)}
        assert since.grown() == 12
        del x

    def test_two_inner_tensors(self):
        since = Since()
        x = Pair(torch.zeros(3), torch.zeros(3))
        found = since()
        assert shown(found) == {"x.a": (12, 12), "x.b": (12, 12)}
        assert {each.note for each in found.values()} == {"part of a Pair"}
        assert since.grown() == 24
        del x

    def test_an_inner_tensor_in_a_slot(self):
        since = Since()
        x = Slotted(torch.zeros(3))
        found = since()
        assert shown(found) == {"x": (12, 12)}
        assert {each.note for each in found.values()} == {"inside a Slotted"}
        assert since.grown() == 12
        del x

    def test_parameter_subclass(self):
        since = Since()
        model = nn.Module()
        model.weight = nn.Parameter(Pair(torch.zeros(3), torch.zeros(3)), requires_grad=False)
        assert since.sizes(model) == {
            "weight.a": ("parameter", 12),
            "weight.b": ("parameter", 12),
        }


@pytest.fixture(scope="module")
def mesh():
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("torch without distributed")
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def let_go_of_all_but(nbytes):
    """Wait until gloo's threads have."""
    end = time.monotonic() + 10
    while native.install()[0].allocated() > nbytes and time.monotonic() < end:
        time.sleep(0.01)


class TestDistributed:
    def test_dtensor_shards(self, mesh):
        from torch.distributed.tensor import Shard, distribute_tensor

        before = native.install()[0].allocated()
        distribute_tensor(torch.zeros(8, 4), mesh, [Shard(0)])
        let_go_of_all_but(before)
        since = Since()
        before = native.install()[0].allocated()
        x = distribute_tensor(torch.zeros(8, 4), mesh, [Shard(0)])
        let_go_of_all_but(before + 128)
        found = {name: each for name, each in since().items() if each.alias_of is None}
        assert shown(found) == {"x": (128, 128)}
        assert {each.note for each in found.values()} == {"local part of a DTensor (8, 4)"}
        assert since.grown() == 128
        del x

    def test_fully_sharded_model(self, mesh):
        from torch.distributed.fsdp import fully_shard

        since = Since()
        model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
        fully_shard(model, mesh=mesh)
        adam = torch.optim.Adam(model.parameters(), foreach=False)
        for _ in range(2):
            model(torch.zeros(7, 20)).sum().backward()
            adam.step()
        records = since.records(model, adam)
        expected = {"0.weight": 2400, "0.bias": 120, "1.weight": 1200, "1.bias": 40}
        for name, nbytes in expected.items():
            owned = [each for each in records if each.name.removeprefix("Adam.").startswith(name)]
            sizes = {each.name: (each.role, each.nbytes) for each in owned}
            assert sizes == {
                name: ("parameter", nbytes),
                f"{name}.grad": ("gradient", nbytes),
                f"Adam.{name}.step": ("optimizer", 4),
                f"Adam.{name}.exp_avg": ("optimizer", nbytes),
                f"Adam.{name}.exp_avg_sq": ("optimizer", nbytes),
            }
            parts = [each.note for each in owned if not each.name.endswith(".step")]
            assert all(note.startswith("local part of a DTensor") for note in parts)
