"""What JAX has after each step of a loop, and which arrays of which step are left."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.base import Left, StepFigures
from tensorlens.frameworks.jax.buffers import Fact, Reader
from tensorlens.frameworks.jax.census.births import Lines
from tensorlens.frameworks.jax.counters import cpu_counter, device_counter, used_devices
from tensorlens.frameworks.jax.runtime import live_arrays
from tensorlens.frameworks.survivors import Holdings
from tensorlens.records.tensors import SourceLine


@dataclass(frozen=True, slots=True)
class _Known:
    array: weakref.ref[Any]
    step: int
    line: int


class JaxSteps:
    """Follows a loop by the arrays that are there between its steps.

    Each step waits at its end for what it computes. What a step makes and frees is not seen.
    """

    def __init__(self) -> None:
        self._lines = Lines()
        self._numbers: dict[tuple[int, str], int] = {}
        self._places: dict[int, tuple[int, str]] = {}
        """Number in the figures to line and device."""
        self._known: dict[int, _Known] = {}
        """Array to what is known of it, by ``id()``."""
        self._step = -1
        self._look()

    def begin(self) -> None:
        """Say that the next step begins: arrays from now on are of it; the first one is 0."""
        self._look()
        self._step += 1

    def figures(self) -> StepFigures:
        """Return what is allocated now: by line what arrays have, of accelerators all."""
        now = cpu_counter().reader()()
        allocated, reserved = {"cpu": now[0]}, {"cpu": now[2]}
        for name in used_devices():
            now = device_counter(name).reader()()
            allocated[name], reserved[name] = now[0], now[2]
        lines: dict[int, tuple[int, int]] = {}
        for fact, known in self._look():
            number = self._number(known.line, fact.device)
            blocks, nbytes = lines.get(number, (0, 0))
            lines[number] = blocks + 1, nbytes + fact.buffer_nbytes
        return StepFigures(allocated, reserved, lines)

    def left(self, since: int) -> Left:
        """Return the buffers of the arrays of the steps from ``since`` on that live."""
        left = Left(array("Q"), array("q"), array("i"), array("i"))
        for fact, known in self._look():
            if known.step >= since:
                left.address.append(fact.address)
                left.size.append(fact.buffer_nbytes)
                left.birth.append(self._number(known.line, fact.device))
                left.step.append(known.step)
        return left

    def line(self, birth: int) -> SourceLine | None:
        """Return the line of a number in the figures; None for what is not known."""
        return self._lines.all[self._places[birth][0]] if birth >= 0 else None

    def device(self, birth: int) -> str:
        """Return the device of the arrays with a number in the figures."""
        return self._places[birth][1] if birth in self._places else "cpu"

    def notes(self) -> Sequence[str]:
        """Return nothing: all arrays are followed."""
        return ()

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Look once for what keeps the arrays at these addresses alive."""
        from tensorlens.frameworks.jax.holdings import JaxHoldings

        return JaxHoldings(addresses)

    def close(self) -> None:
        """Follow no longer."""
        self._known.clear()

    def _number(self, line: int, device: str) -> int:
        """Return the number of a line on a device; a negative one where no line is known."""
        count = len(self._numbers)
        number = self._numbers.setdefault((line, device), count if line >= 0 else -1 - count)
        self._places[number] = line, device
        return number

    def _look(self) -> list[tuple[Fact, _Known]]:
        """Return each buffer that lives, with what is known of the first array that shows it.

        An array that was not there before is of the step that runs.
        """
        arrays = live_arrays()
        before, self._known = self._known, {}
        for each in arrays:
            known = before.get(id(each))
            if known is None or known.array() is not each:
                known = _Known(weakref.ref(each), self._step, self._lines.of(each))
            self._known[id(each)] = known
        found: dict[tuple[str, int], tuple[Fact, _Known]] = {}
        for fact in Reader().read(arrays):
            known = self._known[id(arrays[fact.array])]
            key = (fact.device, fact.address)
            if fact.address and (key not in found or known.step < found[key][1].step):
                found[key] = fact, known
        return [*found.values()]
