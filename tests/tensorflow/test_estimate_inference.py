"""Shapes that are told from those of the inputs, against TensorFlow's own."""

import pytest
import tensorflow as tf

from tensorlens.planning.tensorflow.execution.inference import inferred
from tensorlens.planning.tensorflow.execution.live_values import Value
from tensorlens.planning.tensorflow.graph.optimizing import nodes_of

X = tf.TensorSpec([4, 6, 10])
Y = tf.TensorSpec([4, 10, 3])

CASES = {
    "rows": lambda x, y: x[1:3],
    "columns": lambda x, y: x[:, 2:],
    "from the end": lambda x, y: x[:, -4:-1, :7],
    "every second": lambda x, y: x[::2, 1::3],
    "backwards": lambda x, y: x[::-1, 4:0:-2],
    "an index": lambda x, y: x[:, 3],
    "indices": lambda x, y: x[-1, :, 2],
    "beyond the end": lambda x, y: x[3:9, 7:],
    "all": lambda x, y: tf.reduce_all(x > 0),
    "a sum": lambda x, y: tf.reduce_sum(x, axis=1),
    "a mean of two axes": lambda x, y: tf.reduce_mean(x, axis=[0, -1]),
    "a maximum that keeps its axis": lambda x, y: tf.reduce_max(x, axis=-1, keepdims=True),
    "a gradient of rows": lambda x, y: tf.raw_ops.StridedSliceGrad(
        shape=[9, 6, 10], begin=[5], end=[9], strides=[1], dy=x
    ),
    "finite": lambda x, y: tf.math.is_finite(x),
    "a cast": lambda x, y: tf.cast(x, tf.float16),
    "a sum of two": lambda x, y: x + y[:, :6, :1],
    "a product": lambda x, y: tf.matmul(x, y),
    "a transposed product": lambda x, y: tf.matmul(x, x, transpose_b=True),
    "joined": lambda x, y: tf.concat([x, x], axis=1),
    "split": lambda x, y: tf.split(x, 3, axis=1)[0],
    "a gradient of biases": lambda x, y: tf.raw_ops.BiasAddGrad(out_backprop=x),
}


def each_inferred(function):
    """Give each operation of a function with its shape, and the one that is told."""
    graph = tf.function(function).get_concrete_function(X, Y).graph
    nodes = nodes_of(graph.as_graph_def(), graph)
    for node in nodes:
        sources = [(nodes[number], slot) for number, slot in node.inputs]
        values = [
            Value(None, each.outputs[slot].shape, each.value, numbers=each.values)
            for each, slot in sources
        ]
        if node.outputs and values and node.op != "Identity":
            yield node.op, node.outputs[0].shape, inferred(node, values)


@pytest.mark.parametrize("case", CASES)
def test_shapes_are_tensorflows_own(case):
    found = list(each_inferred(CASES[case]))
    assert found
    for op, shape, told in found:
        # of comparisons only those of loops are followed, which are of scalars
        assert (op, told) == (op, None if op == "Greater" else shape)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x[..., 2:],
        lambda x, y: x[:, tf.newaxis],
        lambda x, y: tf.reduce_sum(x, axis=tf.cast(y[0, 0, 0], tf.int32)),
        lambda x, y: x[: tf.cast(y[0, 0, 0], tf.int32)],
    ],
)
def test_what_no_rule_is_for_is_not_known(function):
    *_, (_, _, told) = each_inferred(function)
    assert told is None
