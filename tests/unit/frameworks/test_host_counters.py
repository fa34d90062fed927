import ctypes
import mmap
import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tensorlens.errors import UsageError
from tensorlens.frameworks import UNKNOWN
from tensorlens.frameworks.host import (
    HeapCounter,
    ResidentCounter,
    forced_source,
    process_counter,
    process_memory,
)

LINUX = sys.platform == "linux"
MIB = 1 << 20
PAGE = os.sysconf("SC_PAGESIZE")


def heap():
    try:
        return HeapCounter()
    except OSError as error:
        pytest.skip(str(error))


def test_no_source_is_forced_by_default(monkeypatch):
    monkeypatch.delenv("TENSORLENS_COUNTER", raising=False)
    assert forced_source() is None
    monkeypatch.setenv("TENSORLENS_COUNTER", " ")
    assert forced_source() is None


def test_sources_are_forced_by_name(monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "Heap")
    assert forced_source() == "heap"
    monkeypatch.setenv("TENSORLENS_COUNTER", "rss")
    with pytest.raises(UsageError, match=r"^TENSORLENS_COUNTER=rss: choose one of native, heap"):
        forced_source()


def test_the_heap_is_chosen_before_the_resident_set(monkeypatch):
    monkeypatch.delenv("TENSORLENS_COUNTER", raising=False)
    heap()
    assert isinstance(process_counter(), HeapCounter)
    monkeypatch.setenv("TENSORLENS_COUNTER", "resident")
    assert isinstance(process_counter(), ResidentCounter)


def test_without_mallinfo2(monkeypatch):
    class Library:
        def __init__(self, name):
            pass

    monkeypatch.delenv("TENSORLENS_COUNTER", raising=False)
    monkeypatch.setattr(process_memory.ctypes, "PyDLL", Library)
    assert isinstance(process_counter(), ResidentCounter)
    monkeypatch.setenv("TENSORLENS_COUNTER", "heap")
    with pytest.raises(UsageError, match=r"^TENSORLENS_COUNTER=heap: this C library has no"):
        process_counter()


@pytest.mark.parametrize("make", [heap, ResidentCounter])
def test_every_figure_that_cannot_be_had_has_its_reason(make):
    counter = make()
    assert counter.device == "cpu"
    assert counter.source
    assert counter.precision
    figures = dict(zip(("allocated", "peak", "reserved"), counter.reader()(), strict=True))
    assert {name for name, value in figures.items() if value == UNKNOWN} == set(counter.missing)
    assert all(value > 0 for value in figures.values() if value != UNKNOWN)


def test_the_heap_sees_a_block_of_any_thread():
    read = heap().reader()
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    blocks = []
    start = read()[0]
    # a thread has an arena of its own; 1000 blocks of 10008 bytes take 10016 each
    thread = threading.Thread(
        target=lambda: blocks.extend(library.malloc(10_008) for _ in range(1000))
    )
    thread.start()
    thread.join()
    assert abs(read()[0] - start - 10_016_000) < 200_000
    # above malloc's largest threshold a block is mapped: its 16 byte header, and whole pages
    before = read()[0]
    block = library.malloc(64 * MIB)
    grown = read()[0] - before
    library.free(block)
    for item in blocks:
        library.free(item)
    assert abs(grown - (64 * MIB + PAGE)) < 100_000


@pytest.mark.skipif(not LINUX, reason="pages as Linux counts them")
def test_the_resident_set():
    read = ResidentCounter().reader()
    start = read()[0]
    block = mmap.mmap(-1, 32 * MIB)
    for offset in range(0, 32 * MIB, PAGE):
        block[offset] = 1
    now, _, reserved = read()
    assert abs(now - start - 32 * MIB) < 4 * MIB
    assert now == reserved
    block.close()
    assert now - read()[0] > 28 * MIB


def test_without_proc_the_resident_set_is_psutils(monkeypatch):
    def refuse(*arguments, **options):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(process_memory, "Path", refuse)
    now = ResidentCounter().reader()()[0]
    monkeypatch.undo()
    assert abs(now - psutil.Process().memory_info().rss) < 4 * MIB


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_a_forked_child_reads_its_own():
    reads = [ResidentCounter().reader()]
    child = os.fork()
    if child == 0:
        # a child that hangs is ended, and seen
        signal.alarm(100)
        own = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        block = mmap.mmap(-1, 32 * MIB)
        for offset in range(0, 32 * MIB, PAGE):
            block[offset] = 1
        os._exit(0 if all(abs(read()[0] - own - 32 * MIB) < 4 * MIB for read in reads) else 1)
    assert os.waitpid(child, 0)[1] == 0
