"""Where there are more events than are kept, what is told of the dropped ones is still exact."""

import random
import subprocess
from collections import Counter
from itertools import accumulate

import pytest
import torch

from tensorlens import record
from tensorlens.records import START
from tests import warm
from tests.torch.recorder_checks import counting_allocator, levels

CHUNK = 1 << 12
"""So many events are dropped at once."""


@pytest.fixture(scope="module")
def allocator():
    return counting_allocator()


class Program:
    """Allocates and frees one block at a time, and keeps its own books."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.kept = []
        self.changes = []
        """Bytes of each event, negative for a free."""

    def run(self, events):
        for _ in range(events):
            # grows for a while, then shrinks
            rising = len(self.changes) // 3000 % 2 == 0
            if not self.kept or self.random.random() < (0.53 if rising else 0.47):
                size = self.random.randrange(1, 3000)
                self.kept.append(torch.empty(size, dtype=torch.uint8))
                self.changes.append(size)
            else:
                place = self.random.randrange(len(self.kept))
                self.kept[place], self.kept[-1] = self.kept[-1], self.kept[place]
                self.changes.append(-len(self.kept.pop()))

    def blocks_after(self, events):
        """Size to how many blocks of it there are."""
        sizes = Counter()
        for change in self.changes[:events]:
            sizes[abs(change)] += 1 if change > 0 else -1
        return +sizes


def fill():
    """Make all events so far dropped ones."""
    for _ in range(2 * CHUNK):
        torch.empty(1)


def started(log):
    """Size to how many blocks of it were there at the start."""
    return Counter(size for size, kind in zip(log.size, log.kind, strict=True) if kind == START)


def there_now():
    with record(names=False) as recording:
        pass
    return started(recording.log)


def check(recording, base, program, first=0):
    """A recording of `program` after `first` events; `base` was there before it."""
    log, dropped = recording.log, recording.origin.dropped
    assert started(log) == base + program.blocks_after(first + dropped)
    events = len(log) - started(log).total()
    assert events == len(program.changes) - first - dropped
    total = sum(size * count for size, count in base.items())
    bytes_after = list(accumulate(program.changes, initial=total))
    assert levels(log)[-1] == bytes_after[-1]
    assert recording.peak("cpu").bytes == max(bytes_after[first:])
    if not dropped:
        assert recording.origin.dropped_peaks == {}
        return
    folded = bytes_after[first : first + dropped + 1]
    (peak,) = recording.origin.dropped_peaks.values()
    assert sum(peak.size) == max(folded)
    assert started(peak) == base + program.blocks_after(first + folded.index(max(folded)))


@pytest.mark.parametrize("events", [CHUNK, 2 * CHUNK + 1, 5 * CHUNK + 77])
@pytest.mark.parametrize("limit", [1, CHUNK, 6000])
def test_dropped_events(allocator, limit, events):
    base = there_now()
    program = Program(events)
    with record(limit=limit, names=False) as recording:
        program.run(events)
        now = allocator.allocated()
    check(recording, base, program)
    assert levels(recording.log)[-1] == now
    assert recording.origin.dropped <= max(0, events - limit)
    # no more than two chunks beyond what is asked for
    assert events - recording.origin.dropped <= limit + 2 * CHUNK


def test_each_recording_has_its_ring(allocator):
    base = there_now()
    program = Program(5)
    outer, inner = (record(limit=100, names=False) for _ in range(2))
    outer.start()
    program.run(9000)
    inner.start()
    begun = len(program.changes)
    program.run(7000)
    # while it is on, too
    _ = outer.log
    check(outer, base, program)
    program.run(7000)
    inner.stop()
    check(inner, base, program, begun)
    program.run(3000)
    outer.stop()
    check(outer, base, program)


def test_lines_of_what_came_before(allocator):
    def make():
        return torch.empty(54321, dtype=torch.uint8)

    with record(limit=1, names=False) as recording:
        kept = make()
        fill()
    assert recording.origin.dropped
    (event,) = [event for event in recording.log if event.nbytes == len(kept)]
    assert event.action == "start"
    assert event.stack[0].function.endswith("make")
    assert event.context.op == "aten::empty"


def test_names_of_freed_tensors(allocator):
    layer = torch.nn.Linear(61, 67)
    decoys = []
    with record(limit=1) as recording:
        layer(torch.ones(3, 61)).exp().sum().backward()
        layer.zero_grad()
        # blocks of the gradient's size that are alive at the end
        decoys.extend(torch.empty(67, 61) for _ in range(2))
        fill()
    (peak,) = recording.origin.dropped_peaks.values()
    names = {event.label.name.rpartition("(): ")[2] for event in peak if event.label is not None}
    assert {"layer.weight", "layer.bias"} <= names
    assert not any(name.endswith("grad") for name in names)


def test_gradients_among_the_dropped_keep_their_names(allocator):
    layer = torch.nn.Linear(300, 67)
    with record(limit=1) as recording:
        for _ in range(2):
            layer(torch.ones(3, 300)).exp().sum().backward()
            kept = [torch.empty(1 << 16) for _ in range(20)]  # so the highest instant is here
            del kept
            layer.zero_grad()
        fill()
    (peak,) = recording.origin.dropped_peaks.values()
    gradients = {
        event.label.name.rpartition("(): ")[2]: event.nbytes
        for event in peak
        if event.label is not None and event.label.name.endswith(".grad")
    }
    assert gradients == {"layer.weight.grad": 4 * 300 * 67, "layer.bias.grad": 4 * 67}


def test_marks_are_at_the_rows_that_are_left(allocator):
    program = Program(3)
    with record(limit=1, names=False) as recording:
        recording.mark("early")
        program.run(3 * CHUNK)
        recording.mark("late")
        total = allocator.allocated()
        program.run(10)
    (mark,) = recording.marks
    assert mark.name == "late"
    assert recording.log.dropped_marks == ["early"]
    assert len(recording.log) - mark.row == 10
    assert levels(recording.log)[mark.row - 1] == total


def test_marks_are_no_dropped_events(allocator):
    with record(limit=1, names=False) as recording:
        for _ in range(2 * CHUNK):
            torch.empty(1)
            recording.mark("each")
    events = len(recording.log) - recording.log.starts
    assert recording.origin.dropped
    assert recording.origin.dropped + events == 4 * CHUNK


def test_dropped_events_are_not_from_before(allocator):
    before = torch.empty(1 << 20)
    with record(limit=1, names=False) as recording:
        kept = torch.empty(1 << 21)
        high = torch.empty(1 << 22)  # the highest instant
        del high
        fill()
    peak = recording.peak("cpu")
    assert peak.dropped
    found = [(block.nbytes, block.op, block.age_ns) for block in peak.tensors[:3]]
    assert [each[:2] for each in found] == [
        (4 << 22, "aten::empty"),
        (4 << 21, "aten::empty"),
        (4 << 20, None),
    ]
    (high_age, kept_age, before_age) = (age for *_, age in found)
    assert high_age == 0 < kept_age < peak.time_ns
    assert before_age is None
    # what outlived them is as old at the first event that was kept as it is later
    first, last = recording.at(-1, "cpu"), recording.at(len(recording.log) - 1, "cpu")
    ages = [
        next(block.age_ns for block in moment.tensors if block.nbytes == kept.nbytes)
        for moment in (first, last)
    ]
    assert ages[1] - ages[0] == last.time_ns - first.time_ns > 0
    assert before.nbytes == 4 << 20


@pytest.mark.parametrize("outlives", [False, True])
def test_names_found_in_backward_reach_the_dropped(allocator, outlives):
    layer = torch.nn.Linear(300, 67)
    with record(layer, limit=1) as recording:
        known = [torch.ones(3, 300)]
        address = known[0].data_ptr()
        layer(known[0]).sum().backward()
        high = torch.empty(1 << 20)  # the highest instant
        del high
        if not outlives:
            known.clear()
        fill()
        # the census at the end does not see it
        known.clear()
    (peak,) = recording.origin.dropped_peaks.values()
    for log, found in ((peak, 1), (recording.log, int(outlives))):
        names = [
            event.label.name
            for event in log
            if (event.address, event.nbytes) == (address, 3600) and event.action == "start"
        ]
        assert len(names) == found
        assert all(name.endswith("known[0]") for name in names)


NOT_EATEN = """
import psutil, torch, tensorlens

resident = psutil.Process().memory_info
empty = torch.empty
with tensorlens.record(limit=20_000, names=False) as recording:
    for _ in range(40_000):
        empty(1)
    before = resident().rss
    for _ in range(300_000):
        empty(1)
    print(resident().rss - before)
print(recording.origin.dropped)
"""


def test_the_host_is_not_eaten(allocator):
    pytest.importorskip("psutil")
    # a process of its own: here the kernel may fold the tables of other tests into huge pages
    told = subprocess.run(
        [*warm.python(), "-c", NOT_EATEN], capture_output=True, text=True, check=True
    )
    grown, dropped = map(int, told.stdout.split())
    assert dropped >= 600_000
    # events of 19.2 MB came
    assert grown < 6 << 20
