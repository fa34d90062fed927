"""What every test can rely on."""

import signal


def pytest_configure() -> None:
    # a shell starts what it puts in the background with Ctrl-C ignored, and children inherit that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
