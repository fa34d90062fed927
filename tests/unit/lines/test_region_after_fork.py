"""A measured region in a forked process."""

import os
import signal
import threading

import pytest

from tensorlens.lines import MeasuredRegion, engine


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_region_reads_in_a_child_though_another_thread_held_the_lock():
    region = MeasuredRegion()
    region.begin()
    is_held, is_done = threading.Event(), threading.Event()

    def hold():
        with engine.lock:
            is_held.set()
            is_done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)  # where it hangs, the signal ends it
        region.read()
        os._exit(0)
    is_done.set()
    holder.join()
    region.end()
    assert os.waitpid(child, 0)[1] == 0
