"""``tensorlens.inputs()``: what is held ahead of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.queues.detection import find_queue
from tensorlens.planning.inputs.plan import Plan, plan
from tensorlens.records.queues import Queue


class Inputs:
    """Tells what a loader holds ahead of the step; :attr:`plan` tells it before there is one.

    Called with a loader or with the iterator of a loop, at any time and from any thread, it
    returns a :class:`~tensorlens.records.queues.Queue`. Nothing is taken from the loader, no code
    of its dataset is run, and nothing is kept alive.

    Known are torch's DataLoader and its iterators, what wraps one (in ``enumerate``, ``tqdm``, an
    attribute such as ``dataloader``), ``tf.data`` datasets and iterators, Keras's PyDataset and
    generators while a model is fitted with them, NumPy arrays, and Python's queues.
    """

    plan: Callable[..., Plan] = staticmethod(plan)

    def __call__(self, loader_or_iterator: Any, *, batch: Any = None) -> Queue:
        """Return what is held ahead of the step.

        Args:
            loader_or_iterator: the loader, or what a loop iterates over.
            batch: one batch of it, for its size, where none that waits can be looked into.

        Raises:
            UsageError: it is nothing that this knows a queue of.
        """
        if isinstance(loader_or_iterator, type):
            name = loader_or_iterator.__name__
            raise UsageError(f"inputs() takes an instance, {name}(), not the class")
        found = find_queue(loader_or_iterator, batch)
        if found is None:
            kind = type(loader_or_iterator).__name__
            raise UsageError(
                f"inputs() knows no queue of {kind}: give a DataLoader, a tf.data dataset, a Keras"
                " PyDataset, an array, or an iterator over one of them"
            )
        return found

    def __repr__(self) -> str:
        return "<function tensorlens.inputs>"


inputs = Inputs()
"""The one that is called as :func:`tensorlens.inputs`."""
