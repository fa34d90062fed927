"""``MemoryCallback`` for the ``Trainer`` of Hugging Face, also with Accelerate and PEFT.

::

    from tensorlens.integrations.transformers import MemoryCallback
    trainer = Trainer(..., callbacks=[MemoryCallback()])
"""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback

from tensorlens.guards import guarded
from tensorlens.integrations.hooks import watch_exceptions
from tensorlens.integrations.step_monitor import StepMonitor


class MemoryCallback(TrainerCallback):  # type: ignore[misc]
    """Adds the memory of steps, in bytes, to the trainer's logs; of the accelerator or the host.

    * ``memory/peak_allocated_mem``: peak of the step; with ``/forward_backward`` and
      ``/optimizer`` that of a phase;
    * ``memory/peak_reserved_mem``: most reserved at the end of a phase;
    * ``memory/current_allocated_mem``, ``memory/current_reserved_mem``: at the end of the step;
    * ``memory/parameter_mem``, ``memory/optimizer_mem`` and so on, every ``roles_every`` steps.

    A step is one of the optimizer, with all its micro-batches. Each log has the largest value of
    each figure since the log before.

    Args:
        options: those of :class:`~tensorlens.integrations.step_monitor.StepMonitor`.

    Raises:
        UsageError: an option has an invalid value.
    """

    def __init__(self, **options: Any) -> None:
        self.monitor = StepMonitor(**options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Start measuring."""
        self.monitor.begin((given.get("model"), given.get("optimizer")), args.output_dir)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin a step, at its first micro-batch."""
        self.monitor.step_begins()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """End the phase of forward and backward."""
        self.monitor.phase_ends("forward_backward")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """End the phase of the optimizer."""
        self.monitor.phase_ends("optimizer")

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """End the step."""
        self.monitor.step_ends()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **given: Any
    ) -> None:
        """Add the figures to a log of the trainer."""
        with guarded("loggers get no figures of memory"):
            if logs is None or any(map(_is_of_an_evaluation, logs)):
                # a log of an evaluation gets none: figures belong to training steps
                return
            figures = self.monitor.metrics()
            logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Stop measuring."""
        self.monitor.end()


def _is_of_an_evaluation(name: str) -> bool:
    """Return whether a name belongs to an evaluation's log; with other prefixes by its speeds."""
    is_speed = name.endswith(("_runtime", "_samples_per_second"))
    return name.startswith("eval_") or (is_speed and not name.startswith("train_"))


def _begins(trainer: Trainer) -> None:
    # first in the list, so that loggers see the figures
    trainer.callback_handler.callbacks.sort(key=lambda each: not isinstance(each, MemoryCallback))


def _failed(trainer: Trainer, error: BaseException) -> None:
    for each in trainer.callback_handler.callbacks:
        if isinstance(each, MemoryCallback):
            each.monitor.failed(error, trainer.args.output_dir)


# an evaluate() of the program's own calls the loop alone
watch_exceptions(Trainer, ("train", "evaluate", "predict", "evaluation_loop"), _failed, _begins)
