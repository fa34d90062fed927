"""What the native log keeps of its past once the program has taken all memory there is."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensorlens.frameworks.host.allocator_log import Columns, LogRows
from tensorlens.frameworks.host.recorder import gaps
from tensorlens.native.build import SHARED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits address space")

CHUNK = 4096
"""Events that make way together; with no memory, the log has room for as many."""

ROOM = 2 * CHUNK * 15 // 16
"""Blocks that a list has room for: those of a chunk fill no more than three quarters of its 8,192
places, and where there is no memory for a larger list, fifteen sixteenths are filled."""


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The program that fills a log without memory."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("log") / "log"
    source = Path(__file__).with_name("log_without_memory.cpp")
    subprocess.run([compiler, "-std=c++17", "-I", SHARED, source, "-o", program], check=True)

    def fill(*arguments):
        done = subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=True
        )
        return tuple(map(int, done.stdout.split()))

    return fill


def test_all_that_was_there_is_listed(log):
    # 201 + 60,000 events, of which 14 whole chunks made way; the last of them ended between an
    # allocation and its free
    dropped = 14 * CHUNK
    assert (dropped - 201) % 2 == 1
    at_the_first = (308 + 200 * 64 + 64, 202, 308 + 200 * 64 + 64)
    assert log(308, 200, 30_000) == (dropped, *at_the_first, *at_the_first)


def test_what_there_is_no_room_for_is_known_to_be_missing(log):
    dropped = 4 * CHUNK  # of 1 + 20,000 events
    level = 308 + (dropped - 1) * 64
    listed = (ROOM, 308 + (ROOM - 1) * 64)
    assert log(308, 20_000, 0) == (dropped, level, *listed, level, *listed)


def test_what_was_not_listed_is_told():
    taken = LogRows(Columns(), 4 * CHUNK, Columns(), 2048, 0, [], 0)
    (note,) = gaps(taken, None)
    assert note == (
        "2.00 KiB from before the first event that was kept is one block here: "
        "there was no memory to list all blocks of then"
    )
