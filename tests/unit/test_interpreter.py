"""A forked process finds locks free that other threads of its parent hold."""

import os
import threading

import pytest

from tensorlens.interpreter import reentrant_lock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def in_child(act):
    """Return whether ``act`` in a forked process gave true."""
    child = os.fork()
    if not child:
        code = 2
        try:
            code = 0 if act() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    lock = reentrant_lock()
    held, done = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert not lock.acquire(blocking=False)
        assert in_child(lambda: lock.acquire(blocking=False))
        # the parent's is still held
        assert not lock.acquire(blocking=False)
    finally:
        done.set()
        thread.join()


def test_who_forks_goes_on_holding_its_lock():
    lock = reentrant_lock()

    def leave():
        lock.release()
        with pytest.raises(RuntimeError):
            lock.release()
        return True

    with lock:
        assert in_child(leave)
