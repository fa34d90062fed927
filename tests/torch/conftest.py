"""Each module of tests begins without what the one before has left on, or in cycles."""

import gc
import importlib.util

import pytest

from tensorlens.recording import running
from tests.aside import set_all_aside_but, set_libraries_aside, take_libraries_back

WITH_LIBRARIES = ("test_estimate", "test_fake", "test_frozen")
"""The modules of tests that are to see them, with what imports most in the end."""

# before any module of tests is there: its globals are to be seen
if importlib.util.find_spec("torch") is not None:
    import torch

    # some test would be the first to compile, with all that torch imports and keeps for it
    torch.compile(torch.sin, backend="aot_eager")(torch.zeros(1))
    torch._dynamo.reset()
    set_libraries_aside("pandas")


def place(item):
    """Return when a test runs: those that see libraries come after those that need not."""
    name = item.path.name
    return next((i for i, each in enumerate(WITH_LIBRARIES, 1) if name.startswith(each)), 0)


def pytest_collection_modifyitems(items):
    # with the first fake tensor torch imports as much again, at which each later look has to look
    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if place(item):
        take_libraries_back()


@pytest.fixture(autouse=True, scope="module")
def nothing_left(request):
    if not place(request.node):
        set_all_aside_but(request.module, (torch.Tensor, torch.UntypedStorage))
    yield
    for recording in running():
        recording.stop()
    gc.collect()
