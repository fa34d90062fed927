"""What MKL keeps is a term of the CPU's ledger, and in no other."""

import ctypes
import os
import platform
import signal
import threading
from pathlib import Path

import pytest
import torch

import tensorlens
from tensorlens.frameworks.torch import cpu as host

LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


def mkl(name):
    library = ctypes.PyDLL(str(LIBRARY)) if LIBRARY.is_file() else None
    return getattr(library, name, None) or pytest.skip(f"this torch has no {name}")


def terms():
    ledger = tensorlens.MemReporter().snapshot().ledger["cpu"]
    found = {term.key: term.nbytes for term in ledger.parts}
    assert sum(nbytes or 0 for nbytes in found.values()) == ledger.cached
    return found


def multiply():
    left = torch.rand(1024, 1024)
    return left @ left


def test_buffers_that_mkl_keeps_and_gives_back():
    mkl("mkl_serv_mem_stat")
    free = mkl("mkl_serv_free_buffers")
    free()
    assert terms()["kernels"] == 0
    multiply()
    kept = terms()["kernels"]
    if not kept:
        pytest.skip("MKL keeps nothing on this machine")
    free()
    assert terms()["kernels"] == 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap's figure is glibc's")
def test_buffers_that_mkl_keeps_are_taken_out_of_the_other_heap():
    mkl("mkl_serv_mem_stat")
    free = mkl("mkl_serv_free_buffers")
    multiply()
    terms()
    with_buffers = terms()
    free()
    without = terms()
    kept = with_buffers["kernels"]
    if kept < 1 << 20:
        pytest.skip("MKL keeps little on this machine")
    # malloc saw them go: what is left of the heap changes by much less than they were
    assert abs(without["heap"] - with_buffers["heap"]) < kept // 4


def test_a_process_that_was_forked_beside_threads_does_not_wait_for_mkl():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    child = os.fork()
    if not child:
        signal.alarm(100)
        try:
            ledger = tensorlens.MemReporter().snapshot().ledger["cpu"]
            os._exit("forked" not in ledger.missing["kernels"])
        finally:
            os._exit(2)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_torch_without_mkl_says_so(monkeypatch):
    monkeypatch.setattr(host, "_mkl_mem_stat", lambda: None)
    ledger = tensorlens.MemReporter().snapshot().ledger["cpu"]
    assert {term.key: term.nbytes for term in ledger.parts}["kernels"] is None
    assert "MKL" in ledger.missing["kernels"]
    assert "in-kernel caches" in str(tensorlens.MemReporter().snapshot())
