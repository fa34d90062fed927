"""Data loaders of a run without data work in one process, and read what is asked for."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from tests.torch.fake_stage import staged


class Counted(Dataset):
    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        self.reads += 1
        return torch.zeros(3), index % 10, {"list": [1, 2]}, "name"


@pytest.fixture
def stage():
    with staged() as stage:
        yield stage


def test_workers_and_pinned_memory_are_noted(stage):
    loader = DataLoader(
        Counted(),
        4,
        shuffle=True,
        num_workers=3,
        prefetch_factor=2,
        persistent_workers=True,
        pin_memory=True,
        worker_init_fn=lambda number: 1 / 0,
        timeout=5,
    )
    x, y, more, names = next(iter(loader))
    assert x.shape == (4, 3)
    assert y.shape == (4,)
    assert [each.tolist() for each in more["list"]] == [[1] * 4, [2] * 4]
    assert names == ("name",) * 4 or names == ["name"] * 4
    assert [text.partition(":")[0] for text in stage.said] == [
        "a DataLoader of 3 workers loaded without them",
        "a DataLoader pins memory",
    ]


def test_a_data_set_is_not_read_beyond_what_is_asked_for(stage):
    data = Counted()
    iterator = iter(DataLoader(data, 4, shuffle=True))
    for _ in range(3):
        next(iterator)
    assert data.reads == 12


def test_samplers_in_an_estimate(stage):
    data = TensorDataset(torch.zeros(10, 2), torch.arange(10))
    one = DataLoader(data, 4, sampler=WeightedRandomSampler([1.0] * 10, 8))
    assert [y.shape for _, y in one] == [(4,), (4,)]
    other = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, False))
    assert [y.tolist() for _, y in other] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(part) for part in random_split(data, [7, 3])] == [7, 3]
    shuffled = [each for _, y in DataLoader(data, 5, shuffle=True) for each in y.tolist()]
    assert sorted(shuffled) == [*range(10)]
    seeded = DataLoader(data, 5, shuffle=True, generator=torch.Generator().manual_seed(0))
    assert sorted(each for _, y in seeded for each in y.tolist()) == [*range(10)]


def test_data_that_was_there_before():
    x, y = torch.ones(8, 3), torch.arange(8)
    with staged() as stage:
        inputs, labels = next(iter(DataLoader(TensorDataset(x, y), 4)))
        assert type(inputs).__name__ == "FakeTensor"
        assert labels.tolist() == [0, 1, 2, 3]
        # four rows of three floats, four labels of eight bytes
        assert stage.allocated() >= 4 * 3 * 4 + 4 * 8
        assert stage.said == []
    assert x.sum().item() == 24


def test_arrays_of_numpy(stage):
    numpy = pytest.importorskip("numpy")
    data = [(numpy.zeros((2, 3), numpy.float32), number) for number in range(4)]
    x, y = next(iter(DataLoader(data, 2)))
    assert x.shape == (2, 2, 3)
    assert x.dtype == torch.float32
    assert y.tolist() == [0, 1]
