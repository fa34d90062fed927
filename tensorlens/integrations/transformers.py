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
    """Adds the memory of each step to what the trainer logs, in bytes.

    * ``memory/peak_allocated_mem``: the most that was allocated at any instant of the step;
      followed by ``/forward_backward`` and ``/optimizer``, that of each phase;
    * ``memory/peak_reserved_mem``: the most that was reserved when a phase ended;
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

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The training begins."""
        self.monitor.begin((given.get("model"), given.get("optimizer")), args.output_dir)

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
        with guarded("loggers get no figures of memory"):
            if logs is None or any(map(_is_of_an_evaluation, logs)):
                # the figures are of training steps
                return
            figures = self.monitor.metrics()
            logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The training has ended."""
        self.monitor.end()


def _is_of_an_evaluation(name: str) -> bool:
    """Tell whether a name is of an evaluation's log; of another prefix it has the speed alone."""
    is_speed = name.endswith(("_runtime", "_samples_per_second"))
    return name.startswith("eval_") or (is_speed and not name.startswith("train_"))


def _begins(trainer: Trainer) -> None:
    # loggers come before this callback in the list, and see the figures if it is first
    trainer.callback_handler.callbacks.sort(key=lambda each: not isinstance(each, MemoryCallback))


def _failed(trainer: Trainer, error: BaseException) -> None:
    for each in trainer.callback_handler.callbacks:
        if isinstance(each, MemoryCallback):
            each.monitor.failed(error, trainer.args.output_dir)


# an evaluate() of the program's own calls the loop alone
watch_exceptions(Trainer, ("train", "evaluate", "predict", "evaluation_loop"), _failed, _begins)
