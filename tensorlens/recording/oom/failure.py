"""An allocation that failed, as a person meets it: who asked, what was there, what helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tensorlens.records.documents import Shown
from tensorlens.records.failures import Request
from tensorlens.tensors.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that would have freed memory."""

    nbytes: int | None
    """How much of what was resident it is about; None where that is not known."""
    text: str
    """One line: what it is, and what to do."""


@dataclass(frozen=True, slots=True)
class OutOfMemory(Shown):
    """Report on an allocation that failed; prints itself as text."""

    PRESENTER: ClassVar[str] = "tensorlens.recording.oom.present"

    request: Request
    snapshot: Snapshot
    """Snapshot of memory while the error was on its way, or after it was handled."""
    remedies: tuple[Remedy, ...] = ()
    """Memory that could be freed."""
    remarks: tuple[str, ...] = ()
    """Other facts: a limit of the process, how much is cached and in which pieces."""
    handled: bool = False
    """Whether the program handled the error: what was in memory then may have been freed since."""
