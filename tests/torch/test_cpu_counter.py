import copy
import gc
import mmap
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tensorlens.errors import UsageError
from tensorlens.frameworks.host import HeapCounter, ResidentCounter
from tensorlens.frameworks.torch import Adapter, TorchAllocator, adopt_living, native
from tests import warm

ROOT = Path(__file__).parents[2]
PAGE = os.sysconf("SC_PAGESIZE")


class Meter:
    """Bytes since the last ``start()``."""

    def __init__(self, counter):
        self.allocator = counter
        self.read = counter.reader()
        self.start()

    def start(self):
        self.base = self.read()[0]

    @property
    def net(self):
        return self.allocator.allocated() - self.base

    def net_and_peak(self):
        allocated, peak, _ = self.read()
        return allocated - self.base, peak - self.base


@pytest.fixture
def meter():
    counter = Adapter().cpu_counter()
    if not isinstance(counter, TorchAllocator):
        pytest.skip("; ".join(Adapter().notes()))
    gc.collect()
    gc.disable()
    yield Meter(counter)
    gc.enable()


def run(code, *flags, **environment):
    """Run ``code`` in a process of its own; give what it printed, line by line."""
    result = subprocess.run(
        [*warm.python(), *flags, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()


def test_the_header_names_source_and_precision():
    counter = Adapter().cpu_counter()
    assert counter.device == "cpu"
    assert (counter.source, counter.precision) == ("torch CPU allocator", "exact bytes")
    assert counter.missing == {}
    assert Adapter().notes() == []


def test_a_read_gives_three_ints(meter):
    figures = meter.read()
    assert len(figures) == 3
    assert all(type(figure) is int for figure in figures)


def test_resident_set_equals_statm(meter):
    statm = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    assert abs(meter.read()[2] - statm) < 8 << 20


def test_a_tensor_is_its_elements(meter):
    kept = torch.empty(1000)
    assert meter.net_and_peak() == (4000, 4000)
    del kept
    assert meter.net_and_peak() == (0, 4000)
    assert meter.net_and_peak() == (0, 0)


def test_sizes_are_not_rounded(meter):
    kept = [torch.empty(size, dtype=torch.uint8) for size in (1, 3, 63, 65, 1_000_001)]
    assert meter.net == 1 + 3 + 63 + 65 + 1_000_001
    assert len(kept) == 5


def test_zero_bytes_are_nothing(meter):
    blocks = len(meter.allocator.living().address)
    kept = [torch.empty(0), torch.empty(3, 0, 5)]
    assert meter.net_and_peak() == (0, 0)
    assert len(meter.allocator.living().address) == blocks
    assert len(kept) == 2


def test_views_are_free(meter):
    base = torch.empty(10, 100)
    meter.start()
    views = [base.view(-1), base[3], base.t(), base.expand(4, 10, 100), base.detach(), base.data]
    assert meter.net_and_peak() == (0, 0)
    del base
    assert meter.net == 0
    views.clear()
    assert meter.net == -4000


def test_in_place_operations_allocate_nothing(meter):
    left, right = torch.ones(1000), torch.ones(1000)
    meter.start()
    left.add_(right).mul_(right).neg_()
    assert meter.net_and_peak() == (0, 0)


def test_matmul_is_its_result(meter):
    left, right = torch.ones(300, 200), torch.ones(200, 100)
    meter.start()
    product = left @ right
    assert meter.net_and_peak() == (300 * 100 * 4, 300 * 100 * 4)
    assert product.shape == (300, 100)


def test_convolution_keeps_its_result_and_peaks_with_its_scratch(meter):
    image, weight = torch.ones(8, 16, 64, 64), torch.ones(32, 16, 3, 3)
    with torch.no_grad():
        meter.start()
        result = torch.nn.functional.conv2d(image, weight, padding=1)
        net, peak = meter.net_and_peak()
    assert net == 8 * 32 * 64 * 64 * 4 == result.nbytes
    assert peak >= net
    # without mkldnn each of at least one image is unfolded: 16 * 3 * 3 rows of 64 * 64
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        meter.start()
        again = torch.nn.functional.conv2d(image, weight, padding=1)
        net, peak = meter.net_and_peak()
    assert net == again.nbytes
    assert peak >= net + 16 * 3 * 3 * 64 * 64 * 4


def test_backward_is_counted_on_autograds_threads(meter):
    weight = torch.ones(100, 50, requires_grad=True)
    data = torch.ones(10, 100)
    meter.start()
    loss = (data @ weight).sum()
    # the product is not needed for the gradient of a sum
    assert meter.net == 4
    loss.backward()
    assert meter.net == 4 + 100 * 50 * 4
    weight.grad = None
    assert meter.net == 4


def test_peak_is_exact(meter):
    first = torch.empty(1 << 20, dtype=torch.uint8)
    del first
    second = torch.empty(512 << 10, dtype=torch.uint8)
    assert meter.net_and_peak() == (512 << 10, 1 << 20)
    assert meter.net_and_peak() == (512 << 10, 512 << 10)
    assert second.nbytes == 512 << 10


def test_freed_on_another_thread(meter):
    tensors = [torch.empty(1000) for _ in range(10)]
    meter.start()
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert meter.net == -40_000


def test_numpy_memory_is_not_torchs(meter):
    bridged = torch.from_numpy(numpy.zeros(1000))
    buffered = torch.frombuffer(bytearray(400), dtype=torch.float32)
    assert meter.net_and_peak() == (0, 0)
    del bridged, buffered
    assert meter.net == 0


def test_an_array_keeps_the_block_of_its_tensor(meter):
    tensor = torch.empty(1000)
    array = tensor.numpy()
    del tensor
    assert meter.net == 4000
    del array
    assert meter.net == 0


def test_resize_moves_to_a_block_of_the_new_size(meter):
    tensor = torch.empty(100)
    meter.start()
    tensor.resize_(1000)
    assert meter.net_and_peak() == (3600, 4000)
    # torch keeps the larger block
    tensor.resize_(10)
    assert meter.net == 3600
    tensor.untyped_storage().resize_(40)
    assert meter.net == 40 - 400


def test_shared_memory_is_outside_the_allocator(meter):
    tensor = torch.ones(1000)
    tensor.share_memory_()
    assert meter.net == 0
    assert tensor.sum() == 1000


def test_storage_made_directly(meter):
    storage = torch.UntypedStorage(100)
    assert meter.net == 100
    del storage
    assert meter.net == 0


def test_deepcopy_and_pickle(meter):
    tensor = torch.arange(100.0)
    meter.start()
    text = pickle.dumps(tensor)
    assert meter.net == 0
    loaded = pickle.loads(text)
    assert meter.net == 400
    copied = copy.deepcopy(tensor)
    assert meter.net == 800
    assert torch.equal(loaded, copied)
    del loaded, copied
    assert meter.net == 0


def test_lazy_clone_counts_when_written(meter):
    tensor = torch.ones(100)
    meter.start()
    clone = torch._lazy_clone(tensor)
    assert meter.net == 0
    clone.neg_()
    assert meter.net == 400
    del clone, tensor
    assert meter.net == -400


def test_sparse_and_mkldnn(meter):
    dense = torch.eye(10)
    meter.start()
    # 10 entries of two int64 coordinates and one float
    sparse = dense.to_sparse()
    assert meter.net == 10 * (2 * 8 + 4)
    del sparse
    assert meter.net == 0
    if torch.backends.mkldnn.is_available():
        opaque = dense.to_mkldnn()
        assert meter.net == 400
        del opaque
        assert meter.net == 0


@pytest.mark.parametrize("count", [1 << 50, 1 << 62])
def test_an_impossible_allocation_counts_nothing(meter, count):
    blocks = len(meter.allocator.living().address)
    with pytest.raises(RuntimeError):
        torch.empty(count)
    assert meter.net_and_peak() == (0, 0)
    assert len(meter.allocator.living().address) == blocks


def test_counter_of_many_blocks(meter):
    blocks = len(meter.allocator.living().address)
    base = torch.empty(1, dtype=torch.uint8)
    tensors = [torch.empty_like(base) for _ in range(200_000)]
    assert meter.net == 200_001
    assert len(meter.allocator.living().address) == blocks + 200_001
    del tensors[::2]
    assert meter.net == 100_001
    tensors.clear()
    del base
    assert meter.net == 0
    assert len(meter.allocator.living().address) == blocks


def test_threads_end_where_they_began(meter):
    def work(handed_on):
        for index in range(4000):
            tensor = torch.empty(index % 97 + 1)
            handed_on.put(tensor + 1)
            del tensor
            handed_on.get()

    # what one thread makes, another frees
    handed_on = queue.SimpleQueue()
    threads = [threading.Thread(target=work, args=(handed_on,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handed_on.empty()
    assert meter.net == 0


def test_reads_on_threads_lose_no_peak(meter):
    peaks = []
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            peaks.append(meter.read()[1] - meter.base)

    thread = threading.Thread(target=watch)
    thread.start()
    for _ in range(300):
        tensor = torch.empty(1 << 20, dtype=torch.uint8)
        del tensor
    stop.set()
    thread.join()
    peaks.append(meter.net_and_peak()[1])
    assert max(peaks) == 1 << 20
    assert meter.net == 0


def test_adopted_blocks_count_out(meter):
    # as torch made it before the allocator was in place: straight from the C library
    code = """
import torch
early = [torch.empty(1000), torch.empty(50)]
view = early[0][10:]
layer = torch.nn.Linear(3, 2)
layer(torch.ones(1, 3)).sum().backward()
from tensorlens.frameworks.torch import Adapter
allocator = Adapter().cpu_counter()
print(allocator.allocated() == 4000 + 200 + 2 * 4 * (6 + 2), len(allocator.living().address))
start = allocator.allocated()
layer.zero_grad()
print(allocator.allocated() - start)
early.clear()
print(allocator.allocated() - start)
del view
print(allocator.allocated() - start)
layer.weight.data.resize_(4, 3)
print(allocator.allocated() - start)
"""
    # grads; the small one; the one the view kept; 12 elements where 6 were
    assert run(code) == ["True 6", "-32", "-232", "-4232", "-4208"]


def test_adopting_makes_no_object(meter):
    code = """
import gc, torch
def count():
    return sum(issubclass(type(item), (torch.UntypedStorage, torch.Tensor))
               for item in gc.get_objects())
early = [torch.empty(1000) for _ in range(20)]
layer = torch.nn.Linear(3, 2)
layer(torch.ones(1, 3)).sum().backward()
before = count()
from tensorlens.frameworks.torch import Adapter
allocator = Adapter().cpu_counter()
print(count() - before, allocator.allocated() - 20 * 4000 - 2 * 4 * (6 + 2))
"""
    assert run(code) == ["0 0"]


def test_only_the_gradient_of_a_gradient_in_a_circle_is_met_once(meter):
    code = """
import torch
one, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
one.grad, other.grad = other, one
kept = [one, torch.ones(2, requires_grad=True)]
kept[1].grad = torch.ones(2)
del other
from tensorlens.frameworks.torch import Adapter
print(Adapter().cpu_counter().allocated())
one.grad = None
"""
    assert run(code) == ["32"]


def test_foreign_memory_is_not_adopted(meter):
    code = """
import numpy, torch
from torch._subclasses import FakeTensorMode
with FakeTensorMode():
    fake = torch.empty(10)
class Wrapper(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, *arguments, **named):
        raise RuntimeError
kept = [
    fake,
    torch.empty(10, device="meta"),
    torch.from_numpy(numpy.zeros(9)),
    torch.Tensor._make_wrapper_subclass(Wrapper, (2, 3)),
    torch.Tensor.__new__(torch.Tensor),
    torch._C.TensorBase.__new__(torch.Tensor),
    torch.vmap(lambda row: row)(torch.from_numpy(numpy.zeros((2, 2)))),
    torch._to_functional_tensor(torch.from_numpy(numpy.zeros(3))),
    torch.eye(3).to_sparse(),
]
kept.append(torch.zeros(5))
from tensorlens.frameworks.torch import Adapter
from tensorlens.frameworks.torch import adopt_living
allocator = Adapter().cpu_counter()
known = allocator.allocated()
print(adopt_living(allocator), known >= 20, allocator.allocated() - known)
"""
    assert run(code) == ["0 True 0"]


def test_adopting_asks_no_metaclass():
    code = """
import torch

class Unhashable(type):
    __hash__ = None

class Odd(metaclass=Unhashable):
    pass

odd, kept = Odd(), torch.zeros(5)
from tensorlens.frameworks.torch import Adapter, TorchAllocator
counter = Adapter().cpu_counter()
print(type(counter) is TorchAllocator, *Adapter().notes())
"""
    assert run(code) == ["True"]


def test_adopting_twice_takes_nothing(meter):
    # what other tests of this process left behind by no allocator
    adopt_living(meter.allocator)
    before = meter.net
    kept = torch.empty(10)
    assert adopt_living(meter.allocator) == 0
    assert meter.net - before == kept.nbytes


def test_adopting_runs_no_code_of_the_objects_it_meets(meter):
    ran = []

    class Hostile:
        @property
        def __class__(self):
            ran.append("__class__")
            raise RuntimeError

        def __getattr__(self, name):
            ran.append(name)
            raise RuntimeError

    class Subclass(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *arguments):
            ran.append("__torch_function__")
            raise RuntimeError

        def untyped_storage(self):
            ran.append("untyped_storage")
            raise RuntimeError

    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(10)
    kept = [
        [Hostile()],
        torch.ones(10).as_subclass(Subclass),
        torch.empty(10, device="meta"),
        torch.eye(3).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        fake,
    ]
    del kept[0][0].__dict__
    meter.start()
    ran.clear()
    assert adopt_living(meter.allocator) == 0
    assert ran == []
    assert meter.net == 0


def test_a_forked_child_counts_on_and_reads_its_own_resident_set(meter):
    stop = threading.Event()

    def work():
        while not stop.is_set():
            torch.empty(100)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(_in_child(meter))
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
    assert meter.net == 0


def _in_child(meter):
    # a child that hangs is ended, and seen
    signal.alarm(100)
    try:
        meter.start()
        before = meter.read()[2]
        kept = torch.empty(1000)
        # not a tensor: a kernel on several threads never ends after a fork
        fresh = mmap.mmap(-1, 16 << 20)
        fresh.write(bytes([1]) * (16 << 20))
        allocated, _, resident = meter.read()
        exact = allocated - meter.base == kept.nbytes
        return 0 if exact and resident - before >= 16 << 20 else 1
    except BaseException:
        return 2


def test_counter_in_loader_workers(meter):
    data = TensorDataset(torch.arange(64.0).view(64, 1))
    meter.start()
    loader = DataLoader(data, batch_size=16, num_workers=1, multiprocessing_context="fork")
    assert [batch[0, 0].item() for (batch,) in loader] == [0, 16, 32, 48]
    gc.collect()
    # the loader draws its seed into a tensor that it does not keep
    assert meter.net == 0


def test_beside_torch_profiler(meter):
    weight, data = torch.ones(64, 64, requires_grad=True), torch.ones(8, 64)
    meter.start()
    with torch.profiler.profile(profile_memory=True) as profiler:
        product = data @ weight
    assert meter.net == 8 * 64 * 4
    seen = {event.key: event.self_cpu_memory_usage for event in profiler.key_averages()}
    assert seen["aten::mm"] == 8 * 64 * 4
    del product
    assert meter.net == 0


def test_a_descriptor_that_was_taken_away_is_opened_again(meter):
    code = """
import os, torch
from tensorlens.frameworks.torch import Adapter
read = Adapter().cpu_counter().reader()
before = read()[2]
os.closerange(3, 64)
taken = [open("/proc/self/status", "rb") for _ in range(8)]
print(abs(read()[2] - before) < 8 << 20, taken[0].read(5))
"""
    assert run(code) == ["True b'Name:'"]


def test_exit_with_live_tensors(meter):
    code = """
import torch, threading
from tensorlens.frameworks.torch import Adapter
read = Adapter().cpu_counter().reader()
torch.kept = torch.empty(1000)
class Late:
    def __init__(self):
        self.read, self.kept = read, torch.empty(10)
    def __del__(self):
        print(len(self.read()), self.kept.nbytes)
torch.late = Late()
weight = torch.ones(10, requires_grad=True)
(weight * 2).sum().backward()
weight.hook = weight.register_hook(lambda gradient: gradient)
"""
    assert run(code, "-X", "dev", "-W", "ignore") == ["3 40"]


@pytest.mark.parametrize(("chosen", "kind"), [("heap", HeapCounter), ("resident", ResidentCounter)])
def test_a_forced_source(monkeypatch, chosen, kind):
    monkeypatch.setenv("TENSORLENS_COUNTER", chosen)
    counter = Adapter().cpu_counter()
    assert isinstance(counter, kind)
    # another one would have lines forget what they counted so far
    assert Adapter().cpu_counter() is counter
    assert Adapter().notes() == []


def test_a_bad_source_is_one_line(monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "exact")
    with pytest.raises(UsageError) as caught:
        Adapter().cpu_counter()
    assert str(caught.value) == ("TENSORLENS_COUNTER=exact: choose one of native, heap, resident")


def test_installing_again_is_the_same_allocator(meter):
    assert native.install() == (meter.allocator, False)


def test_the_reader_does_not_leak(meter):
    read = meter.read
    for _ in range(1000):
        read()
    before = sys.getallocatedblocks()
    for _ in range(10_000):
        read()
    assert sys.getallocatedblocks() - before < 100


def _plain(x):
    return x


class TestCompiledBy:
    compiled_by = staticmethod(Adapter().compiled_by)

    def test_plain_things_are_not(self):
        layer = torch.nn.Linear(2, 2)
        decorated = torch.no_grad()(_plain)
        for item in (_plain, layer, layer.forward, decorated, torch.optim.Adam.step, len, 3, None):
            assert self.compiled_by(item) is None

    def test_counter_under_torch_compile(self):
        class Net(torch.nn.Module):
            @torch.compile
            def forward(self, x):
                return x

        in_place = torch.nn.Linear(2, 2)
        in_place.compile()
        for item in (
            torch.compile(_plain),
            torch.no_grad()(torch.compile(_plain)),
            torch.compile(torch.nn.Linear(2, 2)),
            Net().forward,
            Net.forward,
            in_place,
        ):
            assert self.compiled_by(item) == "torch.compile"

    def test_disabled_is_not_compiled(self):
        assert self.compiled_by(torch.compiler.disable(_plain)) is None
        # it takes the function out of what compiled it
        assert self.compiled_by(torch.compiler.disable(torch.compile(_plain))) is None

    def test_a_loop_of_wrappers_ends(self):
        def first(): ...

        def second(): ...

        first.__wrapped__, second.__wrapped__ = second, first
        assert self.compiled_by(first) is None


def test_forward_of_a_module_only():
    adapter = Adapter()
    assert adapter.forward_of(torch.nn.Linear(1, 1)) == "forward"
    assert adapter.forward_of(torch.nn.Linear) is None
    assert adapter.forward_of(_plain) is None
