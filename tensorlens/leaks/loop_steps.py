"""The steps of one loop, followed in all frameworks in use.

Each framework numbers its own lines and knows its own tensors, and is judged by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from tensorlens.frameworks.base import UNKNOWN, Adapter, StepFigures, Steps
from tensorlens.frameworks.registry import ask, left_out
from tensorlens.frameworks.survivors import GrowingGraph
from tensorlens.guards import is_from_a_handler

NO_BLOCKS = "the counter of host memory that is in use does not know blocks"


class LoopSteps:
    """Follows a loop's steps from now on, in all frameworks that can.

    Raises:
        TensorlensError: none of them can; the text says why.
    """

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        with ExitStack() as stack:

            def begin(adapter: Adapter) -> Steps:
                steps = adapter.follow()
                stack.callback(steps.close)
                return steps

            answers, failed = ask(adapters, begin)
            stack.pop_all()
        self.parts = {adapter.name: steps for adapter, steps in answers}
        """What follows it in each framework, by name."""
        self._adapters = tuple(adapters)
        self._notes = [f"{name} is not followed: {text}" for name, text in failed.items()]
        self._notes += left_out()

    def begin(self) -> None:
        """Say that the next step begins."""
        for part in self.parts.values():
            part.begin()

    def merge(self) -> None:
        """Count each two steps as one from now on, those before too."""
        for part in self.parts.values():
            part.merge()

    def figures(self) -> tuple[StepFigures, ...]:
        """Return what is allocated now, in each framework."""
        return tuple(part.figures() for part in self.parts.values())

    def allocated(self) -> Mapping[str, int]:
        """Return the bytes that are allocated now, by device."""
        return whole(self.figures()).allocated

    def pinned(self) -> int:
        """Return the bytes of page-locked memory that all handed out, as far as they tell."""
        known = [nbytes for each in self._adapters if (nbytes := each.pinned()) >= 0]
        return sum(known) if known else UNKNOWN

    def growing_graph(self, made: int) -> GrowingGraph | None:
        """Return the live tensor whose autograd graph grew most in the steps made, if one did.

        What fails in a framework is no answer.
        """
        for part in self.parts.values():
            try:
                found = part.growing_graph(made)
                if found is not None:
                    return found
            except Exception as error:
                if is_from_a_handler(error):
                    raise
        return None

    def notes(self) -> list[str]:
        """Return lines for the report on what could not be followed."""
        own = (note for part in self.parts.values() for note in part.notes())
        return [*dict.fromkeys([*own, *self._notes])]

    def close(self) -> None:
        """Follow no longer."""
        for part in self.parts.values():
            part.close()


def whole(figures: Sequence[StepFigures]) -> StepFigures:
    """Return the sums of all frameworks' figures by device; lines are each framework's own."""
    if len(figures) == 1:
        return figures[0]
    return StepFigures(
        allocated=_summed([each.allocated for each in figures]),
        reserved=_summed([each.reserved for each in figures], once="cpu"),
        lines={},
    )


def _summed(parts: Sequence[Mapping[str, int]], once: str = "") -> dict[str, int]:
    """Return sums by device, unknown where one is; of the device ``once`` the first known."""
    found: dict[str, int] = {}
    for part in parts:
        for device, nbytes in part.items():
            known = found.get(device)
            if known is None or (device == once and known < 0):
                found[device] = nbytes
            elif device != once:
                found[device] = known + nbytes if known >= 0 <= nbytes else UNKNOWN
    return found
