"""Begins a program, a function or a script, counts its steps and reads their losses."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import runpy
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.planning.trials.jobs import Job, Program
from tensorlens.planning.trials.pickling import unpack
from tensorlens.user_code import not_run_by_a_call


def beginning(job: Job) -> Any:
    """Import or unpack a program and begin it: call its function, or run the script.

    A function that takes no batch may return a Keras model; its train step then has the batch.

    Raises:
        UsageError: the module or function does not exist, or takes no batch.
    """
    program, arguments = job.program, job.variant.arguments
    batch, keyword = job.batch, job.batch_argument
    sys.argv = [program.file or program.name, *program.arguments]
    if program.is_script:
        assert program.file is not None
        if program.module is not None:
            runpy.run_module(program.module, run_name="__main__", alter_sys=True)
            return None
        sys.path.insert(0, str(Path(program.file).resolve().parent))
        runpy.run_path(program.file, run_name="__main__")
        return None
    function = _function(program)
    if batch is None:
        return function(**arguments)
    positional = () if keyword else (batch,)
    named = {**arguments, keyword: batch} if keyword else arguments
    if _takes(function, *positional, **named) or not _takes(function, **arguments):
        return function(*positional, **named)
    made = function(**arguments)
    if not isinstance(made, kinds.model()):
        if not keyword and _takes(function, batch):
            raise UsageError(f"{program.name}: the batch is among its arguments as well")
        raise UsageError(
            f"{program.name} takes no {keyword or 'batch'}: give it that argument, or let it"
            " return a compiled Keras model"
        )
    return made


def _takes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        # its arguments are unknown
        return True
    return True


def _function(program: Program) -> Callable[..., Any]:
    if program.parcel is not None:
        return unpack(program.parcel)
    module = _module(program)
    found: Any = module
    assert program.function is not None
    for name in program.function.split("."):
        if not hasattr(found, name):
            raise UsageError(f"{program.name}: there is no {name!r} in it")
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"{program.name} is no function")
    function: Callable[..., Any] = found
    return function


def _module(program: Program) -> ModuleType:
    if program.file is None:
        assert program.module is not None
        try:
            return importlib.import_module(program.module)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{program.module}.".startswith(f"{error.name}."):
                raise UsageError(f"{program.name}: there is no module {error.name!r}") from None
            raise
    folder = str(Path(program.file).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = Path(program.file).stem
    specification = importlib.util.spec_from_file_location(name, program.file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def forget(program: Program) -> None:
    """Remove the module of a file, so that the next job runs the file again."""
    if program.file is not None:
        name = Path(program.file).stem
        if getattr(sys.modules.get(name), "__file__", None) == program.file:
            del sys.modules[name]


END = "end"
"""Name of the mark after the last step."""


class StepsDone(BaseException):
    """Raised to end a program after its last wanted step."""


class Marks(Protocol):
    """Receiver of the begins and ends of steps."""

    def mark(self, name: str, row: int | None = None) -> None:
        """Set a mark now; with ``row`` 0 before everything so far."""

    def forget_marks(self) -> None:
        """Forget the marks so far: they were no steps."""


def checked_step(step: Any, name: str) -> Callable[[], Any] | None:
    """Check the result of the function ``name`` and return it as a step; None of a whole program.

    Raises:
        UsageError: it is no step. A model needs an input, and generator and coroutine functions
            run nothing when called.
    """
    if step is None:
        return None
    kind = not_run_by_a_call(step)
    if not kind and callable(step) and not hasattr(step, "named_parameters"):
        return step  # type: ignore[no-any-return]
    kind = kind or type(step).__name__
    raise UsageError(
        f"{name} returned a {kind}: return a function that runs one step, or nothing if it is the"
        " whole program"
    )


class StepRunner:
    """Runs a number of steps.

    Args:
        wanted: the number of steps.
        marks: receives their marks.
        done: called with the number of steps done.
        when_stepped: function of the framework's adapter that reports optimizer steps.
    """

    def __init__(
        self,
        wanted: int,
        marks: Marks,
        done: Callable[[int], None],
        when_stepped: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._wanted = wanted
        self._marks = marks
        self._done = done
        self._when_stepped = when_stepped
        self._began = 0.0
        self.seconds: list[float] = []
        self.was_ended = False
        """Whether a whole program was ended after the last wanted step."""

    def run(
        self,
        begin: Callable[[], Callable[[], Any] | None],
        call: Callable[[Callable[[], Any]], Any],
    ) -> None:
        """Run a program's steps.

        ``begin`` returns the step, which ``call`` runs, or None after a whole program. The steps of
        a whole program are those of its first optimizer; without any, the whole is one step.
        """
        step = self._step_of_program(begin)
        if step is None:
            if not self.seconds:
                self._marks.mark("step 1", row=0)
                self._end_step()
        else:
            self._marks.forget_marks()
            self.seconds.clear()
            self.was_ended = False
            for number in range(1, self._wanted + 1):
                self._begin_step(number)
                call(step)
                self._end_step()
        self._marks.mark(END)

    def _step_of_program(self, begin: Callable[[], Any]) -> Callable[[], Any] | None:
        """Begin the program, and end it once it has made all wanted steps itself."""
        end = self._when_stepped(self._stepped)
        self._began = time.perf_counter()
        try:
            step: Callable[[], Any] | None = begin()
            return step
        except StepsDone:
            return None
        except SystemExit as error:
            if error.code not in (None, 0):
                raise UsageError(f"the program ended by itself: {error.code}") from None
            return None
        finally:
            end()

    def _stepped(self) -> None:
        if self.was_ended:
            # the program caught the first exception
            raise StepsDone
        if not self.seconds:
            self._marks.mark("step 1", row=0)
        self._end_step()
        if len(self.seconds) == self._wanted:
            self.was_ended = True
            raise StepsDone
        self._begin_step(len(self.seconds) + 1)

    def _begin_step(self, number: int) -> None:
        self._marks.mark(f"step {number}")
        self._began = time.perf_counter()

    def _end_step(self) -> None:
        self.seconds.append(time.perf_counter() - self._began)
        self._done(len(self.seconds))


def loss_of(value: Any) -> float | None:
    """Return the loss in the result of ``step()``, or None.

    It is a number, a tensor or array of one element, the ``loss`` of a mapping or object, or the
    first item of a tuple or list. Tensors without data have none.
    """
    try:
        return _loss_of(value)
    except Exception:
        # a program may return anything
        return None


def _loss_of(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Mapping):
        return _loss_of(value["loss"])
    if isinstance(value, tuple | list):
        return _loss_of(value[0])
    if hasattr(value, "loss"):
        return _loss_of(value.loss)
    is_one = math.prod(value.shape) == 1
    return float(value.item() if hasattr(value, "item") else value) if is_one else None
