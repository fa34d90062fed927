"""Each module of tests begins without what the one before has left on, or in cycles."""

import contextvars
import ctypes
import gc
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from tensorlens.capture.record import running

HERE = Path(__file__).parent
LIBRARIES = ("torch", "torch._dynamo", "pandas")


def set_libraries_aside():
    """Hide what libraries keep from the collector, and so from each look at the heap."""
    for name in LIBRARIES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    gc.collect()
    # a program may put its own in here
    shown = [vars(sys), *(each for each in gc.get_objects() if type(each) is contextvars.Context)]
    gc.freeze()
    for each in map(ctypes.py_object, shown):
        ctypes.pythonapi.PyObject_GC_UnTrack(each)
        ctypes.pythonapi.PyObject_GC_Track(each)


def runs_without_libraries(item):
    """Whether a test does as well with what is set aside; these come first."""
    return item.path.parent == HERE and item.path.name.startswith("test_leak_")


# before any module of tests is there: its globals are to be seen
set_libraries_aside()


def pytest_collection_modifyitems(items):
    # with the first fake tensor torch imports as much again, at which each later look has to look
    last = ("test_estimate", "test_fake"), "test_z"
    items.sort(
        key=lambda item: [
            *(item.path.name.startswith(each) for each in reversed(last)),
            not runs_without_libraries(item),
        ]
    )


@pytest.fixture(autouse=True, scope="module")
def nothing_left():
    yield
    for recording in running():
        recording.stop()
    gc.collect()
