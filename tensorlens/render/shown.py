"""Records that show themselves, and the view: the choices for one showing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Self

from tensorlens import config
from tensorlens.errors import UsageError
from tensorlens.roles import BLOCK_ROLES


class Shown:
    """Base of every record that is printed."""

    __slots__ = ()

    PRESENTER: ClassVar[str]
    """Name of its presenter: a module with the ``TITLE`` of a page, ``blocks(record, view)`` and
    ``rows(record)``, the flat table."""
    SHOWS_SOURCE: ClassVar[bool] = True
    """Whether pages and texts show the lines of source code that it holds."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # IPython prefers a class's own __repr__ to an inherited _repr_pretty_
        cls._repr_pretty_ = cls._repr_pretty_  # type: ignore[method-assign]

    def __str__(self) -> str:
        from tensorlens.render.text import TextRenderer

        return TextRenderer().render(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def without_source(self) -> Self:
        """Return the record without lines of source code: itself if it has none."""
        return self

    @property
    def contains_source(self) -> bool:
        """Whether it holds lines of source code."""
        return self.without_source() is not self

    def presenter(self) -> Any:
        """Return the presenter's module."""
        return import_module(self.PRESENTER)

    def still(self) -> Self:
        """Return the record as of now: itself, unless it is still being made."""
        return self


NOTICE = "contains source lines; --no-source leaves them out"


def permitted(record: Shown) -> Any:
    """Return a record as of now, without source lines if the settings leave them out."""
    record = record.still()
    return record if config.current().source else record.without_source()


def provenance(record: Shown) -> tuple[str, ...]:
    """Return the end of a page: the run of a record, and whether it has source lines."""
    run = getattr(record, "run", None)
    texts: tuple[str, ...] = () if run is None else run.texts
    return (*texts, NOTICE) if record.SHOWS_SOURCE and record.contains_source else texts


SHOW_ALL = "all: show --top all, or top=None"
"""How to see the rows that :attr:`View.top` leaves out."""


@dataclass(frozen=True, slots=True)
class View:
    """Which of a snapshot's tensors a report shows, and how fully.

    Rows that are left out are always summed, so that a report adds up whatever its view.

    Raises:
        UsageError: a negative size or number, or a role that is none of ``BLOCK_ROLES``.
    """

    top: int | None = 40
    """Number of rows of each device, the largest first; None for all."""
    min_size: int = 0
    """Least bytes of a row."""
    roles: tuple[str, ...] = ()
    """Only these roles; empty for all."""
    devices: tuple[str, ...] = ()
    """Only these devices; empty for all. ``cuda`` is all of its kind; in a merged snapshot
    ``rank0`` is all of that part, and ``cuda:0`` that device of every part."""
    verbose: bool = False
    """Also aliases, strides, storages, holders and births."""
    explain: bool = False
    """Also one line for each term of the ledger."""
    at: str | None = None
    """Instant of a recording to show: the name of a mark, or the number of an event as text; None
    for the peak."""

    def __post_init__(self) -> None:
        if self.top is not None and self.top < 0:
            raise UsageError(f"top = {self.top}: give the number of rows, or None for all")
        if self.min_size < 0:
            raise UsageError(f"min_size = {self.min_size}: give bytes, 0 or more")
        for role in self.roles:
            if role not in BLOCK_ROLES:
                raise UsageError(f"{role!r} is no role: the roles are {', '.join(BLOCK_ROLES)}")

    def shows_device(self, device: str) -> bool:
        """Return whether a device is among those asked for."""
        parts = device.split("/")
        names = {part for each in parts for part in (each, each.partition(":")[0])}
        return not self.devices or any(
            wanted in names or device == wanted or device.startswith((wanted + "/", wanted + ":"))
            for wanted in self.devices
        )
