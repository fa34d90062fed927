"""What a DataLoader holds ahead of the step, against what its dataset counts as made."""

import gc
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import tensorlens
from tensorlens.frameworks.queues import batch_bytes
from tensorlens.frameworks.torch import data_loader as queues

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux", reason="what is in a queue between processes is told by Linux"
    ),
    # more workers than the machine has processors
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

BATCH = 4
COLUMNS = 100
BYTES = BATCH * COLUMNS * 4 + BATCH * 8
"""A batch of float32 rows, and an int64 each."""
LONG = 40
"""Batches that a loader has: more than 4 workers with 8 each hold."""


class Counting(Dataset):
    """Tells how many samples were made, in whichever process."""

    def __init__(self, batches=LONG):
        self.made = multiprocessing.Value("i", 0)
        self.samples = batches * BATCH

    def __len__(self):
        return self.samples

    def __getitem__(self, at):
        row = torch.full((COLUMNS,), float(at))
        with self.made.get_lock():
            self.made.value += 1
        return row, at


class Counted(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        for at in range(self.samples):
            yield torch.full((COLUMNS,), float(at)), at


def settled(look, batches, seconds=20):
    """Return what is held once ``batches`` are, or after so many seconds what is then.

    Bytes follow a moment after their number.
    """
    end, before = time.monotonic() + seconds, None
    while True:
        found = look()
        is_moving = any(note.startswith("workers went on") for note in found.notes)
        is_there = found.batches == batches and not found.in_work and not is_moving
        if (is_there and before == found.nbytes) or time.monotonic() > end:
            return found
        before = found.nbytes if is_there else None
        time.sleep(0.05)


def loader_of(dataset, **options):
    return DataLoader(dataset, batch_size=BATCH, **options)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 8), (4, 2)])
def test_queue_holds_produced_minus_consumed(workers, prefetch):
    dataset = Counting()
    loader = loader_of(dataset, num_workers=workers, prefetch_factor=prefetch)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    found = settled(lambda: tensorlens.inputs(loader), workers * prefetch)
    assert found.batches == dataset.made.value / BATCH - 3
    assert found.batches == found.max_batches == workers * prefetch
    assert found.factor == workers * prefetch + 1
    assert found.nbytes == found.max_nbytes == workers * prefetch * BYTES
    assert (found.batch_nbytes, found.waiting, found.in_work) == (BYTES, 0, 0)
    assert not found.missing and not found.notes
    # nothing was taken, and all come in their order
    firsts = [rows[0, 0].item() for rows, _ in iterator]
    assert firsts == [float(at * BATCH) for at in range(3, LONG)]
    assert tensorlens.inputs(iterator).batches == 0


@pytest.mark.parametrize("prefetch", [None])
def test_no_queue_without_workers(prefetch):
    dataset = Counting()
    loader = loader_of(dataset, num_workers=0, prefetch_factor=prefetch)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    found = tensorlens.inputs(iterator)
    assert dataset.made.value / BATCH - 3 == 0
    assert (found.batches, found.nbytes, found.max_batches, found.max_nbytes) == (0, 0, 0, 0)
    assert found.batch_nbytes is None and "batch_nbytes" in found.missing
    assert tensorlens.inputs(loader, batch=next(iterator)).batch_nbytes == BYTES


def test_a_loader_that_nobody_iterates_over_holds_nothing():
    loader = loader_of(Counting(), num_workers=2, prefetch_factor=3)
    found = tensorlens.inputs(loader)
    assert (found.batches, found.nbytes, found.max_batches, found.max_nbytes) == (0, 0, 6, None)
    assert "batch=" in found.missing["max_nbytes"]
    example = [torch.zeros(BATCH, COLUMNS), torch.zeros(BATCH, dtype=torch.int64)]
    assert tensorlens.inputs(loader, batch=example).max_nbytes == 6 * BYTES


def test_towards_the_end_fewer_are_held():
    loader = loader_of(Counting(batches=6), num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    found = settled(lambda: tensorlens.inputs(loader), 2)
    assert (found.batches, found.nbytes, found.max_batches) == (2, 2 * BYTES, 4)
    assert len(list(iterator)) == 2
    found = tensorlens.inputs(iterator)
    assert (found.batches, found.max_batches, found.workers) == (0, 0, ())


def test_iterable_dataset_end_marks_are_noted():
    # each of two workers goes through all 10 samples: batches of 4, 4 and 2
    loader = loader_of(Counted(10), num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    next(iterator)
    found = tensorlens.inputs(loader)
    assert "of an iterable dataset, results may be marks of its end" in found.notes
    assert len(list(iterator)) == 5


class Slow(Dataset):
    """The first sample waits until it may come: all else comes before it."""

    def __init__(self):
        self.may_come = multiprocessing.Event()

    def __len__(self):
        return 100

    def __getitem__(self, at):
        if at == 0:
            self.may_come.wait(30)
        return {"row": torch.full((10,), float(at)), "text": "ab"}


def test_batches_that_come_too_early_wait_in_this_process():
    dataset = Slow()
    loader = DataLoader(dataset, batch_size=2, num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    got = []
    thread = threading.Thread(target=lambda: got.append(next(iterator)), daemon=True)
    thread.start()
    # another thread waits in next() all the while
    found = settled(lambda: tensorlens.inputs(loader), 2, seconds=0.01)
    end = time.monotonic() + 20
    while found.parts[-1].elements != 2 and time.monotonic() < end:
        found = tensorlens.inputs(loader)
    assert (found.parts[-1].name, found.parts[-1].elements) == ("out of order", 2)
    assert (found.batches, found.in_work, found.waiting) == (2, 1, 1)
    # two rows of 10 float32 each, and two texts of two letters, one object in this process
    assert 2 * 80 <= found.parts[-1].nbytes <= 2 * 84
    dataset.may_come.set()
    thread.join(30)
    assert got[0]["row"][0, 0] == 0.0


def as_numpy(samples):
    return np.stack([row.numpy() for row, _ in samples])


def test_batches_that_are_no_tensors_are_sized_by_one_that_is_passed():
    loader = DataLoader(
        Counting(), batch_size=16, num_workers=1, prefetch_factor=2, collate_fn=as_numpy
    )
    iterator = iter(loader)
    batch = next(iterator)
    found = settled(lambda: tensorlens.inputs(loader), 2)
    assert (found.batch_nbytes, found.nbytes) == (None, None)
    assert "pass one" in found.missing["nbytes"]
    found = tensorlens.inputs(loader, batch=batch)
    assert (found.batch_nbytes, found.nbytes) == (16 * COLUMNS * 4, 2 * 16 * COLUMNS * 4)


def test_single_samples_and_persistent_workers():
    dataset = Counting()
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, prefetch_factor=2, persistent_workers=True
    )
    for epoch in range(2):
        iterator = iter(loader)
        next(iterator)
        found = settled(lambda: tensorlens.inputs(loader), 4)
        # a sample is a tensor and a number that travels in the message
        assert (found.batches, found.nbytes) == (4, 4 * COLUMNS * 4), epoch
        for _ in iterator:
            pass
    found = tensorlens.inputs(loader)
    assert (found.batches, found.nbytes) == (0, 0)
    assert [worker.state for worker in found.workers] == ["running", "running"]


def test_memory_of_workers():
    dataset = Counting()
    dataset.table = np.ones(4_000_000, dtype=np.float64)
    loader = loader_of(dataset, num_workers=2, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    found = tensorlens.inputs(loader)
    assert found.start_method == "fork"
    assert len(found.workers) == 2
    for worker in found.workers:
        assert worker.pid in [process.pid for process in iterator._workers]
        # the 32 MB of the table are shared, and nobody has written to them
        assert worker.shared > dataset.table.nbytes
        assert worker.uss < worker.rss - dataset.table.nbytes
        assert worker.uss <= worker.pss <= worker.rss


class Writing(Counting):
    """Writes to all of its table in the worker, which so gets a copy of each page."""

    def __init__(self):
        super().__init__()
        self.table = np.ones(4_000_000, dtype=np.float64)

    def __getitem__(self, at):
        self.table += 1
        return super().__getitem__(at)


def test_pages_that_a_worker_writes_to_become_its_own():
    dataset = Writing()
    loader = DataLoader(dataset, batch_size=1, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    found = settled(lambda: tensorlens.inputs(loader), 2)
    assert found.workers[0].uss > dataset.table.nbytes
    assert next(iterator) is not None


def test_spawned_workers_are_listed():
    loader = DataLoader(Spawned(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    iterator = iter(loader)
    next(iterator)
    found = settled(lambda: tensorlens.inputs(loader), 2)
    assert (found.start_method, found.batches, found.nbytes) == ("spawn", 2, 2 * 2 * 40)


class Spawned(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, at):
        return torch.full((10,), float(at))


def test_dead_worker_is_noted():
    loader = loader_of(Counting(), num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    next(iterator)
    settled(lambda: tensorlens.inputs(loader), 4)
    victim = iterator._workers[0]
    before = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.kill(victim.pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            found = tensorlens.inputs(loader)
            if found.workers[0].state == "dead":
                break
        assert [worker.state for worker in found.workers] == ["dead", "running"]
        assert any("died" in note for note in found.notes)
        # nobody has waited for it: that is the loader's
        assert victim._popen.returncode is None
    finally:
        # with torch's handler the end of the other worker would be this one's error
        iterator._shutdown_workers()
        signal.signal(signal.SIGCHLD, before)


class Hostile(Dataset):
    def __init__(self):
        self.rows = torch.zeros(40, 10)

    def __len__(self):
        raise RuntimeError("no length")

    def __getattr__(self, name):
        if name == "__getitems__":
            # torch's worker asks for that
            raise AttributeError(name)
        raise ValueError(f"asked for {name}")

    def __getitem__(self, at):
        return self.rows[at]


def test_dataset_code_never_runs():
    loader = DataLoader(Hostile(), batch_size=2, num_workers=1, sampler=range(20))
    iterator = iter(loader)
    next(iterator)
    found = settled(lambda: tensorlens.inputs(loader), 2)
    assert (found.batches, found.nbytes) == (2, 2 * 80)
    assert len(list(iterator)) == 9


class Lying(DataLoader):
    """A subclass whose attributes are not what they are called."""

    def __getattribute__(self, name):
        if name == "num_workers" and sys._getframe(1).f_globals["__name__"].startswith("tensorl"):
            raise AssertionError("asked")
        return super().__getattribute__(name)


class Wrapper:
    """Like those of Accelerate and others: a loader that holds one."""

    def __init__(self, dataloader):
        self.dataloader = dataloader

    def __iter__(self):
        for batch in self.dataloader:
            yield batch, 1

    def __len__(self):
        raise RuntimeError("no length")


def test_loader_subclass_is_read():
    loader = Lying(Counting(), batch_size=BATCH, num_workers=2, prefetch_factor=2)
    wrapper = Wrapper(Wrapper(loader))
    loop = enumerate(wrapper)
    next(loop)
    for given in (loader, wrapper, loop, iter(loop), zip(loop, range(3), strict=False)):
        found = settled(lambda given=given: tensorlens.inputs(given), 4)
        assert (found.batches, found.nbytes, found.max_batches) == (4, 4 * BYTES, 4)
    assert "inside enumerate" in tensorlens.inputs(loop).name


def test_accelerate_holds_one_batch_more_inside_a_loop_too():
    data_loader = pytest.importorskip("accelerate.data_loader")
    loader = loader_of(Counting(), num_workers=1, prefetch_factor=2)
    prepared = data_loader.prepare_data_loader(loader, put_on_device=False)
    loop = enumerate(prepared)
    assert tensorlens.inputs(loop).max_batches == 3
    next(loop)
    for given in (prepared, loop, zip(loop, range(3), strict=False)):
        assert tensorlens.inputs(given).max_batches == 3
    plain = zip(enumerate(loader), prepared, strict=False)
    assert tensorlens.inputs(plain).max_batches == 2


def test_two_loops_over_one_loader_add_up():
    loader = loader_of(Counting(), num_workers=1, prefetch_factor=2)
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    found = settled(lambda: tensorlens.inputs(loader), 4)
    assert (found.batches, found.nbytes, found.max_batches) == (4, 4 * BYTES, 4)
    assert len(found.workers) == 2
    assert tensorlens.inputs(second).max_batches == 2


def test_inputs_keeps_no_batch_alive():
    dataset = Counting()
    loader = loader_of(dataset, num_workers=1, prefetch_factor=2)
    iterator = iter(loader)
    batch = next(iterator)
    found = tensorlens.inputs(loader, batch=batch)
    known = [weakref.ref(each) for each in (batch[0], dataset, loader, iterator)]
    del batch, dataset, loader, iterator
    gc.collect()
    assert [each() for each in known] == [None] * 4
    assert found.max_batches == 2


def test_a_suspended_loop_does_not_keep_its_batch():
    def loop():
        for batch in [torch.zeros(3), torch.ones(3)]:  # noqa: UP028
            yield batch

    running = loop()
    first = weakref.ref(next(running))
    tensorlens.inputs(running)
    next(running)
    gc.collect()
    assert first() is not None  # the list is still there
    running.close()
    gc.collect()
    assert first() is None


def test_the_pin_thread_has_a_part():
    """Without a GPU there is no such thread: its attributes stand for it."""
    waiting = queue.Queue()
    for at in range(2):
        waiting.put((at, torch.zeros(25)))
    results = multiprocessing.Queue()
    content = {
        "_task_info": {0: (0,), 1: (0,), 2: (0,)},
        "_workers": [],
        "_workers_status": [True],
        "_index_queues": [multiprocessing.Queue()],
        "_worker_result_queue": results,
        "_data_queue": waiting,
        "_pin_memory_thread": threading.current_thread(),
        "_num_workers": 1,
        "_prefetch_factor": 3,
        "_dataset_kind": 0,
    }
    found = queues.look_at_iterator(types.SimpleNamespace(**content))
    assert [(part.name, part.elements, part.nbytes) for part in found.parts] == [
        ("results", 0, 0),
        ("pinned", 2, 200),
        ("out of order", 0, 0),
    ]
    assert (found.batches, found.nbytes, found.batch_nbytes, found.in_work) == (2, 200, 100, 1)
    assert waiting.qsize() == 2


def queued(ledger):
    return [(term.of, term.nbytes) for term in ledger.parts if term.key == "queued"]


def test_ledger_term_queued_input():
    reporter = tensorlens.MemReporter()
    before = reporter.snapshot().ledger["cpu"]
    # of two workers one may be ahead, and its batches are then received out of order
    loader = loader_of(Counting(), num_workers=1, prefetch_factor=4)
    iterator = iter(loader)
    next(iterator)
    settled(lambda: tensorlens.inputs(loader), 4)
    snapshot = reporter.snapshot()
    ledger = snapshot.ledger["cpu"]
    assert queued(before) == []
    # shared memory that this process has not mapped
    assert queued(ledger) == [("other", 4 * BYTES)]
    assert ledger.driver_used == ledger.reserved + ledger.other
    assert ledger.reserved == ledger.allocated + ledger.cached
    assert tensorlens.Snapshot.from_json(snapshot.to_json()).ledger["cpu"] == ledger
    assert "queued input" in str(snapshot)
    assert len(list(iterator)) == LONG - 1
    assert queued(reporter.snapshot().ledger["cpu"]) == []


def test_a_python_queue_is_looked_into():
    waiting = queue.Queue(maxsize=3)
    waiting.put(torch.zeros(10))
    waiting.put((torch.zeros(10), [torch.zeros(5)]))
    found = tensorlens.inputs(waiting)
    assert (found.batches, found.nbytes, found.max_batches, found.max_nbytes) == (2, 100, 3, 180)
    assert waiting.qsize() == 2


def test_object_without_queue_is_refused():
    for given in (3, "text", object(), DataLoader, None):
        with pytest.raises(tensorlens.TensorlensError):
            tensorlens.inputs(given)


def test_sparse_tensors_count_with_their_indices():
    # 1000 entries of two int64 and 16 float32, at the diagonal
    diagonal = torch.arange(1000).repeat(2, 1)
    hybrid = torch.sparse_coo_tensor(diagonal, torch.ones(1000, 16), (1000, 1000, 16))
    assert batch_bytes(hybrid) == 1000 * 16 * 4 + 2 * 1000 * 8


def test_numbers_of_a_batch_do_not_count_as_items_that_are_looked_at():
    assert batch_bytes((np.zeros(1000), list(range(1000, 101_001)))) == 8000
    assert batch_bytes((np.zeros(1000), [None, True, 0.5, 1j] * 50_000)) == 8000


class Uncomparable(type):
    def __eq__(cls, other):
        raise TypeError

    __hash__ = None


def test_batch_class_code_never_runs():
    odd = Uncomparable("Odd", (), {})()
    odd.rows = np.zeros(1000)
    assert batch_bytes((odd, np.zeros(10))) == 8080
