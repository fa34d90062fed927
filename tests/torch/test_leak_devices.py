"""Leaks of tensors on accelerators: an allocator of the host stands for theirs.

It reports its blocks to torch as those of CUDA and XPU do, rounded up to 512 bytes.
"""

import contextlib
import inspect
import threading
from collections import deque

import pytest
import torch
from torch import nn

from tensorlens import LeakWatch, find_leaks
from tensorlens.errors import UsageError
from tensorlens.frameworks.torch import loop_steps as torch_steps
from tensorlens.leaks import AllocationScope
from tensorlens.native import NativeUnavailable
from tests.torch.healthy_programs import HEALTHY
from tests.torch.leak_programs import LEAKS
from tests.torch.stand_in_device import stand_in
from tests.torch.test_leak_programs import check

pytestmark = pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")


@pytest.fixture
def device(monkeypatch):
    # seconds that looks may take: no matter how busy this machine is
    monkeypatch.setattr(torch_steps, "_FREE_SECONDS", 60)
    try:
        with stand_in(monkeypatch) as found:
            yield found
    except NativeUnavailable as error:
        pytest.skip(str(error))


def line_of(function, mark):
    """Return the number of a marked line."""
    source, first = inspect.getsourcelines(function)
    return next(first + at for at, line in enumerate(source) if line.rstrip().endswith(mark))


@pytest.mark.parametrize("name", [*LEAKS][::2])
def test_leaks_are_found(device, name):
    with device.on(0):
        check(LEAKS[name], find_leaks(LEAKS[name].make()))


@pytest.mark.parametrize("name", [*HEALTHY][1::2])
def test_healthy_programs_do_not_leak(device, name):
    with device.on(0):
        report = find_leaks(HEALTHY[name]())
    assert report.leaks == (), report.leaks


def test_losses_that_are_kept(device):
    net = nn.Linear(6, 3)
    losses = []

    def step():
        with device.on(0):
            losses.append(net(torch.ones(5, 6)).square().sum())  # LOSS

    report = find_leaks(step)
    (leak,) = report.leaks
    assert (leak.device, leak.tensors_per_step) == ("cuda:0", 1)
    assert leak.born.lineno == line_of(test_losses_that_are_kept, "# LOSS")
    # the loss, and of its graph the batch and the net's output, which square() saved
    assert leak.bytes_per_step == 4 + 5 * 6 * 4 + 5 * 3 * 4
    assert leak.example.below == 5 * 6 * 4 + 5 * 3 * 4
    assert "losses (local) -> list[6] -> grad_fn -> 2 saved activations" in leak.path
    assert leak.advice.startswith("store tensor.item() instead of the tensor, which keeps ")
    assert report.notes == ()
    # 512 B for each of the three
    assert report.allocated["cuda:0"][-1] - report.allocated["cuda:0"][-2] == 3 * 512


def test_detached_tensors_that_are_kept(device):
    kept = []

    def step():
        with device.on(0):
            kept.append(torch.ones(300).requires_grad_().mul(2).detach())  # KEPT

    (leak,) = find_leaks(step).leaks
    assert leak.born.lineno == line_of(test_detached_tensors_that_are_kept, "# KEPT")
    assert (leak.tensors_per_step, leak.bytes_per_step, leak.device) == (1, 1200, "cuda:0")
    assert leak.advice.startswith("clear ") and "kept" in leak.path


def test_a_bounded_cache(device):
    cache = deque(maxlen=100)

    def step():
        with device.on(0):
            cache.append(torch.ones(300))

    report = find_leaks(step)
    assert report.leaks == ()
    assert [other.kind for other in report.others] == ["filling"]


@pytest.mark.parametrize("to_none", [False, True])
def test_a_training_loop(device, to_none):
    with device.on(0):
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = torch.optim.Adam(net.parameters())

        def step():
            optimizer.zero_grad(set_to_none=to_none)
            net(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()

        # the state is made in the first step, which is judged here
        report = find_leaks(step, warmup=0)
    assert (report.leaks, report.others, report.notes) == ((), (), ())


def test_reused_address(device):
    kept, addresses = [], []

    def healthy():
        with device.on(0):
            addresses.append(torch.ones(5000).data_ptr())

    assert find_leaks(healthy).leaks == ()
    assert len(set(addresses)) < len(addresses)

    def leaking():
        # what is kept lies where something else lay at the end of the step before
        with device.on(0):
            if kept:
                kept[-1] = kept[-1].clone()
            kept.append(torch.ones(5000))
            kept.append(torch.ones(5000))

    (first, *_) = find_leaks(leaking).leaks
    assert first.bytes_per_step in (20_000, 40_000)


def test_two_devices_and_the_host_at_once(device):
    device.devices = ["cuda:0", "cuda:1"]
    kept = []

    def step():
        for index, size in ((0, 256), (1, 512), (-1, 128)):
            with device.on(index):
                kept.append(torch.zeros(size))  # ALL

    leaks = find_leaks(step).leaks
    found = [(leak.device, leak.tensors_per_step, leak.bytes_per_step) for leak in leaks]
    assert found == [("cuda:1", 1, 2048), ("cuda:0", 1, 1024), ("cpu", 1, 512)]
    line = line_of(test_two_devices_and_the_host_at_once, "# ALL")
    assert {leak.born.lineno for leak in leaks} == {line}


def test_a_tensor_that_gets_longer(device):
    longer = torch.zeros(0)

    def step():
        nonlocal longer
        with device.on(0):
            longer = torch.cat([longer, torch.ones(5)])

    (leak,) = find_leaks(step).leaks
    # its block, of 512 B, does not grow in these steps: what was asked for does
    assert (leak.device, leak.bytes_per_step, leak.tensors_per_step) == ("cuda:0", 20, 0)
    assert leak.advice.startswith("cap the size of longer, ")


def test_a_tensor_that_gets_longer_in_few_looks(device, monkeypatch):
    # one in three is not due
    due = iter([True, True, False] * 20)
    asked = torch_steps.DeviceSteps.asked
    monkeypatch.setattr(
        torch_steps.DeviceSteps, "asked", lambda self: asked(self) if next(due) else None
    )
    longer = torch.zeros(0)

    def step():
        nonlocal longer
        with device.on(0):
            longer = torch.cat([longer, torch.ones(5)])

    (leak,) = find_leaks(step, steps=12).leaks
    assert leak.bytes_per_step == 20


def test_older_blocks_are_seen_freed(device):
    with device.on(0):
        ring = [torch.zeros(400) for _ in range(20)]

        def step(number):
            ring[number] = torch.zeros(400)

        assert find_leaks(step).leaks == ()


def test_no_memory_history_is_switched_or_read(device, monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError("the history is the program's")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", fail)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", fail)
    kept = []
    with device.on(0):
        assert find_leaks(lambda: kept.append(torch.zeros(256))).leaks


def test_a_profiler_of_the_programs(device):
    kept = []

    def step():
        with torch.profiler.profile(profile_memory=True) as profile, device.on(0):
            kept.append(torch.zeros(256))
        assert any(event.key == "aten::zeros" for event in profile.key_averages())

    (leak,) = find_leaks(step).leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, 1024)


def test_left_blocks_of_other_threads(device):
    kept = []

    def work():
        kept.append(torch.zeros(256))  # WORK

    def step():
        with device.on(0):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    (leak,) = find_leaks(step).leaks
    assert leak.born.lineno == line_of(test_left_blocks_of_other_threads, "# WORK")
    assert leak.bytes_per_step == 1024


def test_exception_ends_the_watch(device):
    kept = []
    with contextlib.suppress(ZeroDivisionError), LeakWatch() as watch, device.on(0):
        kept.append(torch.zeros(256))
        watch.step()
        _ = 1 / 0
    with pytest.raises(UsageError):
        watch.result()
    # what is made while nobody follows is not noted
    with device.on(0):
        kept.append(torch.zeros(256))
    device.devices = []
    steps = torch_steps.DeviceSteps()
    assert steps.lines() == {}
    steps.close()


def test_watches_that_overlap(device):
    outer_kept, inner = [], []

    def step():
        with device.on(0):
            outer_kept.append(torch.zeros(256))
            if len(outer_kept) == 4:
                other = []
                inner.append(find_leaks(lambda: other.append(torch.zeros(512))))

    (leak,) = find_leaks(step).leaks
    assert leak.bytes_per_step == 1024
    assert [each.bytes_per_step for each in inner[0].leaks] == [2048]


def test_an_allocator_without_a_list(device):
    device.unlisted = True
    kept = []
    with device.on(0):
        (leak,) = find_leaks(lambda: kept.append(torch.zeros(100))).leaks
    # a block of 512 B; how much of it was asked for is not known
    assert leak.bytes_per_step == 512
    assert leak.example.nbytes == 400


def test_an_allocator_that_reports_no_blocks(device):
    device.backend = "cudaMallocAsync"
    report = find_leaks(lambda: None)
    assert report.leaks == ()
    assert report.notes == (
        "cuda:0 is not followed step by step: its allocator (cudaMallocAsync) reports no blocks",
    )


def test_devices_that_cannot_be_followed(device, monkeypatch):
    monkeypatch.setattr(torch_steps, "used_devices", lambda: ["mps"])
    monkeypatch.setattr(torch_steps, "device_counter", lambda name: device.counter("cuda:0"))
    assert find_leaks(lambda: None).notes == (
        "mps is not followed step by step: its allocator reports no blocks",
    )
    monkeypatch.setattr(torch_steps, "is_possible", lambda: False)
    assert find_leaks(lambda: None).notes == (
        "mps is not followed step by step: its allocator reports no blocks",
    )


def test_left_blocks_without_a_compiler(device, monkeypatch):
    def fail(*arguments):
        raise NativeUnavailable("the native table was not built: no compiler")

    monkeypatch.setattr(torch_steps, "_native_table", fail)
    kept = []
    report = find_leaks(lambda: kept.append(torch.zeros(4)))
    assert [leak.device for leak in report.leaks] == ["cpu"]
    assert report.notes == (
        "cuda:0 is not followed step by step: the native table was not built: no compiler",
    )


def test_a_host_that_nobody_counts_is_a_note(device, monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "heap")
    report = find_leaks(lambda: None)
    assert report.verdict == "no leak: nothing stays behind in any of 5 steps"
    assert report.notes == ("tensors on cpu are not followed: TENSORLENS_COUNTER asks for heap",)


class TestThreadsWithoutPython:
    """Autograd runs a pass over an accelerator's tensors on threads of its own."""

    @pytest.fixture(autouse=True)
    def handed_out(self, device):
        self.device = device
        self.blocks = []
        yield
        for block in self.blocks:
            device.library.hand_back(block)

    def pass_over(self, *tensors):
        """What backward() does: it makes ones like the loss, and others run the pass."""
        with self.device.on(0):
            self.ones = [torch.ones_like(each) for each in tensors]
            self.blocks.append(self.device.library.hand_out(1024))

    def test_backward_threads_have_the_calling_line(self):
        loss = torch.zeros(())

        def step():
            self.pass_over(loss)

        leaks = find_leaks(step).leaks
        (leak,) = (each for each in leaks if each.bytes_per_step == 1024)
        line = line_of(TestThreadsWithoutPython.pass_over, "for each in tensors]")
        assert leak.born.lineno == line
        assert leak.path == "" and "cannot be seen from Python" in leak.reason

    def test_native_threads_have_no_line(self):
        loss = torch.zeros(())

        def step():
            torch.ones_like(loss) + 1
            with self.device.on(0):
                self.blocks.append(self.device.library.hand_out(1024))

        (leak,) = find_leaks(step).leaks
        assert (leak.born, leak.device, leak.bytes_per_step) == (None, "cuda:0", 1024)

    def test_a_pass_that_began_while_another_loop_was_followed_gives_no_line(self):
        loss = torch.zeros(())
        began, over = threading.Event(), threading.Event()

        def begin():
            torch.ones_like(loss)
            began.set()
            over.wait()

        def step():
            with self.device.on(0):
                self.blocks.append(self.device.library.hand_out(1024))

        thread = threading.Thread(target=begin)
        find_leaks(lambda: (began.is_set() or thread.start(), began.wait()))
        try:
            (leak,) = find_leaks(step).leaks
        finally:
            over.set()
            thread.join()
        assert (leak.born, leak.device, leak.bytes_per_step) == (None, "cuda:0", 1024)


def test_blocks_left_by_a_stretch(device):
    kept = []
    scope = AllocationScope()
    with device.on(0):
        kept.append(torch.zeros(100))
    scope.end()
    (remains,) = scope.remains()
    scope.close()
    assert (remains.device, remains.nbytes, remains.tensors) == ("cuda:0", 400, 1)
    assert "kept" in remains.path
