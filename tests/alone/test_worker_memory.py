"""The memory of a DataLoader's workers, against the kernel's own figures for each mapping."""

import ctypes
import mmap
import multiprocessing
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import tensorlens
from tensorlens import Queue
from tensorlens.frameworks.queues import workers_of
from tensorlens.records import ObjectContainer
from tensorlens.units import format_bytes

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="copied pages are told by Linux alone"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

SAMPLES, LETTERS = 60_000, 300
TEXTS = SAMPLES * sys.getsizeof("0" * LETTERS)
"""20 MB: more than an interpreter copies by itself."""


class Gated(Dataset):
    """Reads all of its samples, and waits at a gate."""

    def __init__(self, samples, start_method):
        context = multiprocessing.get_context(start_method)
        self.samples = samples
        self.arrived, self.gate = context.Semaphore(0), context.Event()

    def __len__(self):
        return 4

    def __getitem__(self, at):
        for _ in self.samples:
            pass
        self.arrived.release()
        self.gate.wait(60)
        return torch.tensor(at)


class Blocked:
    """An iterator over a loader whose two workers wait at the gate."""

    def __init__(self, samples, start_method="fork"):
        self.dataset = Gated(samples, start_method)
        loader = DataLoader(
            self.dataset,
            batch_size=1,
            num_workers=2,
            prefetch_factor=1,
            multiprocessing_context=start_method,
        )
        self.iterator = iter(loader)

    def __enter__(self):
        for _ in range(2):
            assert self.dataset.arrived.acquire(timeout=60)
        # the first look runs code of this process that had not run, and so copies pages
        tensorlens.inputs(self.iterator)
        return self.iterator

    def __exit__(self, *error):
        self.dataset.gate.set()
        assert [int(batch) for batch in self.iterator] == [0, 1, 2, 3]


def texts():
    return [f"{at:0{LETTERS}}" for at in range(SAMPLES)]


def by_hand(pid):
    """Return the sums over a process's mappings, as the kernel writes them."""
    sums = Counter()
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss", "Private_Clean", "Private_Dirty"):
            sums[name] += int(rest.split()[0]) * 1024
    return sums["Rss"], sums["Pss"], sums["Private_Clean"] + sums["Private_Dirty"]


def test_figures_are_the_kernels():
    with Blocked(texts()) as iterator:
        pids = [process.pid for process in iterator._workers]
        before = [by_hand(pid) for pid in pids]
        queue = tensorlens.inputs(iterator)
        after = [by_hand(pid) for pid in pids]
    assert [worker.pid for worker in queue.workers] == pids
    for worker, (rss, pss, least), (_, _, most) in zip(queue.workers, before, after, strict=True):
        assert worker.rss == rss
        # pages that this process writes to are a worker's own from then on
        assert least <= worker.uss <= most
        # files are shared with processes of others, which come and go: PSS changes with them
        assert worker.uss <= worker.pss <= worker.rss
        assert abs(worker.pss - pss) < pss // 10


def test_read_objects_are_copied_and_named():
    with Blocked(texts()) as iterator:
        queue = tensorlens.inputs(iterator)
    assert queue.objects == (
        ObjectContainer("dataset.samples", "list", SAMPLES, "str", TEXTS, False),
    )
    for worker in queue.workers:
        assert worker.copied > TEXTS
        assert worker.allocated < TEXTS
        assert worker.copied + worker.allocated == worker.uss
    named = f"dataset.samples: list of 60,000 str, about {format_bytes(TEXTS)} of objects"
    assert named in " ".join(str(queue).split())
    assert Queue.from_json(queue.to_json()) == queue


def test_read_array_is_not_copied():
    array = np.ones((4, TEXTS), dtype=np.uint8)
    with Blocked(array) as iterator:
        queue = tensorlens.inputs(iterator)
    assert queue.objects == ()
    for worker in queue.workers:
        # all pages of the array but those at its ends, which others may write to
        assert worker.shared > array.nbytes - 2 * mmap.PAGESIZE
        assert worker.copied <= worker.uss == worker.rss - worker.shared


def test_totals_of_workers_add_up():
    with Blocked([]) as iterator:
        queue = tensorlens.inputs(iterator)
    columns = [queue.workers[at].pss for at in range(2)], [each.uss for each in queue.workers]
    sums = [format_bytes(sum(column)) for column in columns]
    row = next(line for line in str(queue).splitlines() if line.split()[:1] == ["all"])
    assert " ".join(row.split()[1:]).startswith(" ".join(sums))


def test_spawned_workers_copy_nothing_on_write():
    with Blocked(["0" * 4000] * 10, "spawn") as iterator:
        queue = tensorlens.inputs(iterator)
    assert queue.start_method == "spawn"
    assert [(each.copied, each.allocated) for each in queue.workers] == [(None, None)] * 2
    assert all(each.uss <= each.pss <= each.rss for each in queue.workers)
    assert queue.objects == ()
    assert "Copied" not in str(queue) and "no fork" in str(queue)


def test_note_when_no_worker_is_alive():
    loader = DataLoader([1, 2], num_workers=2)
    queue = tensorlens.inputs(loader)
    assert (queue.workers, queue.objects) == ((), ())
    assert [note for note in queue.notes if "no worker runs" in note] == list(queue.notes)


@pytest.mark.parametrize("grows", [True, False], ids=["grown", "shrunk"])
def test_copied_pages_of_a_mapping_that_has_changed_in_the_parent(grows):
    """No page of the mapping is shared any more, and its addresses are others in the parent."""
    size = 8 << 20
    region = mmap.mmap(-1, 2 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region[:size] = b"x" * size
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None)

    def protect(access):
        assert libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(size), access) == 0

    def write_and_wait(connection):
        for page in range(0, size, mmap.PAGESIZE):
            region[page] = 1
        connection.send(None)
        connection.recv()

    # a mapping ends where its rights do
    protect(0 if grows else mmap.PROT_READ | mmap.PROT_WRITE)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=write_and_wait, args=(there,))
    process.start()
    try:
        assert here.poll(60)
        protect(mmap.PROT_READ | mmap.PROT_WRITE if grows else 0)
        (worker,) = workers_of([process.pid], "fork")
    finally:
        here.send(None)
        process.join()
    assert worker.copied >= size
