"""What every test can rely on."""

import gc
import signal
from pathlib import Path

import pytest

TORCH = Path(__file__).parent / "torch"


def pytest_configure() -> None:
    # a shell starts what it puts in the background with Ctrl-C ignored, and children inherit that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # what tests/torch sets aside is back for all but those that do as well without
    if not (item.path.parent == TORCH and item.path.name.startswith("test_leak_")):
        gc.unfreeze()
