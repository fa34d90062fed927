"""``MemoryCallback`` for the ``Trainer`` of Hugging Face, also with Accelerate and PEFT.

::

    from tensorlens.integrations.transformers import MemoryCallback
    trainer = Trainer(..., callbacks=[MemoryCallback()])
"""

from __future__ import annotations

import sys
from typing import Any

from transformers import Trainer, TrainerCallback

from tensorlens.guards import guarded
from tensorlens.integrations.step_monitor import StepMonitor


class MemoryCallback(TrainerCallback):  # type: ignore[misc]
    """Adds the memory of each step to what the trainer logs, in bytes.

    * ``memory/peak_allocated_mem``: the most that was allocated at any instant of the step;
      followed by ``/forward_backward`` and ``/optimizer``, that of each phase;
    * ``memory/current_allocated_mem``, ``memory/current_reserved_mem``: when it ended;
    * ``memory/parameter_mem``, ``memory/optimizer_mem`` and so on, every ``roles_every`` steps.

    They are of the accelerator that trains, or of the host. A step is one of the optimizer, all its
    micro-batches together; the figures logged are those of the largest since the last log.

    Args:
        options: as :class:`~tensorlens.integrations.step_monitor.StepMonitor` takes them.

    Raises:
        UsageError: an option has no such value.
    """

    def __init__(self, **options: Any) -> None:
        self.monitor = StepMonitor(**options)
        self._trainer: Any = None
        self._own_step: Any = None
        """What the program had put in the place of the trainer's own function."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The training begins."""
        self.monitor.begin((given.get("model"), given.get("optimizer")), args.output_dir)
        self._let_go()
        with guarded("figures reach no logger, and memory that runs out is not explained"):
            self._take(_caller())

    def _take(self, trainer: Any) -> None:
        """Stand first among the callbacks, and around the function that runs a step."""
        if trainer is None:
            return
        # loggers come before this callback in the list, and see the figures if it is first
        trainer.callback_handler.callbacks.sort(key=lambda each: each is not self)
        self._own_step = vars(trainer).get("training_step")
        trainer.training_step = self._explained(trainer.training_step)
        self._trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A step begins."""
        self.monitor.step_begins()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The gradients are there."""
        self.monitor.phase_ends("forward_backward")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The optimizer has stepped."""
        self.monitor.phase_ends("optimizer")

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A step ends."""
        self.monitor.step_ends()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **given: Any
    ) -> None:
        """The trainer logs: the figures go with it."""
        if logs is None or any(name.startswith("eval_") for name in logs):
            # of an evaluation: the figures are of training steps
            return
        figures = self.monitor.metrics()
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The training has ended."""
        self._let_go()
        self.monitor.end()

    def _explained(self, training_step: Any) -> Any:
        """Return the function that runs a step; no callback is told of an exception."""

        def run(*arguments: Any, **options: Any) -> Any:
            try:
                return training_step(*arguments, **options)
            except BaseException as error:
                self._let_go()
                self.monitor.failed(error)
                raise

        return run

    def _let_go(self) -> None:
        trainer, self._trainer = self._trainer, None
        if trainer is not None:
            vars(trainer).pop("training_step", None)
            if self._own_step is not None:
                trainer.training_step = self._own_step


def _caller() -> Any:
    """Return the trainer that calls, which callbacks are not given; None where it is not found."""
    frame = sys._getframe(2)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None
