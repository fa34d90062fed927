"""Which containers of Python objects a dataset leads to, and their bytes."""

import mmap
import sys
from types import SimpleNamespace

import numpy as np

from tensorlens.frameworks.queues import object_containers

SMALL = sys.getsizeof("0" * 100)


def texts(count, letters=100):
    return [f"{at:0{letters}}" for at in range(count)]


def only(**attributes):
    found = object_containers(SimpleNamespace(**attributes))
    assert len(found) == 1
    return found[0]


def test_few_objects_are_all_looked_at():
    found = only(samples=texts(400, 4000), size=3)
    assert (found.name, found.kind, found.length) == ("dataset.samples", "list", 400)
    assert (found.elements, found.exact) == ("str", True)
    assert found.nbytes == 400 * sys.getsizeof("0" * 4000)


def test_many_objects_are_sampled():
    found = only(samples=texts(20_000))
    assert (found.length, found.nbytes, found.exact) == (20_000, 20_000 * SMALL, False)


def test_large_object_copies_one_page():
    assert only(samples=texts(400, 10_000)).nbytes == 400 * mmap.PAGESIZE


def test_what_elements_hold_counts_and_shared_objects_once():
    found = only(samples=[(path, at % 7) for at, path in enumerate(texts(20_000))])
    labels = sum(map(sys.getsizeof, range(7)))
    assert found.elements == "tuple"
    assert found.nbytes == 20_000 * (sys.getsizeof((1, 2)) + SMALL) + labels


def test_keys_and_values_of_a_dict_count():
    number = sys.getsizeof(1000)
    found = only(index={path: 1000 + at for at, path in enumerate(texts(20_000))})
    assert (found.name, found.kind, found.elements) == ("dataset.index", "dict", "int")
    assert found.nbytes == 20_000 * (SMALL + number)


def test_name_leads_through_wrappers_and_small_containers():
    inner = SimpleNamespace(splits={"train": [texts(10_000), texts(20_000)]})
    found = object_containers(SimpleNamespace(dataset=inner))
    assert [each.name for each in found] == [
        "dataset.dataset.splits['train'][1]",
        "dataset.dataset.splits['train'][0]",
    ]


def test_array_of_objects_is_a_container_and_of_numbers_is_none():
    found = only(paths=np.array(texts(20_000), dtype=object), table=np.zeros(1_000_000))
    assert (found.kind, found.length, found.elements) == ("object array", 20_000, "str")
    assert found.nbytes == 20_000 * SMALL


def test_one_object_in_many_places_is_one():
    assert object_containers(SimpleNamespace(samples=["0" * 4000] * 100_000)) == ()


def test_code_of_the_dataset_does_not_run():
    class Hostile(list):
        def __len__(self):
            raise AssertionError

        __iter__ = __getitem__ = __getattribute__ = __len__

    found = only(samples=Hostile(texts(20_000)))
    assert (found.kind, found.nbytes) == ("Hostile", 20_000 * SMALL)


def test_circles_and_small_data_are_nothing():
    dataset = SimpleNamespace(rows=texts(200))
    dataset.self = [dataset]
    assert object_containers(dataset) == ()
