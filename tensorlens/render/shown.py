"""Records that show themselves: a presenter says what is shown, settings leave source lines out."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, Self

from tensorlens import config


class Shown:
    """Base of every record that is printed."""

    __slots__ = ()

    PRESENTER: ClassVar[str]
    """Its presenter: a module with the ``TITLE`` of a page, ``blocks(record, view)`` and
    ``rows(record)``, the flat table."""
    SHOWS_SOURCE: ClassVar[bool] = True
    """Whether pages and texts show the lines of source code that it holds."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # IPython asks a class for its own __repr__ before it asks those above for this
        cls._repr_pretty_ = cls._repr_pretty_  # type: ignore[method-assign]

    def __str__(self) -> str:
        from tensorlens.render.text import TextRenderer

        return TextRenderer().render(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def without_source(self) -> Self:
        """Return it without the lines of source code that it holds: itself where there are none."""
        return self

    @property
    def contains_source(self) -> bool:
        """Whether it holds lines of source code."""
        return self.without_source() is not self

    def presenter(self) -> Any:
        """Return the module that says what is shown of it."""
        return import_module(self.PRESENTER)

    def still(self) -> Self:
        """Return it as of now: itself, unless it is of what goes on."""
        return self


NOTICE = "contains source lines; --no-source leaves them out"


def permitted(record: Shown) -> Any:
    """Return a record as of now, without its source lines where the settings leave them out."""
    record = record.still()
    return record if config.current().source else record.without_source()


def provenance(record: Shown) -> tuple[str, ...]:
    """Return the end of a page: the run that a record is of, and whether it has source lines."""
    run = getattr(record, "run", None)
    texts: tuple[str, ...] = () if run is None else run.texts
    return (*texts, NOTICE) if record.SHOWS_SOURCE and record.contains_source else texts
