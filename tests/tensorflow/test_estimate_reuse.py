"""Which results take memory that is there already: simulated requests against TensorFlow's own.

Each case is a graph of one operation or two, whose argument nobody else reads.
"""

import pytest
import tensorflow as tf

import tensorlens
from tensorlens.planning.tensorflow import StepInput, TracedStep, TraceRequest, execute, optimized
from tensorlens.records import ALLOC
from tests.tensorflow.estimate_requests import Requests

ops = tf.raw_ops
FLAT = tf.random.uniform([64, 100])
"""Rows of 400 B, which do not begin aligned to 64."""
ROWS = tf.random.uniform([64, 128])
"""Rows of 512 B, which do."""
OTHER = tf.random.uniform([64, 100])


def simulated(function):
    concrete = function.get_concrete_function()
    graph = concrete.graph
    feeds = [StepInput(x.op.name, "x", "input", x.dtype.name, tuple(x.shape)) for x in graph.inputs]
    traced = TracedStep(function=concrete, variables=[], feeds=feeds, gradients={}, model=None)
    requests = Requests()
    execute(traced, optimized(traced), TraceRequest(1, device="cpu"), requests, pytest.fail)
    return sorted(requests.sizes[requests.sizes_before :])


def measured(function):
    function()
    with tensorlens.record() as recording:
        function()
    log = recording.log
    return sorted(log.size[row] for row in range(len(log)) if log.kind[row] == ALLOC)


def strided(x, begin, end):
    return ops.StridedSlice(input=x, begin=[begin, 0], end=[end, 128], strides=[1, 1])


WRITTEN_OVER = {
    "the first choice": lambda: ops.SelectV2(condition=FLAT > 0.5, t=FLAT + 1.0, e=OTHER),
    "the second choice": lambda: ops.SelectV2(condition=FLAT > 0.5, t=OTHER, e=FLAT + 1.0),
    "a sum": lambda: ops.AddN(inputs=[FLAT + 1.0, OTHER]),
    "a gradient of relu": lambda: ops.ReluGrad(gradients=FLAT + 1.0, features=OTHER),
    "a gradient of tanh": lambda: ops.TanhGrad(y=FLAT + 1.0, dy=OTHER),
    "softmax": lambda: ops.LogSoftmax(logits=FLAT + 1.0),
}
SHARED = {
    "rows of Slice": lambda: ops.Slice(input=ROWS + 1.0, begin=[16, 0], size=[32, 128]),
    "rows of StridedSlice": lambda: strided(ROWS + 1.0, 16, 48),
    "one row": lambda: (ROWS + 1.0)[3],
    "halves": lambda: tf.split(ROWS + 1.0, 2, axis=0),
    "parts": lambda: tf.split(ROWS + 1.0, [16, 48], axis=0),
    "each row": lambda: tf.unstack(tf.reshape(ROWS + 1.0, [2, 32, 128])),
    "rows, written over": lambda: (ROWS + 1.0)[16:48] * 2.0,
}
NEW = {
    "rows that would not be aligned": lambda: (FLAT + 1.0)[:32],
    "halves that would not be": lambda: tf.split(FLAT + 1.0, 2, axis=0),
    "columns": lambda: (ROWS + 1.0)[:, :64],
    "halves, one of which is written over": lambda: [
        half * 2.0 for half in tf.split(ROWS + 1.0, 2, axis=0)
    ],
    "halves of columns": lambda: tf.split(ROWS + 1.0, 2, axis=1),
    "turned over": lambda: tf.transpose(FLAT + 1.0),
    "numbers of another size": lambda: tf.cast(FLAT + 1.0, tf.bfloat16),
}


@pytest.mark.parametrize("case", [*WRITTEN_OVER, *SHARED])
def test_reused_buffer_is_one_request(case):
    function = tf.function({**WRITTEN_OVER, **SHARED}[case], autograph=False)
    found = measured(function)
    assert simulated(function) == found
    large = max(found)
    assert found.count(large) == 1 and sum(found) < 1.5 * large, "the argument's, and no other"


@pytest.mark.parametrize("case", NEW)
def test_a_request_is_made_for_each(case):
    function = tf.function(NEW[case], autograph=False)
    found = measured(function)
    assert simulated(function) == found
    assert len(found) > 1
