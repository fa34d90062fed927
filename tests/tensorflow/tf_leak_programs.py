"""Small programs that leave something behind in every step, with the truth about each.

Who can hold a tensor is tried with torch's (``tests/torch/leak_programs.py``); here is what holds
TensorFlow's and Keras's own objects.
"""

import dataclasses
import inspect
from collections.abc import Callable

import keras
import numpy
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Truth:
    """What is known of one leak: its line is marked ``# LEAK``, once for each that it has."""

    holder: str
    """What must be in the path that holds it."""
    tensors: float
    nbytes: float
    advice: str | None = None
    """What must be in the advice, where it is sure."""


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    make: Callable[[], Callable]
    """Returns the function that does one step."""
    truths: tuple[Truth, ...]

    def lines(self) -> list[int]:
        """Return the numbers of the marked lines, in order."""
        source, first = inspect.getsourcelines(self.make)
        marks = (line.partition("# ")[2].count("LEAK") for line in source)
        return [first + at for at, count in enumerate(marks) for _ in range(count)]


LEAKS: dict[str, Program] = {}

HANDLE = 200
"""Bytes of the tensor by which operations know a variable: one ResourceHandle."""


def leak(holder: str, tensors: float, nbytes: float, advice: str | None = None):
    """Add a program with one leak."""
    return leaks(Truth(holder, tensors, nbytes, advice))


def leaks(*truths: Truth):
    """Add a program; the truths are in the order of its marked lines."""

    def add(make):
        LEAKS[make.__name__] = Program(make.__name__, make, truths)
        return make

    return add


def filled(*shape):
    """Return a tensor of its own: small constants are shared."""
    return tf.fill(shape, 2.5)


HISTORY: list = []


@leak("HISTORY (global) -> list[", 1, 64, "HISTORY when it is no longer needed")
def module_global():
    def step():
        HISTORY.append(tf.fill((16,), 2.5))  # LEAK

    return step


@leak("losses (closure) -> list[", 1, 4, "float(")
def losses_in_a_list():
    losses = []
    x = filled(8, 4)

    def step():
        losses.append(tf.reduce_mean(x))  # LEAK

    return step


class Trainer:
    def __init__(self):
        self.outputs = {}
        self.tapes = []


@leak("Trainer.outputs (attribute) -> dict[", 1, 4 * 3 * 4)
def outputs_cached_by_step():
    trainer = Trainer()
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, use_bias=False)])
    x = filled(4, 5)

    def step(number):
        trainer.outputs[number] = model(x)  # LEAK

    return step


@leak("a holder outside of Python -> list[", 1, 4 * 6 * 4)
def persistent_tapes_kept():
    tapes = []
    weight = tf.Variable(filled(4, 6))

    def step():
        with tf.GradientTape(persistent=True) as tape:
            squared = tf.exp(weight)  # LEAK
            tf.reduce_sum(squared)
        tapes.append(tape)

    return step


@leak("a holder outside of Python -> list[", 1, 9 * 4)
def tapes_on_self():
    trainer = Trainer()
    weight = tf.Variable(filled(9))

    def step():
        with tf.GradientTape() as tape:
            tf.reduce_sum(tf.exp(weight))  # LEAK
        trainer.tapes.append((tape, "step"))

    return step


@leak("gradients (closure) -> list[", 1, 4 * 3 * 4)
def gradients_kept():
    gradients = []
    weight = tf.Variable(filled(4, 3))
    x = filled(2, 4)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, weight))
        gradients.append(tape.gradient(loss, [weight]))  # LEAK

    return step


@leak("variables (closure) -> list[", 1, 22 * 4 + HANDLE)
def variables_made_in_each_step():
    variables = []

    def step():
        variables.append(tf.Variable(tf.fill((22,), 2.5)))  # LEAK

    return step


@leak("Holder.variables_ (attribute)", 1, 23 * 4 + HANDLE)
def variables_on_a_module():
    class Holder(tf.Module):
        def __init__(self):
            super().__init__()
            self.variables_ = []

    holder = Holder()

    def step():
        holder.variables_.append(tf.Variable(tf.fill((23,), 2.5)))  # LEAK

    return step


class KeepsOutputs(keras.callbacks.Callback):
    def __init__(self, x):
        super().__init__()
        self.x = x
        self.outputs = []

    def on_epoch_end(self, epoch, logs=None):
        self.outputs.append(self.model(self.x))


def dense(units=3, inputs=5, **options):
    model = keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(units, use_bias=False)])
    model.compile("sgd", "mse", **options)
    return model


def fit(model, callbacks=(), rows=4):
    x, y = numpy.ones((rows, 5), "float32"), numpy.ones((rows, 3), "float32")
    return model.fit(x, y, verbose=0, callbacks=list(callbacks))


@leak("Keeps.outputs (attribute) -> list[", 1, 4 * 3 * 4)
def callback_that_keeps_outputs():
    model, x = dense(), filled(4, 5)

    class Keeps(KeepsOutputs):
        def on_epoch_end(self, epoch, logs=None):
            self.outputs.append(self.model(self.x))  # LEAK

    keeps = Keeps(x)
    return lambda: fit(model, [keeps])


@leak("KeepsWeights.weights (attribute) -> list[", 1, 5 * 3 * 4)
def callback_that_keeps_weights():
    model = dense()

    class KeepsWeights(keras.callbacks.Callback):
        weights = ()

        def on_epoch_end(self, epoch, logs=None):
            copies = [tf.identity(each) + 0 for each in self.model.weights]  # LEAK
            self.weights = [*self.weights, copies]

    keeps = KeepsWeights()
    return lambda: fit(model, [keeps])


@leak("Seen.values (attribute)", 1, 4 * 3 * 4)
def metric_that_is_never_reset():
    class Seen(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.values = {}

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.values[len(self.values)] = y_pred + 1.0  # LEAK

        def result(self):
            return 0.0

    seen, y = Seen(), filled(4, 3)
    return lambda: seen.update_state(y, y)


@leaks(
    Truth("optimizers (closure) -> list[", 1, 8 + HANDLE, "make the optimizer once"),
    Truth("SGD._learning_rate (attribute) -> its handle", 1, HANDLE),
    Truth("SGD.momentums", 1, 5 * 3 * 4 + HANDLE, "make the optimizer once"),
)
def optimizers_made_in_each_step():
    optimizers = []
    weight = keras.Variable(filled(5, 3))

    def step():
        # the number of iterations, and the rate, whose value all of them share
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)  # LEAK LEAK
        optimizer.build([weight])  # LEAK
        optimizers.append(optimizer)

    return step


@leak("models (closure) -> list[", 1, 5 * 3 * 4 + HANDLE)
def models_made_in_each_step():
    models = []

    def step():
        layer = keras.layers.Dense(3, use_bias=False, kernel_initializer="ones")
        layer.build((None, 5))  # LEAK
        models.append(layer)

    return step


@leak("arrays (closure) -> list[", 1, 1000 * 4)
def arrays_that_show_tensors():
    arrays = []

    def step():
        arrays.append(numpy.asarray(memoryview(tf.fill((1000,), 2.5))))  # LEAK

    return step


@leak("rows (closure) -> list[", 1, 64 * 16 * 4, "keep .numpy()")
def small_slices_of_large_tensors():
    rows = []

    def step():
        batch = tf.fill((64, 16), 2.5)  # LEAK
        rows.append(batch[0])

    return step


@leak("kept (closure)", 0, 32, "tf.concat")
def concatenated():
    kept = tf.fill((8,), 2.5)

    def step():
        nonlocal kept
        kept = tf.concat([kept, tf.fill((8,), 2.5)], 0)  # LEAK

    return step


@leak("values (closure)", 0, 32)
def variable_that_gets_longer():
    values = tf.Variable(tf.fill((8,), 2.5), shape=tf.TensorShape([None]))

    def step():
        values.assign(tf.concat([values, tf.fill((8,), 2.5)], 0))  # LEAK

    return step


@leak("_EagerTensorArray._tensor_array (attribute) -> list[", 1, 24)
def tensor_array():
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True, clear_after_read=False)

    def step(number):
        nonlocal array
        array = array.write(number, tf.fill((6,), 2.5))  # LEAK

    return step


@leaks(
    Truth("pairs (closure) -> list[", 1, 3 * 2 * 8),
    Truth("pairs (closure) -> list[", 1, 3 * 4),
    Truth("SparseTensor._dense_shape", 1, 2 * 8),
)
def sparse_tensors():
    pairs = []

    def step():
        indices = tf.random.uniform((3, 2), maxval=4, dtype=tf.int64)  # LEAK
        values = tf.fill((3,), 2.5)  # LEAK
        pairs.append(tf.SparseTensor(indices, values, (4, 4)))  # LEAK

    return step


@leak("kept (closure) -> list[", 1, 4 * 7)
def outputs_of_graph_functions():
    kept = []

    @tf.function
    def forward(x):
        return tf.exp(x) * 3.0

    x = filled(7)

    def step():
        kept.append(forward(x))  # LEAK

    return step


@leak("functions (closure) -> list[", 1, 33 * 4)
def functions_that_captured_tensors():
    functions = []

    def step():
        table = tf.fill((33,), 2.5)  # LEAK
        functions.append(lambda x: x + table)

    return step


@leak("", 1, 128)
def fifo_queue():
    waiting = tf.queue.FIFOQueue(1000, tf.float32)

    def step():
        waiting.enqueue(tf.fill((32,), 2.5))  # LEAK

    return step


@leaks(
    Truth("Function._function_cache (attribute)", 1, 1000 * 4),
    # the number itself, a constant of the graph
    Truth("", 1, 4),
)
def captured_by_each_trace():
    @tf.function
    def forward(number):
        return table[0] * number

    table = [None]

    def step(number):
        table[0] = tf.fill((1000,), 2.5)  # LEAK
        forward(number)  # LEAK

    return step


@leaks(Truth("", 1, 4))
def retraced_for_python_numbers():
    @tf.function
    def scaled(x, number):
        return x * number

    x = filled(8)

    def step(number):
        scaled(x, number)  # LEAK

    return step


@leak("functions (closure) -> list[", 1, 3 * 4)
def functions_made_in_each_step():
    functions = []

    def step():
        x = tf.fill((3,), 2.5)  # LEAK
        function = tf.function(lambda: x)
        function()
        functions.append(function)

    return step
