"""Memory of this process and its children, as Linux's ``/proc`` and the C library report it."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tensorlens.frameworks.base import UNKNOWN

_STATUS = re.compile(r"^(\w+):\s*(\d+) kB$", re.MULTILINE)
_TASKS = Path("/proc/self/task")
_PAGE = int(os.sysconf("SC_PAGESIZE")) if hasattr(os, "sysconf") else 4096


def resident() -> int:
    """Return the resident set in bytes, UNKNOWN if the system does not report it."""
    try:
        # opened each time: after a fork, an older descriptor is still the parent's
        return int(Path("/proc/self/statm").read_bytes().split(None, 2)[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        pass
    try:
        return int(psutil.Process().memory_info().rss)
    except (psutil.Error, OSError):
        return UNKNOWN


def status_sizes() -> dict[str, int]:
    """Return the sizes in ``/proc/self/status`` by name (``VmRSS``, ``VmHWM``), in bytes."""
    try:
        text = Path("/proc/self/status").read_text("ascii", "replace")
    except OSError:
        return {}
    return {name: int(size) * 1024 for name, size in _STATUS.findall(text)}


def mappings() -> list[str]:
    """Return the lines of ``/proc/self/maps``; none on other systems."""
    try:
        return Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []


def child_processes() -> tuple[int, int]:
    """Return the number of running child processes, and the bytes of their resident sets.

    It reads ``/proc``, in a few microseconds for each thread and child. Both are :data:`UNKNOWN`
    on other systems and kernels that do not list children.
    """
    try:
        tasks = os.listdir(_TASKS)  # noqa: PTH208 (a Path for each would cost more)
    except OSError:
        tasks = []
    # threads and children that have ended are left out, zombies too
    lists = [text for task in tasks if (text := _read(f"{_TASKS}/{task}/children")) is not None]
    if not lists:
        return UNKNOWN, UNKNOWN
    statms = (_read(f"/proc/{child}/statm") for text in lists for child in text.split())
    pages = [int(statm.split()[1]) for statm in statms if statm]
    sizes = [count * _PAGE for count in pages if count]
    return len(sizes), sum(sizes)


def _read(path: str) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(descriptor, 65536).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)


class Mallinfo(ctypes.Structure):
    """glibc's ``struct mallinfo2`` (malloc.h): sizes in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def heap_now() -> tuple[int, int] | None:
    """Return the bytes in use and free in the C heap; None without glibc 2.33."""
    try:
        heap = mallinfo2_function()()
    except OSError:
        return None
    return heap.uordblks + heap.hblkhd, heap.fordblks


def mallinfo2_function() -> Callable[[], Any]:
    """Return ``mallinfo2``.

    Raises:
        OSError: this C library does not have it.
    """
    try:
        function = ctypes.PyDLL(None).mallinfo2
    except (AttributeError, TypeError):
        raise OSError("this C library has no mallinfo2 (glibc 2.33 and later do)") from None
    function.argtypes, function.restype = (), Mallinfo
    return function
