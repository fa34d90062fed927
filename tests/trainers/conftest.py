"""What trainers import is not looked at: each look at the heap is as long as it."""

from tests.aside import set_libraries_aside


def pytest_collection_finish():
    set_libraries_aside()
