"""The presenter of a record."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tensorlens.records.documents import Shown
    from tensorlens.render.blocks import Presenter


def presenter(record: Shown) -> Presenter:
    """Return what says how a record is shown."""
    return cast("Presenter", import_module(record.PRESENTER))
