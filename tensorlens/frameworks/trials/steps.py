"""Runs a program's steps, as many as are wanted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from tensorlens.errors import UsageError
from tensorlens.frameworks.trials.jobs import Program

END = "end"
"""The mark after the last step."""


class Enough(BaseException):
    """Ends a program that has made all steps wanted."""


class Marks(Protocol):
    """Takes note of where steps begin and end."""

    def mark(self, name: str, row: int | None = None) -> None:
        """Take a mark; ``row`` 0 for one before all that was seen."""

    def forget_marks(self) -> None:
        """Begin anew: what ran before were no steps."""


class Followed(Protocol):
    """Calls of optimizers that are followed."""

    def close(self) -> None:
        """Follow them no longer."""


class Steps:
    """The steps of one run.

    Args:
        wanted: how many.
        marks: takes a mark where each begins, and ``end``.
        done: called with the number of steps done.
        follow: follows the steps of a framework's optimizers, and calls what it is given after
            each.
    """

    def __init__(
        self,
        wanted: int,
        marks: Marks,
        done: Callable[[int], None],
        follow: Callable[[Callable[[], None]], Followed],
    ) -> None:
        self._wanted = wanted
        self._marks = marks
        self._done = done
        self._follow = follow
        self._began = 0.0
        self.seconds: list[float] = []
        self.was_ended = False
        """Whether a whole program was ended after the last step wanted."""

    def run(
        self, program: Program, begin: Callable[[], Any], call: Callable[[Callable[[], Any]], Any]
    ) -> None:
        """Run a program's steps.

        Args:
            program: whose.
            begin: begins it. What it returns runs one step; None if it was the whole program, whose
                steps are those of its first optimizer, or itself if there are none.
            call: calls what runs one step.

        Raises:
            UsageError: it returned something else.
        """
        step = self._begun(begin)
        if step is None:
            if not self.seconds:
                self._marks.mark("step 1", row=0)
                self._end()
        elif not callable(step):
            raise UsageError(
                f"{program.name} returned a {type(step).__name__}: return a function that runs one "
                "step, or nothing if it is the whole program"
            )
        else:
            self._marks.forget_marks()
            self.seconds.clear()
            self.was_ended = False
            for number in range(1, self._wanted + 1):
                self._begin(number)
                call(step)
                self._end()
        self._marks.mark(END)

    def _begun(self, begin: Callable[[], Any]) -> Any:
        """Begin the program, and end it if it makes all steps wanted by itself."""
        counted = self._follow(self._stepped)
        self._began = time.perf_counter()
        try:
            return begin()
        except Enough:
            return None
        except SystemExit as error:
            if error.code not in (None, 0):
                raise UsageError(f"the program ended by itself: {error.code}") from None
            return None
        finally:
            counted.close()

    def _stepped(self) -> None:
        if self.was_ended:
            # the program has caught the first one
            raise Enough
        if not self.seconds:
            self._marks.mark("step 1", row=0)
        self._end()
        if len(self.seconds) == self._wanted:
            self.was_ended = True
            raise Enough
        self._begin(len(self.seconds) + 1)

    def _begin(self, number: int) -> None:
        self._marks.mark(f"step {number}")
        self._began = time.perf_counter()

    def _end(self) -> None:
        self.seconds.append(time.perf_counter() - self._began)
        self._done(len(self.seconds))
