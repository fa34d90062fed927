"""Less memory than there is: on the CPU by ``setrlimit``, on CUDA by torch's own allocator."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from tensorlens.frameworks.trials import CannotApply

_DATA = re.compile(r"VmData:\s*(\d+) kB")


@contextlib.contextmanager
def limited(nbytes: int | None) -> Iterator[None]:
    """Let the program have so many bytes from here on; None: as many as there are.

    On CUDA they are what the device would have in all: the caching allocator may reserve what is
    left of them beside what is taken before the program begins. Else ``RLIMIT_DATA`` is what the
    process has mapped now and so many bytes more (Linux 4.7 and later count private mappings).

    Raises:
        CannotApply: this system sets no such limit.
    """
    if nbytes is None:
        yield
        return
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            torch.zeros(1, device=f"cuda:{number}")
            free, total = torch.cuda.mem_get_info(number)
            taken = total - free - torch.cuda.memory_reserved(number)
            share = max(nbytes - taken, 0) / total
            torch.cuda.set_per_process_memory_fraction(min(share, 1.0), number)
        yield
        return
    with _of_data(nbytes):
        yield


@contextlib.contextmanager
def _of_data(nbytes: int) -> Iterator[None]:
    try:
        import resource

        match = _DATA.search(Path("/proc/self/status").read_text())
    except (ImportError, OSError):
        match = None
    if match is None:
        raise CannotApply("this system cannot limit a process's memory: it needs Linux's /proc")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(match[1]) * 1024 + nbytes
    hard = before[1]
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def give_back_heap() -> None:
    """Have the C library give free memory back to the system, where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
