"""A census waits for the backward pass of another thread before it reads a graph."""

import threading

import torch

import tensorlens
from tensorlens.frameworks.torch.census import quiet


def in_the_engine(monkeypatch, begun):
    """Run what stands for the engine on another thread until the lock is released."""

    def engine():
        begun.set()
        lock.acquire()

    lock = threading.Lock()
    lock.acquire()
    monkeypatch.setattr(quiet, "_ENGINE", engine.__code__)
    thread = threading.Thread(target=engine)
    thread.start()
    return thread, lock


def test_a_pass_that_ends_is_waited_for(monkeypatch):
    begun = threading.Event()
    thread, lock = in_the_engine(monkeypatch, begun)
    begun.wait()
    timer = threading.Timer(0.05, lock.release)
    timer.start()
    with quiet.undisturbed() as can_read:
        assert can_read() and not thread.is_alive()
    timer.join()


def test_a_pass_that_goes_on_leaves_graphs_out(monkeypatch):
    monkeypatch.setattr(quiet, "_LONGEST_WAIT", 0.02)
    begun = threading.Event()
    thread, lock = in_the_engine(monkeypatch, begun)
    begun.wait()
    x = torch.ones(3, requires_grad=True)
    y = (x * 2).exp()
    try:
        snapshot = tensorlens.MemReporter().snapshot()
    finally:
        lock.release()
        thread.join()
    assert any("goes on and on" in note for note in snapshot.notes)
    assert not any(record.module for record in snapshot.tensors)
    del y


def test_inside_of_backward_on_this_thread_graphs_are_read():
    x = torch.ones(3, requires_grad=True)
    y = (x * 2).exp()
    seen = []

    def look(gradient):
        with quiet.undisturbed() as can_read:
            seen.append(can_read())

    y.register_hook(look)
    y.sum().backward()
    assert seen == [True]
