"""Writes what a run without data takes and gives back into a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tensorlens.frameworks.tensorflow.estimate.nodes import Node
from tensorlens.records.events import ALLOC, FREE, Context, Label, Mark
from tensorlens.records.traces import Handover, Trace

PlaceOf = Callable[[Node, str | None], tuple[int, Context]]
"""Gives the stack and the context of an operation, and of what it takes under a name."""


class Ledger:
    """Rows of one device.

    Args:
        trace: to write into.
        device: whose memory it is.
        place: says where an operation comes from.
        variables: the name that the graph has for a variable to what its value is.
    """

    def __init__(
        self, trace: Trace, device: str, place: PlaceOf, variables: Mapping[str, Label]
    ) -> None:
        self._variables = variables
        self._trace, self._log, self._device = trace, trace.log, device
        self._place = place
        self._numbers = 0
        self.labels: dict[int, Label] = {}
        """Number of an operation to what its first result is."""

    def mark(self, name: str) -> None:
        """Begin a part of the run."""
        self._log.marks.append(Mark(name, len(self._log), 0))

    def hold(self, nbytes: int, label: Label, context: Context | None = None) -> int:
        """Return the row of something that is there before any operation."""
        row = self._append(nbytes, -1, context)
        self._log.name(row, label)
        return row

    def take(self, nbytes: int, place: Node | None, name: str | None = None) -> int:
        """Return the row of what an operation takes."""
        stack, context = (-1, None) if place is None else self._place(place, name)
        row = self._append(nbytes, stack, context)
        if name is not None:
            self._trace.hidden[row] = name
        elif place is not None and place.number in self.labels:
            label = self.labels[place.number]
            if place.outputs and place.outputs[0].nbytes == nbytes:
                self._log.name(row, label)
        return row

    def bound(self, row: int, least: int, likely: int, most: int) -> None:
        """Note between which bounds the size of a row is."""
        self._trace.bounds[row] = least, most
        self._log.size[row] = likely

    def give(self, row: int, place: Any) -> None:
        """Note that a row's bytes went."""
        log = self._log
        stack, context = (-1, None) if place is None else self._place(place, None)
        log.append(FREE, self._device, log.address[row], log.size[row], len(log), stack, context)

    def assign(self, variable: str, row: int, old: int, place: Any) -> None:
        """Note that a row is a variable's value now, and another one, or -1, no longer is."""
        label = self._variables.get(variable)
        if label is None:
            return
        if old >= 0:
            replaced = replace(label, name=f"{label.name} before its update", role="temporary")
            self._hand_over(old, replaced, place)
        self._hand_over(row, label, place)

    def _hand_over(self, row: int, label: Label, place: Any) -> None:
        log = self._log
        stack, context = (-1, None) if place is None else self._place(place, None)
        self._trace.handovers.append(Handover(len(log), log.address[row], label, stack, context))

    def _append(self, nbytes: int, stack: int, context: Context | None) -> int:
        self._numbers += 1
        log = self._log
        return log.append(ALLOC, self._device, self._numbers, nbytes, len(log), stack, context)
