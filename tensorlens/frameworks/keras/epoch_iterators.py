"""What Keras's methods read their data from while they run, by Python's stacks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from tensorlens.heap.attributes import dict_of
from tensorlens.heap.frames import locals_of

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
"""Methods that train, test or apply a model."""
_KERAS = "/keras/src/"
_LOCAL, _ATTRIBUTE = "epoch_iterator", "_eval_epoch_iterator"
"""Where these methods keep what they read (keras/src/backend/tensorflow/trainer.py, 3.15)."""
_CLASSES = ("EpochIterator", "TFEpochIterator")


def epoch_iterator_calls(models: Iterable[Any]) -> dict[int, str]:
    """Return the ``id()`` of each epoch iterator in use to the call that reads from it."""
    found: dict[int, str] = {}
    threads = sys._current_frames()
    # one that refers to itself would keep all that its callers have
    threads[threading.get_ident()] = sys._getframe(1)
    for innermost in threads.values():
        frame: FrameType | None = innermost
        while frame is not None:
            code = frame.f_code
            if code.co_name in METHODS and _KERAS in code.co_filename.replace("\\", "/"):
                for name, address, *_ in locals_of(frame):
                    if name == _LOCAL:
                        found.setdefault(address, code.co_name)
            frame = frame.f_back
    for model in models:
        content = dict_of(model)
        waiting = content.get(_ATTRIBUTE) if type(content) is dict else None
        if waiting is not None:
            found.setdefault(id(waiting), "evaluate")
    return found


def data_holder_name(holder: str) -> str:
    """Return the name of what holds data; ``Keras`` for an epoch iterator whose call is over."""
    return "Keras" if holder.startswith(_CLASSES) else holder
