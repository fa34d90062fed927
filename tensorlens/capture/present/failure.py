"""What is shown of an allocation that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorlens.capture.present.failure_text import failure_parts
from tensorlens.records.failures import OutOfMemory
from tensorlens.records.snapshots import View
from tensorlens.render.blocks import Block, Custom

_FEW = 10
"""The largest so many tensors are shown."""


def blocks(failure: OutOfMemory, view: View) -> Sequence[Block]:
    """Return the request, what could be freed, what was resident on the request's device."""
    if not view.devices:
        device = failure.request.device
        devices = tuple(each for each in failure.snapshot.ledger if each == device)
        view = replace(view, devices=devices, top=_FEW)
    return [Custom(lambda page: failure_parts(failure, replace(page, view=view)))]
