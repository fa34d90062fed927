"""How many operations TensorFlow runs side by side."""

from __future__ import annotations

import os

import tensorflow as tf


def inter_op_threads() -> int:
    """Return how many threads there are between operations (``process_util.cc``)."""
    told = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    return (
        tf.config.threading.get_inter_op_parallelism_threads()
        or (int(told) if told.isdecimal() else 0)
        or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ())
        or os.cpu_count()
        or 1
    )
