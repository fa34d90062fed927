"""A loop that is followed in all frameworks in use.

Each framework numbers its own lines and knows its own tensors, and is judged by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from tensorlens.frameworks.base import UNKNOWN, Adapter, StepFigures
from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.frameworks.registry import ask, unusable_notes
from tensorlens.frameworks.retention import GrowingGraph
from tensorlens.guards import is_from_a_handler

NO_BLOCKS = "the counter of host memory that is in use does not know blocks"


class FollowedLoop:
    """Follows a loop's steps from now on, in all frameworks that can.

    Raises:
        TensorlensError: no framework can; the text says why.
    """

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        with ExitStack() as stack:

            def follow(adapter: Adapter) -> Steps:
                steps = adapter.follow()
                stack.callback(steps.close)
                return steps

            answers, failed = ask(adapters, follow)
            stack.pop_all()
        self.parts = {adapter.name: steps for adapter, steps in answers}
        """Steps by framework."""
        self._adapters = tuple(adapters)
        self._notes = [f"{name} is not followed: {text}" for name, text in failed.items()]
        self._notes += unusable_notes()

    def begin(self) -> None:
        """Begin the next step."""
        for part in self.parts.values():
            part.begin()

    def merge(self) -> None:
        """Count each two steps as one from now on, earlier ones too."""
        for part in self.parts.values():
            part.merge()

    def figures(self) -> tuple[StepFigures, ...]:
        """Return the allocated memory of each framework."""
        return tuple(part.figures() for part in self.parts.values())

    def allocated(self) -> Mapping[str, int]:
        """Return the bytes that are allocated now, by device."""
        return total_figures(self.figures()).allocated

    def pinned(self) -> int:
        """Return the bytes of page-locked memory that all frameworks together handed out."""
        known = [nbytes for each in self._adapters if (nbytes := each.pinned()) >= 0]
        return sum(known) if known else UNKNOWN

    def growing_graph(self, made: int) -> GrowingGraph | None:
        """Return the live tensor whose autograd graph grew most in ``made`` steps, if one did.

        A framework that fails is passed over.
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
        """Return notes for the report on what could not be followed."""
        own = (note for part in self.parts.values() for note in part.notes())
        return [*dict.fromkeys([*own, *self._notes])]

    def close(self) -> None:
        """Stop following."""
        for part in self.parts.values():
            part.close()


def total_figures(figures: Sequence[StepFigures]) -> StepFigures:
    """Return the sums of all frameworks' figures by device, without lines."""
    if len(figures) == 1:
        return figures[0]
    return StepFigures(
        allocated=_sums([each.allocated for each in figures]),
        reserved=_sums([each.reserved for each in figures], once="cpu"),
        lines={},
    )


def _sums(parts: Sequence[Mapping[str, int]], once: str = "") -> dict[str, int]:
    """Return sums by device, unknown if one is; of the device ``once``, the first known figure."""
    found: dict[str, int] = {}
    for part in parts:
        for device, nbytes in part.items():
            known = found.get(device)
            if known is None or (device == once and known < 0):
                found[device] = nbytes
            elif device != once:
                found[device] = known + nbytes if known >= 0 <= nbytes else UNKNOWN
    return found
