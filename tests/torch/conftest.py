"""Each module of tests begins without what cycles of the one before still hold."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def collected():
    gc.collect()
    yield
    gc.collect()
