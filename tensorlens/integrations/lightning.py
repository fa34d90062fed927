"""``MemoryCallback`` for the ``Trainer`` of Lightning.

::

    from tensorlens.integrations.lightning import MemoryCallback
    trainer = Trainer(callbacks=[MemoryCallback()])
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tensorlens.guards import guarded
from tensorlens.integrations.step_monitor import StepMonitor

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules:
    from lightning.pytorch.callbacks import Callback
else:
    # the older package's trainer takes only its own callbacks
    from pytorch_lightning.callbacks import Callback


class MemoryCallback(Callback):  # type: ignore[misc]
    """Logs the memory of batches, in bytes, of the training accelerator or the host.

    * ``memory/peak_allocated_mem``: peak of the batch; with ``/forward``, ``/backward`` and
      ``/optimizer`` that of a phase;
    * ``memory/peak_reserved_mem``: most reserved at the end of a phase;
    * ``memory/current_allocated_mem``, ``memory/current_reserved_mem``: at the end of the batch;
    * ``memory/parameter_mem``, ``memory/optimizer_mem`` and so on, every ``roles_every`` batches.

    Each log has the largest value of each figure since the log before.

    Args:
        options: those of :class:`~tensorlens.integrations.step_monitor.StepMonitor`.

    Raises:
        UsageError: an option has an invalid value.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.monitor = StepMonitor(**options)
        self._steps_before_batch = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start measuring."""
        self.monitor.begin((pl_module, *trainer.optimizers), trainer.default_root_dir)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin a step."""
        self._steps_before_batch = trainer.global_step
        self.monitor.step_begins()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """End the forward phase."""
        self.monitor.phase_ends("forward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """End the backward phase."""
        self.monitor.phase_ends("backward")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the step and log its figures."""
        self.monitor.phase_ends("optimizer")
        self.monitor.step_ends()
        with guarded("loggers get no figures of memory"):
            # Lightning logs the loss by this number; global_step counts each of several optimizers
            step = trainer.fit_loop.epoch_loop._batches_that_stepped
            has_stepped = trainer.global_step > self._steps_before_batch
            every = trainer.log_every_n_steps
            if has_stepped and every and (step + 1) % every == 0:
                figures = self.monitor.metrics()
                for logger in trainer.loggers if figures else ():
                    logger.log_metrics(figures, step=step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Explain an exception of training, validation, test or prediction."""
        self.monitor.failed(exception, trainer.default_root_dir)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop measuring."""
        self.monitor.end()
