"""Each module of tests begins without what the one before has left on, or in cycles."""

import gc

import pytest

from tensorlens.capture.record import running


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
