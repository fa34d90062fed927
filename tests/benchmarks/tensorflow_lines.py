"""What `@profile` costs a training step of TensorFlow, in eager code and in a graph."""

from typing import Any

import keras
import tensorflow as tf

import tensorlens
from tests.benchmarks.side_by_side import Timing, Work, in_turn, show

STEPS = 5

_SOURCE = """
def step(model, loss_of, optimizer, x, y):
    with tf.GradientTape() as tape:
        predicted = model(x, training=True)
        loss = loss_of(y, predicted)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss
"""


def steps(width: int, *, graph: bool, rounds: int = 40) -> dict[str, Timing]:
    """Return the timings of training steps, plain and with a table of their lines."""
    profiler = tensorlens.LineProfiler()
    variants = {
        "plain": _step("plain", width, graph),
        "profiled": _step("profiled", width, graph, profiler),
    }
    timings = in_turn(variants, rounds)
    (function,) = profiler.result().functions
    assert function.execution == ("graph" if graph else "lines")
    return timings


def _step(
    name: str, width: int, graph: bool, profiler: tensorlens.LineProfiler | None = None
) -> Work:
    # a file of its own each: a profiler knows functions by their place in it
    names: dict[str, Any] = {"tf": tf}
    exec(compile(_SOURCE, f"<{name} {width} {graph}>", "exec"), names)
    # in its place, as a decorator puts it: else Python 3.11 looks for calls of what is inside
    function = names["step"] = names["step"] if profiler is None else profiler(names["step"])
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    x, y = tf.random.normal((128, 256)), tf.random.normal((128, 10))
    loss_of = keras.losses.MeanSquaredError()
    # autograph would want the source of it
    called = tf.function(function, autograph=False) if graph else function

    def work() -> None:
        for _ in range(STEPS):
            called(model, loss_of, optimizer, x, y)

    return work


def main() -> None:
    """Print all of them."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    for width in (512, 32):
        for graph in (False, True):
            way = "in a graph" if graph else "in eager code"
            show(f"step {way}, {width} wide", steps(width, graph=graph), per=STEPS)


if __name__ == "__main__":
    main()
