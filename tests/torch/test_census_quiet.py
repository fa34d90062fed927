"""A census waits for the backward pass of another thread before it reads a graph."""

import os
import sys
import threading
import time

import pytest
import torch

import tensorlens
from tensorlens.frameworks.torch import undisturbed
from tensorlens.interpreter import start_thread


def in_the_engine(monkeypatch):
    """Run what stands for the engine on another thread until the lock is released.

    Returns the thread, the lock, and a list that has an element once the engine goes on.
    """
    went_on = []

    def engine():
        lock.acquire()
        went_on.append(True)

    lock = threading.Lock()
    lock.acquire()
    monkeypatch.setattr(undisturbed, "_ENGINE", engine.__code__)
    thread = threading.Thread(target=engine)
    thread.start()
    # no call of its own comes between, where it would not be seen to be in the engine
    while sys._current_frames()[thread.ident].f_code is not engine.__code__:
        time.sleep(0.001)
    return thread, lock, went_on


def test_a_pass_that_ends_is_waited_for(monkeypatch):
    monkeypatch.setattr(undisturbed, "_MAX_WAIT", 60)
    thread, lock, went_on = in_the_engine(monkeypatch)
    timer = threading.Timer(0.05, lock.release)
    timer.start()
    with undisturbed.undisturbed() as can_read:
        assert can_read() and went_on
    timer.join()
    thread.join()


def test_a_pass_that_goes_on_leaves_graphs_out(monkeypatch):
    monkeypatch.setattr(undisturbed, "_MAX_WAIT", 0.02)
    thread, lock, _ = in_the_engine(monkeypatch)
    x = torch.ones(3, requires_grad=True)
    y = (x * 2).exp()
    try:
        snapshot = tensorlens.MemReporter().snapshot()
    finally:
        lock.release()
        thread.join()
    assert any("in a long backward pass" in note for note in snapshot.notes)
    assert not any(record.module for record in snapshot.tensors)
    del y


def test_inside_of_backward_on_this_thread_graphs_are_read():
    x = torch.ones(3, requires_grad=True)
    y = (x * 2).exp()
    seen = []

    def look(gradient):
        with undisturbed.undisturbed() as can_read:
            seen.append(can_read())

    y.register_hook(look)
    y.sum().backward()
    assert seen == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("was_inside", [True, False])
def test_no_node_is_read_where_a_thread_was_inside_the_engine_at_the_fork(monkeypatch, was_inside):
    with monkeypatch.context() as patch:
        patch.setattr(undisturbed, "is_engine_busy", lambda: was_inside)
        child = os.fork()
    if not child:
        code = 2
        try:
            code = int(undisturbed.NodeAccess()())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == int(not was_inside)
    assert undisturbed.NodeAccess()()


def test_own_thread_reads_no_node_during_a_pass(monkeypatch):
    thread, lock, _ = in_the_engine(monkeypatch)
    allowed, has_ended = [], threading.Event()

    def look():
        allowed.append(undisturbed.NodeAccess()())
        has_ended.set()

    before = threading.enumerate()
    start_thread(look)
    assert has_ended.wait(60)
    assert threading.enumerate() == before
    lock.release()
    thread.join()
    assert allowed == [False]
