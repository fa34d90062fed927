"""A smaller queue, on facts made by hand."""

import pytest

from tensorlens import Recording
from tensorlens.planning import PrefetchQueue, StepFacts
from tensorlens.planning.suggest import RecordedSteps, api, queue_change
from tensorlens.records import ALLOC, Context, EventLog

PEAK = 1_000_000
ONE = 4096
"""Bytes of a batch."""


def scene_of(*loaders, host=0):
    log = EventLog()
    log.append(ALLOC, "cuda:0" if host else "cpu", 1, PEAK, 0, -1, Context())
    if host:
        log.append(ALLOC, "cpu", 1, host, 0, -1, Context())
    return RecordedSteps(Recording(log), StepFacts(queues=loaders))


def loader(workers, prefetch, memory="shared memory", nbytes=ONE):
    name = f"{workers} x {prefetch}"
    return PrefetchQueue(name, workers * prefetch, workers, nbytes, memory)


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("prefetch", [2, 4, 10])
def test_one_batch_stays_for_each_worker(workers, prefetch):
    (found,) = queue_change(scene_of(loader(workers, prefetch)))
    assert found.before == workers * prefetch * ONE
    assert found.predicted_peak == workers * ONE
    assert found.code.endswith(f"DataLoader(dataset, num_workers={workers}, prefetch_factor=1)")
    assert found.settings == ("prefetch_factor=1",)


def test_queues_of_two_loaders():
    (found,) = queue_change(scene_of(loader(1, 2), loader(2, 3, "pinned memory", 100)))
    assert (found.before, found.predicted_peak) == (2 * ONE + 600, ONE + 200)
    assert found.memory == "pinned memory and shared memory"
    assert found.code.endswith("DataLoader(dataset, prefetch_factor=1)")
    assert "by 1 x 2 and 2 x 3: " in found.what and "what the process allocates" in found.what


def test_smallest_queue_has_no_suggestion():
    assert not [*queue_change(scene_of(loader(4, 1)))]
    # fewer batches than workers
    assert not [*queue_change(scene_of(PrefetchQueue("short", 3, 4, ONE, "shared memory")))]
    assert not [*queue_change(scene_of())]


def told(record):
    return api._suggestions(record, queue_change(record), 3, "")


def test_it_is_told_where_it_is_a_hundredth_of_what_the_host_holds():
    # a hundredth of the peak and 10,300 more is 10,103
    assert told(scene_of(loader(1, 103, nbytes=100)))["queue"].predicted_saving == 10_200
    # and with 10,200 more 10,102
    assert not told(scene_of(loader(1, 102, nbytes=100)))
    # the host holds little beside a device's million
    found = told(scene_of(loader(1, 2), host=1000))
    assert found.device == "cuda:0" and found["queue"].predicted_saving == ONE
    assert "beside the memory of cuda:0" in found["queue"].what
    assert not told(scene_of(loader(1, 2, nbytes=5), host=2000))


def test_another_memory_has_its_own_before():
    text = str(told(scene_of(loader(2, 4, nbytes=100_000))))
    row = next(line for line in text.splitlines() if line.startswith("  1  a smaller queue"))
    assert row.split()[4:] == "585.94 KiB 75.0 % queue 195.31 KiB waiting counted".split()
    assert "781.25 KiB held ahead at most by 2 x 4: shared memory, beside" in text
