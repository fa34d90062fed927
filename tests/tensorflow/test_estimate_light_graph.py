"""Graphs that are built with less work have the same operations, made by the same lines."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from tensorlens.frameworks.tensorflow.estimate.light_graph import LightGraph, built_lightly
from tensorlens.frameworks.tensorflow.graphs.frames import of_operations

WEIGHT = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
SHORT, LONG = tf.zeros((2, 3)), tf.zeros((4, 5))


@tf.function
def squared(value):
    return value * value


def doubled(value):
    while True:
        value = value + value
        yield value


def step():
    """Uses variables, constants, lists, names, functions, gradients and orders."""
    given = tf.compat.v1.placeholder(tf.float32, (2, 2))
    with tf.GradientTape() as tape:
        state = given
        for _ in range(3):
            with tf.name_scope("cell"):
                left, right = tf.split(tf.matmul(state, WEIGHT), 2, axis=1)
                state = tf.concat([tf.tanh(left), tf.nn.sigmoid(right)], 1, name="gates")
        loss = tf.reduce_sum(squared(tf.nn.dropout(state, 0.5, seed=1)))
    gradient = tape.gradient(loss, WEIGHT)
    with tf.control_dependencies([loss]), tf.device("/CPU:0"):
        WEIGHT.assign_sub(gradient * 0.1)
    with tf.compat.v1.get_default_graph().as_default(), tf.init_scope():
        eager = tf.constant(1.0) + 1.0
    made = doubled(tf.add_n([state, state]) + eager)
    next(made)
    return next(made)


def built(function, *, lightly):
    graph = FuncGraph("step")
    with graph.as_default(), built_lightly(graph) if lightly else nullcontext():
        function()
    return graph


def lines_of(graph):
    return of_operations({each.name: each.traceback for each in graph.get_operations()})


def test_operations_and_the_lines_that_made_them_are_the_same():
    squared.get_concrete_function(tf.TensorSpec((2, 2)))
    plain, light = (built(step, lightly=each) for each in (False, True))
    assert light.as_graph_def() == plain.as_graph_def()
    assert len(light.get_operations()) > 60
    assert lines_of(light) == lines_of(plain)
    files = [{frame.filename for frame in frames} for frames in lines_of(light).values()]
    assert all(__file__ in each for each in files)


def test_a_generator_that_goes_on_elsewhere_is_on_another_stack():
    def resumed():
        made = doubled(tf.zeros(2))
        next(made)
        next(made)

    graph = built(resumed, lightly=True)
    first, second = (lines_of(graph)[name] for name in ("add", "add_1"))
    assert first[0] == second[0]
    assert second[1].lineno == first[1].lineno + 1


def test_what_one_line_makes_in_a_loop_has_one_trace():
    def summed():
        value = tf.zeros(2)
        for _ in range(5):
            value = tf.raw_ops.Neg(x=value)

    for lightly, different in ((True, 1), (False, 5)):
        operations = built(summed, lightly=lightly).get_operations()
        traces = [each.traceback for each in operations if each.type == "Neg"]
        assert len({id(each) for each in traces}) == different


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [("MatMul", {"a": SHORT, "b": LONG}), ("ConcatV2", {"values": [SHORT, LONG], "axis": 0})],
)
def test_what_cannot_be_added_is_refused_in_the_same_words(kind, arguments):
    told = []
    for lightly in (False, True):
        with pytest.raises(ValueError, match=r"must be equal|should match") as raised:
            built(lambda: getattr(tf.raw_ops, kind)(**arguments), lightly=lightly)
        told.append(str(raised.value))
    assert told[0] == told[1]


def test_a_graph_is_what_it_was_also_after_an_error():
    graph = FuncGraph("step")
    with pytest.raises(KeyError), graph.as_default(), built_lightly(graph):
        assert isinstance(graph, LightGraph)
        raise KeyError
    assert type(graph) is FuncGraph


def test_nothing_that_ran_while_it_was_built_is_kept():
    class Local:
        pass

    found = []

    def ran():
        local = Local()
        found.append(weakref.ref(local))
        tf.zeros(2) + 1.0

    graph = built(ran, lightly=True)
    gc.collect()
    assert graph.get_operations()
    assert found[0]() is None
