"""What every test can rely on."""

import os
import signal
from pathlib import Path

import pytest

from tests.aside import take_libraries_back

HERE = Path(__file__).parent
WITHOUT_LIBRARIES = [HERE / room for room in ("alone", "cli", "tensorflow", "torch", "trainers")]

# threads of a kernel that wait for the next one by spinning take the cores from other tests
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_configure() -> None:
    # whoever runs the tests in parallel sets it for workers, which reports would follow
    os.environ.pop("COLUMNS", None)
    # a shell starts what it puts in the background with Ctrl-C ignored, and children inherit that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # what is set aside is back for all but those that do as well without
    if item.path.parent not in WITHOUT_LIBRARIES:
        take_libraries_back()
