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
    """Logs the memory of each batch, in bytes, of the training accelerator or the host.

    * ``memory/peak_allocated_mem``: peak of the batch over all its micro-batches; with
      ``/forward``, ``/backward`` and ``/optimizer`` that of a phase;
    * ``memory/peak_reserved_mem``: most reserved at the end of a phase;
    * ``memory/current_allocated_mem``, ``memory/current_reserved_mem``: at the end of the batch;
    * ``memory/parameter_mem``, ``memory/optimizer_mem`` and so on, every ``roles_every`` batches.

    Composer's own ``MemoryMonitor`` logs gigabytes under some of these names: use one of the two.

    Args:
        options: those of :class:`~tensorlens.integrations.step_monitor.StepMonitor`; files go to
            the folder of the run's name, like those of Composer's callbacks.

    Raises:
        UsageError: an option has an invalid value.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.monitor = StepMonitor(**options)

    def fit_start(self, state: Any, logger: Any) -> None:
        """Start measuring."""
        self.monitor.begin((state.model, *state.optimizers), state.run_name)

    def batch_start(self, state: Any, logger: Any) -> None:
        """Begin a step."""
        self.monitor.step_begins()

    def after_loss(self, state: Any, logger: Any) -> None:
        """End the forward phase of a micro-batch."""
        self.monitor.phase_ends("forward")

    def after_backward(self, state: Any, logger: Any) -> None:
        """End the backward phase of a micro-batch."""
        self.monitor.phase_ends("backward")

    def batch_end(self, state: Any, logger: Any) -> None:
        """End the step and log its figures."""
        self.monitor.phase_ends("optimizer")
        self.monitor.step_ends()
        figures = self.monitor.metrics()
        with guarded("loggers get no figures of memory"):
            if figures:
                logger.log_metrics(figures)

    def fit_end(self, state: Any, logger: Any) -> None:
        """Stop measuring."""
        self.monitor.end()


def _failed(trainer: Trainer, error: BaseException) -> None:
    for each in trainer.state.callbacks:
        if isinstance(each, MemoryCallback):
            each.monitor.failed(error, trainer.state.run_name)


watch_exceptions(Trainer, ("fit", "eval", "predict"), _failed)
