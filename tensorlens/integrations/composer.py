"""``MemoryCallback`` for the ``Trainer`` of Composer.

::

    from tensorlens.integrations.composer import MemoryCallback
    trainer = Trainer(..., callbacks=[MemoryCallback()])
"""

from __future__ import annotations

from typing import Any

from composer import Callback, Trainer

from tensorlens.guards import guarded
from tensorlens.integrations.hooks import watch_exceptions
from tensorlens.integrations.step_monitor import StepMonitor


class MemoryCallback(Callback):  # type: ignore[misc]
    """Gives the trainer's loggers the memory of each batch, in bytes.

    * ``memory/peak_allocated_mem``: the most that was allocated at any instant of the batch, all
      its micro-batches together; followed by ``/forward``, ``/backward`` and ``/optimizer``, that
      of each phase;
    * ``memory/peak_reserved_mem``: the most that was reserved when a phase ended;
    * ``memory/current_allocated_mem``, ``memory/current_reserved_mem``: when the batch ended;
    * ``memory/parameter_mem``, ``memory/optimizer_mem`` and so on, every ``roles_every`` batches.

    They are of the accelerator that trains, or of the host. Composer's own ``MemoryMonitor`` logs
    gigabytes under some of these names: have one of the two.

    Args:
        options: as :class:`~tensorlens.integrations.step_monitor.StepMonitor` takes them; files
            go to the folder of the run's name, as those of Composer's own callbacks.

    Raises:
        UsageError: an option has no such value.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.monitor = StepMonitor(**options)

    def fit_start(self, state: Any, logger: Any) -> None:
        """The training begins."""
        self.monitor.begin((state.model, *state.optimizers), state.run_name)

    def batch_start(self, state: Any, logger: Any) -> None:
        """A batch begins."""
        self.monitor.step_begins()

    def after_loss(self, state: Any, logger: Any) -> None:
        """The loss of a micro-batch is there."""
        self.monitor.phase_ends("forward")

    def after_backward(self, state: Any, logger: Any) -> None:
        """The gradients of a micro-batch are there."""
        self.monitor.phase_ends("backward")

    def batch_end(self, state: Any, logger: Any) -> None:
        """A batch ends."""
        self.monitor.phase_ends("optimizer")
        self.monitor.step_ends()
        figures = self.monitor.metrics()
        with guarded("loggers get no figures of memory"):
            if figures:
                logger.log_metrics(figures)

    def fit_end(self, state: Any, logger: Any) -> None:
        """The training has ended."""
        self.monitor.end()


def _failed(trainer: Trainer, error: BaseException) -> None:
    for each in trainer.state.callbacks:
        if isinstance(each, MemoryCallback):
            each.monitor.failed(error, trainer.state.run_name)


watch_exceptions(Trainer, ("fit", "eval", "predict"), _failed)
