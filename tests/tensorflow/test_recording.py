"""What TensorFlow hands out, recorded: eager code, graph functions, and Keras's fit."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from interrupting import Interrupted, interrupt_once

import tensorlens
from tensorlens.frameworks.tensorflow import cpu, eager_gradients

FLOAT = 4
LONG = 8
HANDLE = 200
"""Bytes of what operations know a variable by."""


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def at(line):
    return None if line is None else line.lineno if line.filename == __file__ else line


def bytes_by_line(recording):
    found = {}
    for event in recording.events:
        if event.action == "alloc":
            user = next((frame for frame in event.stack if frame.user), None)
            key = None if user is None else user.lineno
            found[key] = found.get(key, 0) + event.nbytes
    return found


def test_eager_operations_go_to_their_lines():
    value = tf.fill((200, 100), 1.0)
    with tensorlens.record(names=False) as recording:
        product = tf.matmul(value, value, transpose_b=True)  # the product
        root = tf.sqrt(product)  # the root
        del product, root
    found = bytes_by_line(recording)
    assert found[line_of("# the " + "product")] == 200 * 200 * FLOAT
    assert found[line_of("# the " + "root")] == 200 * 200 * FLOAT
    assert recording.events[-1].action == "free"
    assert recording.peak("cpu").bytes >= 2 * 200 * 200 * FLOAT + 200 * 100 * FLOAT


@tf.function
def squares(value):
    product = tf.matmul(value, value)  # inside of a graph
    return tf.reduce_sum(tf.tanh(product))  # summed in a graph


def test_nodes_of_a_graph_go_to_the_lines_that_made_them():
    value = tf.fill((150, 150), 0.5)
    squares(value)
    with tensorlens.record(names=False) as recording:
        squares(value)  # the call
    found = bytes_by_line(recording)
    # tanh works in place of what it reads
    assert found[line_of("# inside " + "of a graph")] == 150 * 150 * FLOAT
    big = [event for event in recording.events if event.nbytes == 150 * 150 * FLOAT]
    made = next(event for event in big if event.action == "alloc")
    assert made.context.phase == "forward"
    # outside of the node's own lines is the line that called the function
    assert line_of("# the " + "call") in [frame.lineno for frame in made.stack]
    assert not any("tensorlens" in Path(frame.filename).parts[-2:] for frame in made.stack)


def test_backward_in_a_graph_goes_to_its_forward_line():
    weight = tf.Variable(tf.fill((64, 32), 0.1))

    @tf.function
    def step(value):
        with tf.GradientTape() as tape:
            hidden = tf.matmul(value, weight)  # forward product
            loss = tf.reduce_sum(tf.square(hidden))  # forward square
        return tape.gradient(loss, weight)  # asks for it

    value = tf.fill((16, 64), 1.0)
    step(value)
    with tensorlens.record(names=False) as recording:
        kept = step(value)
    costs = {at(cost.line): cost for cost in recording.backward("cpu")}
    # what backward begins with belongs to no operation
    lines = ("# forward " + "product", "# forward " + "square", "# asks " + "for it")
    assert set(costs) <= {line_of(text) for text in lines}
    # the weight's gradient is what the product costs again
    assert costs[line_of("# forward " + "product")].nbytes == 64 * 32 * FLOAT
    assert kept.shape == (64, 32)


def test_eager_gradients_go_to_their_forward_lines():
    weight = tf.Variable(tf.fill((64, 32), 0.1))
    value = tf.fill((16, 64), 1.0)
    with tensorlens.record(names=False) as recording:
        with tf.GradientTape() as tape:
            hidden = tf.matmul(value, weight)  # eager product
            loss = tf.tanh(hidden)  # eager tanh
        kept = tape.gradient(loss, weight)  # eager gradient
    costs = {at(cost.line): cost.nbytes for cost in recording.backward("cpu")}
    assert costs == {
        line_of("# eager " + "product"): 64 * 32 * FLOAT,
        line_of("# eager " + "tanh"): 16 * 32 * FLOAT,
        # the ones that backward begins with, which belong to no operation, and their shape
        line_of("# eager " + "gradient"): 16 * 32 * FLOAT + 2 * 4,
    }
    assert kept.shape == (64, 32)


def test_a_call_that_another_thread_has_not_returned_from_is_none_of_these_operations():
    inside, done = threading.Event(), threading.Event()

    def wait():
        inside.set()
        done.wait(60)
        return 1.0

    @tf.function
    def waits():
        return tf.py_function(wait, [], tf.float32)

    squares(tf.fill((8, 8), 0.5))
    # whose call is known, as it began while something recorded
    with tensorlens.record(names=False):
        thread = threading.Thread(target=waits)
        thread.start()
        assert inside.wait(60)
    value = tf.fill((16, 32), 0.1)
    with tensorlens.record(names=False) as recording:
        made = tf.tanh(value)  # beside a call
    done.set()
    thread.join()
    found = bytes_by_line(recording)
    assert found[line_of("# beside " + "a call")] == 16 * 32 * FLOAT
    assert line_of("# summed " + "in a graph") not in found
    assert made.shape == value.shape


@pytest.mark.parametrize("moment", ["tl_call_begins", "tl_end"])
def test_a_call_that_is_interrupted_is_over(monkeypatch, moment):
    value = tf.fill((8, 8), 0.5)
    squares(value)
    with tensorlens.record(names=False):
        interrupt_once(monkeypatch, cpu.install().library, moment)
        with pytest.raises(Interrupted):
            squares(value)
    with tensorlens.record(names=False) as recording:
        made = tf.tanh(value)  # after a call
    assert bytes_by_line(recording) == {line_of("# after " + "a call"): 8 * 8 * FLOAT}
    assert made.shape == value.shape


def test_a_time_limit_that_ends_while_a_gradient_is_noted_reaches_the_program(monkeypatch):
    def limit(number, frame):
        raise TimeoutError("over")

    before = signal.signal(signal.SIGUSR1, limit)
    monkeypatch.setattr(
        eager_gradients, "read_tensor", lambda tensor: signal.raise_signal(signal.SIGUSR1)
    )
    weight = tf.Variable(tf.fill((8, 8), 0.1))
    try:
        with tensorlens.record(names=False), tf.GradientTape() as tape:
            first = tf.exp(weight)
            with pytest.raises(TimeoutError, match="over"):
                tape.gradient(first, weight)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_gradients_of_gradients():
    weight = tf.Variable(tf.fill((8, 8), 0.1))
    with tensorlens.record(names=False) as recording:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                first = tf.exp(weight)  # inner exp
            slope = inner.gradient(first, weight)
        curve = outer.gradient(slope, weight)
    assert curve.shape == (8, 8)
    assert sum(recording.backward_by_line.values()) > 0
    assert line_of("# inner " + "exp") in {at(line) for line in recording.backward_by_line}


def small_model():
    keras.utils.clear_session()
    return keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(128, activation="relu", name="wide"),
            keras.layers.Dense(4, name="narrow"),
        ]
    )


def test_keras_fit_by_layer_and_name():
    model = small_model()
    optimizer = keras.optimizers.Adam()
    model.compile(optimizer, "mse")
    data = np.zeros((64, 32), "float32"), np.zeros((64, 4), "float32")
    model.fit(*data, verbose=0, batch_size=64)
    with tensorlens.record(model, optimizer) as recording:
        model.fit(*data, verbose=0, batch_size=64)
    names = {block.name: block for block in recording.peak("cpu").tensors}
    kernel = names["sequential/wide/kernel"]
    assert (kernel.role, kernel.nbytes) == ("parameter", 32 * 128 * FLOAT)
    slot = next(block for name, block in names.items() if name.endswith("wide/kernel.velocity"))
    assert (slot.role, slot.nbytes) == ("optimizer", 32 * 128 * FLOAT)
    backward = recording.backward_by_module
    # of the wide layer the gradient of its kernel and of its bias, and through relu; the last is
    # in place of what comes in
    assert backward["sequential/wide"] >= 32 * 128 * FLOAT + 128 * FLOAT
    assert backward["sequential/narrow"] >= 128 * 4 * FLOAT + 4 * FLOAT + 64 * 128 * FLOAT
    phases = {event.context.phase for event in recording.events}
    assert {"forward", "backward", "optimizer"} <= phases


def test_weights_are_parameters_whatever_becomes_of_them():
    """An update copies a weight that another node still reads: no value lasts to the end."""
    data = np.zeros((640, 32), "float32"), np.zeros((640, 4), "float32")
    keras.utils.clear_session()
    gc.collect()  # models of other tests
    with tensorlens.record() as recording:
        recording.mark("start")
        model = small_model()
        model.compile("adam", "mse")
        batches = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: recording.mark(f"batch {batch}")
        )
        model.fit(*data, verbose=0, batch_size=64, callbacks=[batches])
    weights = {weight.value.numpy().nbytes for weight in model.trainable_weights}
    assert len(weights) == 4
    moments = [recording.at(f"batch {batch}") for batch in range(10)]
    for moment in moments:
        # not models of other tests, which may be there and go at any time; a thread of the runtime
        # may not have freed yet what the step before has replaced, which is as large
        made = [block for block in moment.tensors if block.age_ns is not None]
        assert {block.nbytes for block in made if block.role == "parameter"} == weights
    names = {block.name for moment in moments for block in moment.tensors}
    parts = "VarHandleOp", "Assign"
    assert not [name for name in names if any(part in name for part in parts)]


def test_eager_layers_are_modules():
    model = small_model()
    value = tf.fill((64, 32), 1.0)
    model(value)
    with tensorlens.record(names=False) as recording:
        kept = model(value)
    modules = {event.module for event in recording.events if event.action == "alloc"}
    assert {"sequential/wide", "sequential/narrow"} <= modules
    assert kept.shape == (64, 4)


def test_autograph_lines_count_for_their_caller():
    layer = keras.layers.Dense(4)
    layer.build((None, 8))
    optimizer = keras.optimizers.SGD(momentum=0.9)

    @tf.function
    def train(value):
        if tf.reduce_sum(value) > 0.0:
            value = value + 1.0
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(value))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply(gradients, layer.trainable_variables)

    with tensorlens.record() as recording:
        train(tf.fill((2, 8), 1.0))  # makes a slot of each weight
    lines = [
        next(frame for frame in event.stack if frame.user)
        for event in recording.events
        if event.action == "alloc" and event.nbytes == HANDLE and event.context.op == "VarHandleOp"
    ]
    assert {line.filename for line in lines} == {__file__}
    # the slots of the kernel and of the bias
    assert [line.lineno for line in lines] == [line_of("# makes a slot " + "of each weight")] * 2
    births = [each.born for each in tensorlens.MemReporter(optimizer).snapshot().tensors]
    assert lines[0].lineno in {line.lineno for line in births if line}
    assert not [line for line in births if line and "autograph" in line.filename]


@tf.function
def gradients_of_two_reductions(value):
    with tf.GradientTape() as tape:
        tape.watch(value)
        total = tf.reduce_sum(value)
        mean = tf.reduce_mean(value)
        loss = total * mean
    return tape.gradient(loss, value)  # asks for gradients


def test_a_gradient_of_one_of_several_lines_goes_to_where_gradients_are_asked_for():
    """What fills the shape of a reduction's input is named alike for all of a scope."""
    value = tf.fill((64, 32), 1.0)
    gradients_of_two_reductions(value)
    with tensorlens.record() as recording:
        gradients_of_two_reductions(value)  # the call
    by_line = {at(line): nbytes for line, nbytes in recording.backward_by_line.items()}
    assert line_of("# the " + "call") not in by_line
    assert by_line[line_of("# asks for " + "gradients")] >= 64 * 32 * FLOAT


BEFORE_KERAS = """
import tensorflow as tf
from tensorflow import keras

narrow = keras.layers.Dense(4, name="narrow")
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(128, name="wide"), narrow])
made = model(tf.fill((64, 32), 1.0))

import tensorlens
tensorlens.estimate(model, batch_size=2, optimizer="sgd", loss="mse")
"""


def test_eager_layers_are_modules_where_the_recording_began_before_keras(tmp_path):
    (tmp_path / "layers.py").write_text(BEFORE_KERAS)
    kept = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}
    run = subprocess.run(
        [sys.executable, "-m", "tensorlens", "run", "--record", "run.tlens", "layers.py"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    # an estimate logs no session of each graph
    assert not [line for line in run.stderr.splitlines() if "session" in line or "GPUs" in line]
    events = tensorlens.load(tmp_path / "run.tlens").events
    made = [each for each in events if each.action == "alloc"]
    for units, layer in ((128, "sequential/wide"), (4, "sequential/narrow")):
        assert {each.module for each in made if each.nbytes == 64 * units * FLOAT} == {layer}


def test_recordings_of_many_threads():
    def work():
        for _ in range(50):
            squares(tf.fill((20, 20), 1.0))

    squares(tf.fill((20, 20), 1.0))
    with tensorlens.record(names=False) as recording:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    allocs = [event for event in recording.events if event.action == "alloc"]
    # the operand and the product, once a call each
    assert sum(event.nbytes == 20 * 20 * FLOAT for event in allocs) == 2 * 4 * 50


def test_recording_leaves_no_hooks():
    from tensorflow.python.eager import backprop, context

    method = context.Context.call_function
    with tensorlens.record():
        squares(tf.fill((30, 30), 1.0))
    assert context.Context.call_function is method
    with tf.GradientTape() as tape:
        variable = tf.Variable(1.0)
        loss = variable * variable
    assert float(tape.gradient(loss, variable)) == 2.0
    assert backprop._gradient_function.__module__ == "tensorflow.python.eager.backprop"


def test_pipeline_tensors_between_calls_are_batches():
    rows = tf.data.Dataset.range(64).map(lambda row: tf.fill((1000,), row)).prefetch(8)
    with tensorlens.record() as recording:
        for row in rows:
            last = row
    made = [held for held in recording.peak("cpu").tensors if held.nbytes == 1000 * LONG]
    assert {(held.name, held.role) for held in made} == {("batch of tf.data", "input")}
    assert last.shape == (1000,)
