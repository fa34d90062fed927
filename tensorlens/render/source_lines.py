"""Lines of source code in reports: settings leave them out, and files tell of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorlens import config

if TYPE_CHECKING:
    from tensorlens.render.shown import Shown

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
