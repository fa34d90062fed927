"""Line tables of eager TensorFlow: bytes derived by hand."""

import gc

import keras
import pytest
import tensorflow as tf
from line_checks import eager_table, tables

import tensorlens
from tensorlens import LineProfiler
from tensorlens.frameworks.tensorflow import cpu_counter

FLOAT = 4
SQUARE = 64 * 64 * FLOAT


def square(value=1.0):
    return tf.fill((64, 64), value)


def test_a_profiled_layer_that_makes_its_weights_when_it_is_called():
    with LineProfiler() as profiler:

        @keras.saving.register_keras_serializable()
        class Linear(keras.layers.Layer):
            @profiler
            def __init__(self, units=32, **kwargs):
                super().__init__(**kwargs)
                self.units = units

            @profiler
            def build(self, input_shape):
                self.w = self.add_weight(shape=(input_shape[-1], self.units))

            @profiler
            def call(self, inputs):
                return keras.ops.matmul(inputs, self.w)

        layer = Linear(8)
        assert layer(square()).shape == (64, 8)
        assert layer.get_config()["units"] == 8
    functions = {each.name: each for each in profiler.result().functions}
    assert functions["build"].calls == functions["call"].calls == 1


def test_matmul_view_and_release():
    def work(x):
        a = x @ x
        view = tf.reshape(a, (32, 128))
        b = tf.exp(a)
        del a
        del view
        return b

    table = eager_table(work, square())
    assert table.net("a = x @ x") == SQUARE
    # a matrix product of this size takes no scratch from TensorFlow
    assert table.room("a = x @ x") == SQUARE
    assert table.net("view = tf.reshape") == 0
    assert table.net("b = tf.exp(a)") == SQUARE
    assert table.net("del a") == 0
    assert table.net("del view") == -SQUARE
    assert table.line("return b").hits == 1


def test_levels_are_the_process_own():
    allocated = cpu_counter().allocated

    def work():
        kept = square()
        levels.append(allocated())
        return kept

    levels = []
    table = eager_table(work)
    assert table.memory("kept = square()").allocated == levels[-1]


def test_convolution_scratch_is_freed_at_once():
    def work(image, kernel):
        result = tf.nn.conv2d(image, kernel, 1, "SAME")
        return result

    table = eager_table(work, tf.fill((2, 16, 16, 8), 1.0), tf.fill((3, 3, 8, 4), 1.0))
    assert table.net("tf.nn.conv2d") == 2 * 16 * 16 * 4 * FLOAT
    # how much scratch is the kernel's affair; that it is there is what the peak tells
    assert table.room("tf.nn.conv2d") >= 2 * 16 * 16 * 4 * FLOAT


def test_assigning_to_variables():
    def work(variable):
        variable.assign(square(2.0))
        variable.assign_add(square(1.0))
        read = variable.read_value()
        variable.assign_add(square(1.0))
        return read

    variable = tf.Variable(square())
    table = eager_table(work, variable, warm=False)
    # the new value takes the place of the old one
    assert table.net("variable.assign(square(2.0))") == 0
    assert table.room("variable.assign(square(2.0))") >= SQUARE
    assert table.net("read = variable") == 0
    counted = [line for line in table.function.lines if "assign_add" in line.source]
    assert [line.memory["cpu"].net for line in counted] == [0, SQUARE]


def test_a_tape_keeps_what_its_gradients_need():
    def work(x, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            h = x @ w
            y = tf.exp(h)
        del h
        del y
        del tape

    table = eager_table(work, square(0.01), square(0.01))
    assert table.net("h = x @ w") == SQUARE
    assert table.net("y = tf.exp(h)") == SQUARE
    # exp's gradient needs its result and not what it was given
    assert table.net("del h") == -SQUARE
    assert table.net("del y") == 0
    assert table.net("del tape") == -SQUARE


@pytest.mark.parametrize("persistent", [False, True])
def test_a_persistent_tape_keeps_it_after_the_gradient(persistent):
    def work(x, w):
        tape = tf.GradientTape(persistent=persistent)
        with tape:
            tape.watch(w)
            total = tf.reduce_sum(tf.exp(x @ w))
        gradient = tape.gradient(total, w)
        del tape
        return gradient

    table = eager_table(work, square(0.01), square(0.01))
    # what exp gave stays, what it was given goes
    assert table.net("total = tf.reduce_sum") in (SQUARE + 4, SQUARE + 4 + 8)
    given_back = 0 if persistent else SQUARE
    spare = abs(table.net("gradient = tape.gradient") - (SQUARE - given_back))
    assert spare <= 64  # shapes and the sum's own gradient
    assert abs(table.net("del tape") - (given_back - SQUARE)) <= 64


def test_layers_and_models_are_profiled_by_their_call():
    layer = keras.layers.Dense(64, use_bias=False)
    x = square()
    layer(x)
    gc.collect()
    with LineProfiler(layer) as profiler:
        layer(x)
    (table,) = tables(profiler.result()).values()
    assert table.function.qualname == "Dense.call"
    assert table.net("ops.matmul(inputs, self.kernel)") == SQUARE

    wrapped = tensorlens.LineProfiler()
    assert wrapped(layer) is layer
    layer(x)
    (table,) = tables(wrapped.result()).values()
    assert table.function.calls == 1


class Doubling(keras.Model):
    def __init__(self, profiler):
        super().__init__()
        self.dense = keras.layers.Dense(64, use_bias=False)
        self.steps = []

    def call(self, x):
        y = self.dense(x)
        return tf.exp(y)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def test_methods_under_fit_that_runs_eagerly():
    profiler = LineProfiler()
    originals = Doubling.call, Doubling.train_step
    Doubling.call, Doubling.train_step = map(profiler, originals)
    try:
        model = Doubling(profiler)
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(square(0.01), square(), batch_size=64, epochs=1, verbose=0)
        profiler.clear()
        model.fit(square(0.01), square(), batch_size=64, epochs=3, verbose=0)
    finally:
        Doubling.call, Doubling.train_step = originals
    found = tables(profiler.result())
    assert tables(profiler.result(), "graph") == {}
    assert found["call"].line("y = self.dense(x)").hits == 3
    assert found["call"].memory("y = self.dense(x)").net_max == SQUARE
    assert found["call"].memory("return tf.exp(y)").net_max == SQUARE
    step = found["train_step"]
    assert step.function.calls == 3
    # what the matrix product gave is no use to exp's gradient
    assert step.memory("predicted = self(x)").net_max == SQUARE
    # the gradient of the one weight, and the activations given back
    assert step.memory("apply_gradients").net_max <= 0
