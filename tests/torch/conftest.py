"""Each module of tests begins without what the one before has left on, or in cycles."""

import gc
import importlib.util

import pytest

from tensorlens.capture.record import running

for name in ("torch", "torch._dynamo", "pandas"):
    if importlib.util.find_spec(name.partition(".")[0]) is not None:
        importlib.import_module(name)
# what the libraries keep is out of the way of each collection and of each look at the heap
gc.collect()
gc.freeze()


def pytest_collection_modifyitems(items):
    # with the first fake tensor torch imports as much again, at which each later look has to look
    last = ("test_estimate", "test_fake"), "test_z"
    items.sort(key=lambda item: [item.path.name.startswith(each) for each in reversed(last)])


@pytest.fixture(autouse=True, scope="module")
def nothing_left():
    yield
    for recording in running():
        recording.stop()
    gc.collect()
