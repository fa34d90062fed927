"""Which results take memory that is there already: simulated requests against TensorFlow's own.

Each case is a graph of one operation or two, whose argument nobody else reads.
"""

import pytest
import tensorflow as tf

import tensorlens
from tensorlens.planning.tensorflow.execution import cpu
from tensorlens.planning.tensorflow.execution.orders import Meter
from tensorlens.planning.tensorflow.execution.step_execution import StepExecution
from tensorlens.planning.tensorflow.graph.optimizing import optimized
from tensorlens.planning.tensorflow.graph.tracing import StepInput, TracedStep
from tensorlens.planning.tensorflow.request import TraceRequest
from tensorlens.records.events import ALLOC

ops = tf.raw_ops
FLAT = tf.random.uniform([64, 100])
"""Rows of 400 B, which do not begin aligned to 64."""
ROWS = tf.random.uniform([64, 128])
"""Rows of 512 B, which do."""
OTHER = tf.random.uniform([64, 100])
LABELS = tf.zeros([64], tf.int64)
SQUARES = tf.random.uniform([16, 16, 10])
SQUARE = tf.random.uniform([128, 128])


class Requests(Meter):
    """Keeps their sizes."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def take(self, nbytes, place, name=None):
        self.sizes.append(nbytes)
        return super().take(nbytes, place, name)


def simulated(function):
    graph = function.get_concrete_function().graph
    feeds = [StepInput(x.op.name, "x", "input", x.dtype.name, tuple(x.shape)) for x in graph.inputs]
    traced = TracedStep(graph=graph, variables=[], feeds=feeds, gradients={}, layers=None)
    nodes = optimized(traced)
    if cpu.is_used():
        cpu.add_positions(nodes)
    memory, begin = Requests(), []

    def hold(each, nbytes):
        return memory.take(nbytes, None)

    def began():
        begin.append(len(memory.sizes))

    StepExecution(traced, nodes, TraceRequest(1, device="cpu")).run(
        memory, hold, began, pytest.fail
    )
    return sorted(memory.sizes[begin[0] :])


def measured(function):
    function()
    with tensorlens.record() as recording:
        function()
    log = recording.log
    return sorted(log.size[row] for row in range(len(log)) if log.kind[row] == ALLOC)


def strided(x, begin, end, step=1):
    return ops.StridedSlice(input=x, begin=[begin, 0], end=[end, 128], strides=[step, 1])


WRITTEN_OVER = {
    "the gradient of sparse logits": lambda: ops.SparseSoftmaxCrossEntropyWithLogits(
        features=FLAT + 1.0, labels=LABELS
    ),
    "the gradient of logits": lambda: ops.SoftmaxCrossEntropyWithLogits(
        features=FLAT + 1.0, labels=OTHER
    ),
    "the first choice": lambda: ops.SelectV2(condition=FLAT > 0.5, t=FLAT + 1.0, e=OTHER),
    "the second choice": lambda: ops.SelectV2(condition=FLAT > 0.5, t=OTHER, e=FLAT + 1.0),
    "a band": lambda: ops.MatrixBandPart(
        input=SQUARES + 1.0, num_lower=tf.constant(1), num_upper=tf.constant(1)
    ),
    "another diagonal": lambda: ops.MatrixSetDiagV3(
        input=SQUARES + 1.0, diagonal=tf.ones([16, 10]), k=tf.constant(0)
    ),
    "a sum": lambda: ops.AddN(inputs=[FLAT + 1.0, OTHER]),
    "a gradient of relu": lambda: ops.ReluGrad(gradients=FLAT + 1.0, features=OTHER),
    "a gradient of tanh": lambda: ops.TanhGrad(y=FLAT + 1.0, dy=OTHER),
    "softmax": lambda: ops.LogSoftmax(logits=FLAT + 1.0),
    "numbers rounded to fewer": lambda: ops.FakeQuantWithMinMaxArgs(inputs=FLAT + 1.0),
}
SHARED = {
    "rows of Slice": lambda: ops.Slice(input=ROWS + 1.0, begin=[16, 0], size=[32, 128]),
    "rows of StridedSlice": lambda: strided(ROWS + 1.0, 16, 48),
    "one row": lambda: (ROWS + 1.0)[3],
    "halves": lambda: tf.split(ROWS + 1.0, 2, axis=0),
    "parts": lambda: tf.split(ROWS + 1.0, [16, 48], axis=0),
    "each row": lambda: tf.unstack(tf.reshape(ROWS + 1.0, [2, 32, 128])),
    "extents of 1 that change places": lambda: tf.transpose(
        tf.reshape(FLAT + 1.0, [64, 1, 100]), [1, 0, 2]
    ),
    "equal extents that stay beside one of 1": lambda: tf.transpose(
        tf.reshape(SQUARES + 1.0, [16, 1, 16, 10]), [1, 0, 2, 3]
    ),
    "rows, written over": lambda: (ROWS + 1.0)[16:48] * 2.0,
    "a sum over an extent of 1": lambda: tf.reduce_sum(tf.reshape(FLAT + 1.0, [64, 1, 100]), 1),
}
NEW = {
    "nothing is written over labels": lambda: ops.SoftmaxCrossEntropyWithLogits(
        features=FLAT, labels=OTHER + 1.0
    ),
    "rows that would not be aligned": lambda: (FLAT + 1.0)[:32],
    "halves that would not be": lambda: tf.split(FLAT + 1.0, 2, axis=0),
    "every second row": lambda: strided(ROWS + 1.0, 0, 64, 2),
    "columns": lambda: (ROWS + 1.0)[:, :64],
    "one column of a square": lambda: (SQUARE + 1.0)[:, 3],
    "one column of rows of equal extent": lambda: (SQUARES + 1.0)[:, 0],
    "halves, one of which is written over": lambda: [
        half * 2.0 for half in tf.split(ROWS + 1.0, 2, axis=0)
    ],
    "halves of columns": lambda: tf.split(ROWS + 1.0, 2, axis=1),
    "unpacked columns": lambda: tf.unstack(tf.reshape(ROWS + 1.0, [32, 2, 128]), axis=1),
    "turned over": lambda: tf.transpose(FLAT + 1.0),
    "a square turned over": lambda: tf.transpose(SQUARES + 1.0, [1, 0, 2]),
    "running sums": lambda: ops.Cumsum(x=FLAT + 1.0, axis=tf.constant(0)),
    "updated rows": lambda: tf.tensor_scatter_nd_add(FLAT + 1.0, [[0]], [tf.ones([100])]),
    "numbers of another size": lambda: tf.cast(FLAT + 1.0, tf.bfloat16),
}


@pytest.mark.parametrize("case", [*WRITTEN_OVER, *SHARED])
def test_one_request_is_made_for_two(case):
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
