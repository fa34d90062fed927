"""Training steps of TensorFlow on the CPU, recorded and not."""

from statistics import median, quantiles
from time import perf_counter_ns

import keras
import tensorflow as tf

from tensorlens import record
from tensorlens.frameworks.tensorflow import cpu
from tests.benchmarks.side_by_side import Timing, Work, in_turn, show

STEPS = 20
READS = 20_000


def recorded_steps(run_eagerly: bool, width: int, rounds: int = 30) -> dict[str, Timing]:
    """Return the timings of a Keras train step: plain, and while a recording is on.

    The recording's beginning and end, which take about as long as a snapshot, are not in it.
    """
    step = _keras_step(run_eagerly, width)
    plain, recorded = [], []
    for _ in range(rounds):
        plain.append(_timed(step))
        with record(names=False):
            recorded.append(_timed(step))
    ratios = [own / first for own, first in zip(recorded, plain, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return {
        "plain": Timing(median(plain), 1.0, 1.0, 1.0),
        "recorded": Timing(median(recorded), median(ratios), low, high),
    }


def _timed(work: Work) -> int:
    begun = perf_counter_ns()
    work()
    return perf_counter_ns() - begun


def reads() -> dict[str, Timing]:
    """Return the timings of reading the counter."""
    read = cpu.cpu_counter().reader()

    def many() -> None:
        for _ in range(READS):
            read()

    return in_turn({"a read": many}, 10)


def _keras_step(run_eagerly: bool, width: int) -> Work:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
    model.compile("adam", "mse", run_eagerly=run_eagerly)
    data = tf.random.normal((128, 256)), tf.random.normal((128, 10))

    def step() -> None:
        for _ in range(STEPS):
            model.train_on_batch(*data)

    step()
    return step


def main() -> None:
    """Print all of them."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    show("reading the counter, a read", reads(), per=READS)
    for width in (512, 32):
        title = f"Keras train step in a graph, {width} wide, a step"
        show(title, recorded_steps(run_eagerly=False, width=width), per=STEPS)
    title = "Keras train step in eager code, 512 wide, a step"
    show(title, recorded_steps(run_eagerly=True, width=512, rounds=10), per=STEPS)


if __name__ == "__main__":
    main()
