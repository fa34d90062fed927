"""The child processes of this one: how many there are, and their memory."""

from __future__ import annotations

import os
from pathlib import Path

from tensorlens.frameworks.base import UNKNOWN

_TASKS = Path("/proc/self/task")
_PAGE = int(os.sysconf("SC_PAGESIZE")) if hasattr(os, "sysconf") else 4096


def child_processes() -> tuple[int, int]:
    """Return the number of child processes that run, and the bytes of their resident sets.

    Read from Linux's ``/proc``, at a few microseconds for each thread and child; elsewhere, and
    where the kernel does not list them, both are :data:`UNKNOWN`.
    """
    lists = [text for text in map(_children_of, _tasks()) if text is not None]
    if not lists:
        return UNKNOWN, UNKNOWN
    sizes = [size for text in lists for size in map(_resident, text.split()) if size]
    return len(sizes), sum(sizes)


def _tasks() -> list[str]:
    try:
        return os.listdir(_TASKS)  # noqa: PTH208 (a Path for each would cost more)
    except OSError:
        return []


def _children_of(task: str) -> str | None:
    """Return the numbers of a thread's children; None where it has ended, or is not told."""
    try:
        return _read(f"{_TASKS}/{task}/children")
    except OSError:
        return None


def _resident(process: str) -> int:
    """Return the bytes of a process; 0 of one that has ended, waited for or not."""
    try:
        return int(_read(f"/proc/{process}/statm").split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 65536).decode("ascii", "replace")
    finally:
        os.close(descriptor)
