"""What one run of a step asks of memory, kept so that it can be told without another run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorlens.frameworks.tensorflow.estimate.held import Memory
from tensorlens.frameworks.tensorflow.estimate.nodes import Node
from tensorlens.frameworks.tensorflow.estimate.orders import Meter
from tensorlens.frameworks.tensorflow.estimate.tracing import Held


class Requests(Meter):
    """All of a run, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, ...]] = []
        """What was called, and what it was given."""

    def take(self, nbytes: int, place: Any, name: str | None = None) -> int:
        """Keep that it was taken."""
        self._calls.append(("take", nbytes, place, name))
        return super().take(nbytes, place, name)

    def bound(self, row: int, least: int, likely: int, most: int) -> None:
        """Keep the bounds."""
        self._calls.append(("bound", row, least, likely, most))

    def give(self, row: int, place: Any) -> None:
        """Keep that it was given back."""
        self._calls.append(("give", row, place))
        super().give(row, place)

    def assign(self, variable: str, row: int, old: int, place: Any) -> None:
        """Keep which row is a variable's value."""
        self._calls.append(("assign", variable, row, old, place))

    def hold(self, each: Held, nbytes: int) -> int:
        """Keep what is there before the step."""
        self._calls.append(("hold", each, nbytes))
        return super().take(nbytes, None)

    def began(self) -> None:
        """Keep that all of that is there."""
        self._calls.append(("began",))

    def unknown(self, node: Node) -> None:
        """Keep that the results of an operation have no shape."""
        self._calls.append(("unknown", node))

    def tell(
        self,
        memory: Memory,
        hold: Callable[[Held, int], int],
        began: Callable[[], None],
        unknown: Callable[[Node], None],
    ) -> None:
        """Tell it all to those that a run tells it to (:meth:`.playing.Play.run`)."""
        rows: list[int] = []
        for what, *given in self._calls:
            if what == "take":
                rows.append(memory.take(*given))
            elif what == "give":
                row, place = given
                memory.give(rows[row], place)
            elif what == "assign":
                variable, row, old, place = given
                memory.assign(variable, rows[row], -1 if old < 0 else rows[old], place)
            elif what == "hold":
                rows.append(hold(*given))
            elif what == "bound":
                row, *bounds = given
                memory.bound(rows[row], *bounds)
            elif what == "unknown":
                unknown(*given)
            else:
                began()
