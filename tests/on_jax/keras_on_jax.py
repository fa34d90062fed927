"""Run in a process of its own, with JAX as Keras's backend; prints what was seen as JSON."""

import contextlib
import gc
import io
import json
import sys

import keras
import numpy as np

import tensorlens
from tests.aside import set_libraries_aside

SEEN = {}
reporter = tensorlens.MemReporter()
empty = reporter.snapshot()
from jax._src import xla_bridge  # noqa: E402

SEEN["untouched"] = [xla_bridge.backends_are_initialized(), len(empty.tensors), empty.notes]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

X, Y = np.ones((12, 8), "float32"), np.ones((12, 2), "float32")


def rows(snapshot):
    return [
        [each.name, each.role, each.nbytes]
        for each in snapshot.tensors
        if each.alias_of is None and each.role != "other"
    ]


def model():
    made = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(4, "tanh", kernel_initializer="ones", name="first"),
            keras.layers.Dropout(0.5, seed=7, name="drop"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(2, kernel_initializer="ones", name="last"),
        ],
        name="net",
    )
    made.compile(loss="mse", optimizer=keras.optimizers.Adam())
    return made


def trained(net, **options):
    """Fit without TensorFlow, which Keras imports to seed it."""
    return net.fit(X, Y, shuffle=False, verbose=0, **options)


class Looks(keras.callbacks.Callback):
    """Takes a snapshot wherever a callback is called."""

    def __init__(self, net):
        super().__init__()
        # self.model has Keras fill the variables first
        self.net = net
        self.seen = {}

    def look(self, moment):
        before = [each._value is None for each in self.net.variables]
        found = tensorlens.MemReporter(self.net, self.net.optimizer).snapshot()
        assert before == [each._value is None for each in self.net.variables]
        self.seen[moment] = [rows(found), all(before)]

    def on_train_batch_begin(self, batch, logs=None):
        self.look(f"batch {batch} begins")

    def on_train_batch_end(self, batch, logs=None):
        self.look(f"batch {batch} ends")

    def on_test_batch_end(self, batch, logs=None):
        self.look("validation")

    def on_epoch_end(self, epoch, logs=None):
        self.look("epoch ends")


def names_wherever_one_looks():
    net = model()
    looks = Looks(net)
    SEEN["before"] = rows(tensorlens.MemReporter(net, net.optimizer).snapshot())
    watched = trained(net, batch_size=6, callbacks=[looks], validation_data=(X, Y))
    gc.collect()
    after = tensorlens.MemReporter(net, net.optimizer).snapshot()
    SEEN["after"], SEEN["looks"] = rows(after), looks.seen
    buffers = {each.unsafe_buffer_pointer(): each.nbytes for each in jax.live_arrays()}
    ledger = after.ledger["cpu"]
    SEEN["balance"] = [ledger.named - sum(buffers.values()), ledger.unnamed, ledger.allocated]
    SEEN["born"] = sorted({each.born.function for each in after.tensors if each.role != "other"})
    twin = model()
    plain = trained(twin, batch_size=6, validation_data=(X, Y))
    SEEN["same"] = plain.history == watched.history and all(
        np.array_equal(a, b) for a, b in zip(net.get_weights(), twin.get_weights(), strict=True)
    )


def metrics_of_ones_own():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.dense = keras.layers.Dense(2)
            self.seen = keras.metrics.Mean(name="seen")

        def call(self, x):
            return self.dense(x)

        @property
        def metrics(self):
            return [self.seen, *super().metrics]

    net = Own()
    looks = Looks(net)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(momentum=0.9))
    net.compile(loss="mse", optimizer=scaled, metrics=["mae"])
    trained(net, callbacks=[looks])
    SEEN["own"] = [
        each
        for each in looks.seen["batch 0 ends"][0]
        if each[0].startswith(("own/", "LossScaleOptimizer.", "SGD.", "seen/"))
    ]


def callback():
    net, kept = model(), []

    class Keeps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kept.append(keras.ops.zeros((25,)))

    memory = tensorlens.keras.MemoryCallback(file=io.StringIO())
    trained(net, batch_size=1)
    ended = trained(net, batch_size=1, epochs=6, callbacks=[memory, Keeps()])
    SEEN["history"] = {key: each for key, each in ended.history.items() if key != "loss"}
    SEEN["growth"] = [each.nbytes for each in memory.report.growth["cpu"]]
    SEEN["printed"] = memory.file.getvalue()


def leaks():
    net, kept = model(), []

    def step(number):
        net.train_on_batch(X, Y)
        kept.append(jnp.ones((100,)))

    report = tensorlens.find_leaks(step, steps=4)
    SEEN["leaks"] = [
        [each.bytes_per_step, each.born.function, str(each.path), each.example.shape]
        for each in report.leaks
    ]
    SEEN["healthy"] = len(tensorlens.find_leaks(lambda: net.train_on_batch(X, Y), steps=4).leaks)


def refusals():
    net = model()
    SEEN["refused"] = []
    for ask in (
        lambda: tensorlens.record().start(),
        lambda: tensorlens.estimate(net, batch_size=4),
    ):
        try:
            ask()
        except tensorlens.errors.UsageError as error:
            SEEN["refused"].append(str(error))


set_libraries_aside("jax", "keras")
with contextlib.redirect_stdout(io.StringIO()):
    names_wherever_one_looks()
    metrics_of_ones_own()
    callback()
    leaks()
    refusals()
SEEN["others"] = [name for name in ("torch", "tensorflow") if name in sys.modules]
print(json.dumps(SEEN))
