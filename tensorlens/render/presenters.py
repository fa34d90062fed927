"""The presenter of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorlens.records.documents import Shown
    from tensorlens.render.blocks import Presenter


def presenter(record: Shown) -> Presenter:
    """Return what says how a record is shown."""
    found: Presenter = record.presenter()
    return found
