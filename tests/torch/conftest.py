"""Each module of tests begins without what the one before has left on, or in cycles."""

import gc

import pytest

from tensorlens.capture.record import running


@pytest.fixture(autouse=True, scope="module")
def nothing_left():
    yield
    for recording in running():
        recording.stop()
    gc.collect()
