"""What loaders hold ahead of a step: asked for, measured, and set from outside."""

import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tensorlens.planning import PrefetchQueue
from tensorlens.planning.torch import LoaderWatch, PrefetchFactor, Stage
from tensorlens.planning.trials import CannotApply, held_ahead

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="what is in a queue between processes is told by Linux"
)

BATCH, COLUMNS = 4, 100
BYTES = BATCH * COLUMNS * 4 + BATCH * 8
"""A batch of float32 rows, and an int64 each."""


class Rows(Dataset):
    def __init__(self, batches=20):
        self.samples = batches * BATCH

    def __len__(self):
        return self.samples

    def __getitem__(self, at):
        return torch.full((COLUMNS,), float(at)), at


def loader_of(workers, prefetch, dataset=None, **options):
    return DataLoader(
        dataset or Rows(), BATCH, num_workers=workers, prefetch_factor=prefetch, **options
    )


def used(loader, batches=1):
    """Return an iterator of which some batches were used, and what was seen to be asked for."""
    watch = LoaderWatch()
    with watch.on():
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
    return iterator, watch.most


@linux
@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 4), (2, 2), (2, 3)])
def test_requested_batches_are_held(workers, prefetch):
    iterator, seen = used(loader_of(workers, prefetch), batches=2)
    name = f"DataLoader, {workers} {'workers' if workers > 1 else 'worker'} x prefetch {prefetch}"
    assert seen == (PrefetchQueue(name, workers * prefetch, workers, BYTES, "shared memory"),)
    assert held_ahead() == (workers * prefetch * BYTES, "")
    del iterator


def test_no_batches_ahead_without_workers():
    iterator, seen = used(loader_of(0, None))
    assert seen == () and held_ahead() == (None, "")
    del iterator


def test_loaders_that_work_at_the_same_time_add_up():
    watch = LoaderWatch()
    with watch.on():
        first = iter(loader_of(1, 2))
        next(first)
        assert [each.batches for each in watch.most] == [2]
        second = iter(loader_of(1, 3))
        next(second)
        assert [each.batches for each in watch.most] == [2, 3]
        # one after the other they do not
        del first, second
        third = iter(loader_of(1, 4))
        next(third)
        assert [each.batches for each in watch.most] == [2, 3]


def as_numpy(samples):
    return np.stack([row.numpy() for row, _ in samples])


def test_where_there_is_a_thread_that_pins_they_wait_in_pinned_memory():
    """Without a GPU there is no such thread: its attribute stands for it."""
    watch, iterator = LoaderWatch(), iter(loader_of(1, 2))
    iterator._pin_memory_thread = None
    with watch.on():
        next(iterator)
    del iterator._pin_memory_thread
    assert [each.memory for each in watch.most] == ["pinned memory"]


def option(value, estimated=False):
    return PrefetchFactor(value, Stage(estimated=estimated, batch=None))


def test_the_option_sets_it_for_the_iterator_alone():
    made, loader = option(3), loader_of(1, 2)
    with made.building():
        iterator = iter(loader)
    assert (iterator._prefetch_factor, loader.prefetch_factor) == (3, 2)
    made.finished()
    with made.stepping():
        pass
    assert iter(loader)._prefetch_factor == 2


def test_option_without_effect_is_noted():
    made = option(1)
    with pytest.raises(CannotApply, match="no DataLoader is iterated over"):
        made.finished()
    with made.stepping():
        next(iter(loader_of(0, None)))
    with pytest.raises(CannotApply, match="no DataLoader has workers"):
        made.finished()
    with pytest.raises(CannotApply, match=r"not estimated: .* inputs\.plan\(\)"):
        option(1, estimated=True)
