"""Run in a process of its own, with torch as Keras's backend; prints what was seen as JSON.

Its arguments are the command of an interpreter, for the processes that estimates start.
"""

import contextlib
import gc
import io
import json
import sys
import warnings

import tensorlens

assert "keras" not in sys.modules
assert tensorlens.keras.__name__ == "tensorlens.keras"
assert "keras" not in sys.modules

import keras  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from tensorlens.errors import UsageError  # noqa: E402
from tensorlens.planning import processes  # noqa: E402
from tests.aside import set_libraries_aside  # noqa: E402

processes.interpreter = lambda: sys.argv[1:]

X, Y = np.ones((12, 8), "float32"), np.ones((12, 2), "float32")
SEEN = {}


def rows(snapshot):
    return [
        [each.name, each.role, each.nbytes, each.module]
        for each in snapshot.tensors
        if each.alias_of is None
    ]


def model(**options):
    made = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(4, name="first"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(2, name="last"),
        ],
        name="net",
    )
    made.compile(loss="mse", **options)
    return made


def weights_and_slots():
    net = model(optimizer=keras.optimizers.Adam())
    net.fit(X, Y, batch_size=4, verbose=0)
    gc.collect()
    snapshot = tensorlens.MemReporter(net, net.optimizer).snapshot()
    SEEN["adam"] = rows(snapshot)
    SEEN["unnamed"] = snapshot.ledger["cpu"].unnamed
    with tensorlens.record(net) as recording:
        net.train_on_batch(X, Y)
    peak = recording.peak("cpu")
    SEEN["modules"] = [each for each in peak.by_module if each]
    SEEN["backward_modules"] = [each for each in recording.backward_by_module if each]


def phases():
    net = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(500)])
    net.compile(loss="mse", optimizer="adam")
    goal = np.ones((12, 500), "float32")
    net.train_on_batch(X[:1], goal[:1])
    with tensorlens.record(net) as recording:
        net.train_on_batch(X[:1], goal[:1])
    # at the peak the optimizer holds what it computes with, next to gradients
    SEEN["phases"] = recording.peak("cpu").by_phase["optimizer"]


def optimizers():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(momentum=0.9))
    for optimizer in (
        keras.optimizers.Nadam(),
        keras.optimizers.Adafactor(),
        keras.optimizers.Muon(),
        scaled,
    ):
        net = keras.Sequential(
            [keras.layers.Input((8,)), keras.layers.Dense(2, name="d")], name="o"
        )
        net.compile(loss="mse", optimizer=optimizer)
        net.train_on_batch(X, Y)
        gc.collect()
        found = rows(tensorlens.MemReporter(net, optimizer).snapshot())
        kind = type(optimizer).__name__
        # what others have left lives on in the list
        owners = ("LossScaleOptimizer.", "SGD.") if optimizer is scaled else (f"{kind}.",)
        SEEN[kind] = {
            name: nbytes
            for name, role, nbytes, _ in found
            if role == "optimizer" and name.startswith(owners)
        }
        del net, optimizer
        gc.collect()


def mixed_with_modules():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(x)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(5, name="inside")
            self.layer.build((None, 8))
            self.fc = torch.nn.Linear(5, 1)

    wrapper = keras.layers.TorchModuleWrapper(Inner(), name="wrapper")
    outer = Outer()
    found = tensorlens.MemReporter(wrapper, outer).snapshot()
    wanted = ("wrapper", "inside", "fc", "layer")
    SEEN["mixed"] = {
        name: [role, nbytes] for name, role, nbytes, _ in rows(found) if name.startswith(wanted)
    }
    SEEN["second names"] = [each.name for each in found.tensors if "_torch_params" in str(each)]


class Net(keras.Model):
    def __init__(self):
        super().__init__(name="lines")
        self.dense = keras.layers.Dense(16)

    def call(self, x):
        hidden = self.dense(x)
        return hidden + hidden


def lines_and_activations():
    net = Net()
    batch = torch.ones(4, 8)
    net(batch)
    with tensorlens.LineProfiler(net) as profiler:
        out = net(batch)
    (function,) = profiler.result().functions
    SEEN["lines"] = [
        function.qualname,
        [each.memory["cpu"].net for each in function.lines if each.hits],
    ]
    found = tensorlens.MemReporter(net).snapshot()
    SEEN["out"] = [each for each in rows(found) if each[1] == "activation"]
    del out


def callback():
    net = model(optimizer=keras.optimizers.SGD())
    net.fit(X, Y, batch_size=4, verbose=0)
    kept, peaks = [], []

    class Keeps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            peaks.append(sorted(key for key in logs if key.startswith("memory")))
            kept.append(keras.ops.zeros((25,)))

    class Spikes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                torch.empty(10_000_000)

    class Logged(keras.callbacks.Callback):
        seen = ()

        def on_epoch_end(self, epoch, logs=None):
            type(self).seen = sorted(logs)

    memory = tensorlens.keras.MemoryCallback(log_batches=True, file=io.StringIO())
    ours = [memory, Spikes(), Keeps(), Logged()]
    ended = net.fit(
        X,
        Y,
        batch_size=1,
        epochs=9,
        initial_epoch=3,
        verbose=0,
        callbacks=ours,
        validation_data=(X, Y),
    )
    SEEN["history"] = ended.history
    SEEN["logged"] = [Logged.seen, peaks[0]]
    SEEN["growth"] = memory.report.growth["cpu"][0].nbytes
    SEEN["epochs"] = [
        [each.number, each.batches, each.devices["cpu"].peak, each.devices["cpu"].batches]
        for each in memory.report.epochs
    ]
    SEEN["largest"] = memory.report.largest
    SEEN["printed"] = memory.file.getvalue()
    memory.file = None
    for function, kind in ((net.evaluate, "evaluate"), (net.predict, "predict")):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            data = (X, Y) if kind == "evaluate" else (X,)
            function(*data, verbose=0, callbacks=[memory])
        SEEN[kind] = [
            memory.report.kind,
            memory.report.epochs[0].batches,
            out.getvalue().splitlines()[0],
        ]
    SEEN["restored"] = [
        type(getattr(net, name)).__name__
        for name in ("train_function", "test_function", "predict_function")
    ]


def quiet_without_batches():
    memory = tensorlens.keras.MemoryCallback(batches=False, show=False, devices="cpu")
    net = model(optimizer="sgd")
    net.fit(X, Y, verbose=0, callbacks=[memory])
    hooks = [memory.on_train_batch_end, memory.on_predict_batch_begin, memory.on_test_batch_end]
    SEEN["default hooks"] = [getattr(each, "_is_default", False) for each in hooks]
    SEEN["without batches"] = [memory.report.epochs[0].batches, sorted(net.history.history)]


def never_breaks_fit():
    memory = tensorlens.keras.MemoryCallback()
    net = model(optimizer="sgd")

    class Breaks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            memory._follower.batch_ends = None

    with contextlib.redirect_stderr(io.StringIO()) as err, warnings.catch_warnings():
        warnings.simplefilter("error")
        done = net.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[memory, Breaks()])
    SEEN["broken"] = [err.getvalue().splitlines(), len(done.history["loss"])]


class TooMuch(keras.layers.Layer):
    on = False

    def call(self, x):
        return x + keras.ops.zeros((1 << 50,)) if self.on else x


def out_of_memory():
    layers = [keras.layers.Input((8,)), keras.layers.Dense(2, name="d"), TooMuch(name="much")]
    net = keras.Sequential(layers, name="oom")
    net.compile(loss="mse", optimizer="sgd")

    class Later(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            layers[2].on = batch == 2

    memory = tensorlens.keras.MemoryCallback(show=False)
    before = None
    try:
        net.fit(X, Y, batch_size=1, verbose=0, callbacks=[memory, Later()])
    except RuntimeError as error:
        before = error
    notes = before.__notes__
    SEEN["oom"] = [type(before).__name__, notes[0].splitlines()[1], notes[1]]
    SEEN["oom names"] = "oom/d/kernel" in notes[0]
    SEEN["oom report"] = [memory.report.epochs[0].batches, memory.report.epochs[0].ended]
    SEEN["oom restored"] = type(net.train_function).__name__
    layers[2].on = False
    net.fit(X, Y, batch_size=1, verbose=0, callbacks=[memory])
    SEEN["after oom"] = [memory.report.epochs[0].batches, memory.report.epochs[0].ended]


def leaks():
    net = model(optimizer="adam")
    report = tensorlens.find_leaks(lambda: net.train_on_batch(X, Y))
    kept = []
    other = tensorlens.find_leaks(lambda: kept.append(net(X)), steps=4)
    SEEN["leaks"] = [len(report.leaks), [str(each.path) for each in other.leaks]]


class Scaled(keras.layers.Layer):
    """A layer of the program's own, in a model of its own without a configuration."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return keras.ops.tanh(x * self.scale)


class Wide(keras.Model):
    def __init__(self, width=200):
        super().__init__()
        self.first, self.scaled = keras.layers.Dense(width), Scaled()
        self.last = keras.layers.Dense(2)

    def call(self, x):
        return self.last(self.scaled(self.first(x)))


def own_loss(wanted, found):
    return keras.ops.mean(keras.ops.square(wanted - found), axis=-1)


def own_model():
    made = Wide()
    made.compile("rmsprop", own_loss)
    made(keras.ops.zeros((1, 100)))
    return made


def attention():
    given = keras.Input((16, 32))
    x = given + keras.layers.MultiHeadAttention(2, 16)(given, given)
    x = keras.layers.Dense(64, activation="gelu")(keras.layers.LayerNormalization()(x))
    out = keras.layers.Dense(5)(keras.layers.GlobalAveragePooling1D()(x))
    made = keras.Model(given, out, name="attention")
    made.compile("adam", "mse")
    return made


def peak_of(net, *data):
    net.train_on_batch(*data)
    gc.collect()
    with tensorlens.record() as recording:
        net.train_on_batch(*data)
    return recording.peak("cpu").bytes


def estimates():
    zeros, options = keras.ops.zeros, {"batch_size": 64, "device": "cpu"}
    found = tensorlens.estimate(own_model, **options)
    SEEN["estimate roles"] = dict(found.by_role)
    own = own_model()
    try:
        tensorlens.estimate(own, **options)
    except UsageError as error:
        SEEN["estimate of an object"] = str(error)
    data = zeros((64, 100)), zeros((64, 2))
    SEEN["own"] = [found.peak_allocated, peak_of(own, *data)]
    del own, data
    gc.collect()
    found = tensorlens.estimate(attention, **options)
    measured = peak_of(attention(), zeros((64, 16, 32)), zeros((64, 5)))
    SEEN["attention"] = [found.peak_allocated, measured]


for each in (
    estimates,
    weights_and_slots,
    phases,
    optimizers,
    mixed_with_modules,
    lines_and_activations,
    callback,
    quiet_without_batches,
    never_breaks_fit,
    out_of_memory,
    leaks,
):
    # with the first model to be trained Keras imports more
    set_libraries_aside()
    each()
json.dump(SEEN, sys.stdout)
