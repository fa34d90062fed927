"""``MemoryCallback`` where TensorFlow is Keras's backend, in eager steps and in graphs."""

import csv
import gc
import io

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorlens

X, Y = np.ones((24, 8), "float32"), np.ones((24, 2), "float32")
FIGURES = ["memory/cpu", "memory/cpu_peak"]


@pytest.fixture(autouse=True)
def tidy():
    tf.zeros(1)
    yield
    keras.backend.clear_session()
    gc.collect()


def model(**options):
    made = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(2, name="d")], name="callback"
    )
    made.compile(loss="mse", optimizer="sgd", **options)
    return made


def quiet(**options):
    return tensorlens.keras.MemoryCallback(file=io.StringIO(), **options)


class Spike(keras.callbacks.Callback):
    """Holds 40 MB for a moment while a batch of each epoch runs."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            tf.zeros((10_000_000,)).numpy()


@pytest.mark.parametrize("eagerly", [False, True])
def test_the_peak_of_each_epoch_and_its_batch(eagerly: bool) -> None:
    net, memory = model(run_eagerly=eagerly), quiet()
    done = net.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=[memory, Spike(4)])
    assert [key for key in done.history if key.startswith("memory")] == FIGURES
    epochs = memory.report.epochs
    assert [each.batches for each in epochs] == [6] * 3
    for epoch, logged in zip(epochs, done.history["memory/cpu_peak"], strict=True):
        level = epoch.devices["cpu"]
        assert level.batches == (4, 4)
        assert level.peak == logged
        assert 40_000_000 < level.peak < level.allocated + 40_100_000
    assert "Memory of fit: 3 epochs, 18 batches" in memory.file.getvalue()


def test_steps_that_run_as_one_are_told_together() -> None:
    net, memory = model(steps_per_execution=3), quiet()
    net.fit(X, Y, batch_size=4, verbose=0, callbacks=[memory, Spike(3)])
    (epoch,) = memory.report.epochs
    assert epoch.batches == 6
    assert epoch.devices["cpu"].batches == (3, 5)
    assert "in batches 4-6 of epoch 1" in str(memory.report)


def test_files_of_other_callbacks_hold_the_figures(tmp_path) -> None:
    net, memory = model(), quiet()
    log = tmp_path / "log.csv"
    others = [
        keras.callbacks.CSVLogger(str(log)),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=9),
        keras.callbacks.ModelCheckpoint(
            str(tmp_path / "{epoch:02d}-{val_loss:.1f}.weights.h5"), save_weights_only=True
        ),
    ]
    done = net.fit(X, Y, epochs=2, verbose=0, callbacks=[memory, *others], validation_data=(X, Y))
    with log.open() as file:
        rows = list(csv.DictReader(file))
    for key in (*FIGURES, "val_memory/cpu_peak"):
        assert [float(row[key]) for row in rows] == done.history[key]
    assert len(list(tmp_path.glob("*.weights.h5"))) == 2


def test_tensorboard_has_a_scalar_of_each(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    board = keras.callbacks.TensorBoard(str(tmp_path), write_graph=False)
    done = model().fit(
        X, Y, epochs=2, verbose=0, callbacks=[quiet(), board], validation_data=(X, Y)
    )
    scalars = {}
    for path in tmp_path.rglob("events*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                tensor = tf.make_ndarray(value.tensor)
                if tensor.ndim == 0 and tensor.dtype.kind == "f":
                    scalars.setdefault((path.parent.name, value.tag), []).append(float(tensor))
    as_float32 = [float(np.float32(each)) for each in done.history["memory/cpu_peak"]]
    assert scalars["train", "epoch_memory/cpu_peak"] == as_float32
    assert len(scalars["validation", "epoch_memory/cpu_peak"]) == 2


def test_evaluate_and_predict() -> None:
    net, memory = model(), quiet()
    net.evaluate(X, Y, batch_size=4, verbose=0, callbacks=[memory])
    assert (memory.report.kind, memory.report.epochs[0].batches) == ("evaluate", 6)
    net.predict(X, batch_size=8, verbose=0, callbacks=[memory])
    assert (memory.report.kind, memory.report.epochs[0].batches) == ("predict", 3)


class Boom(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("boom")


def test_evaluate_after_a_fit_that_another_callback_ended() -> None:
    net, memory = model(), quiet()
    with pytest.raises(RuntimeError, match="boom"):
        net.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[memory, Boom()])
    net.evaluate(X, Y, batch_size=4, verbose=0, callbacks=[memory])
    assert (memory.report.kind, memory.report.epochs[0].batches) == ("evaluate", 6)
    # a fit that runs is still one
    net.fit(X, Y, batch_size=4, verbose=0, validation_data=(X, Y), callbacks=[memory])
    assert memory.report.kind == "fit" and memory.report.epochs[0].validation


def test_evaluate_inside_a_loop_that_is_not_of_keras_is_its_validation() -> None:
    net, memory = model(), quiet()
    memory.set_model(net)

    def begin() -> None:
        memory.on_train_begin()
        memory.on_epoch_begin(0)

    begin()
    net.evaluate(X, Y, batch_size=4, verbose=0, callbacks=[memory])
    memory.on_epoch_end(0, {})
    memory.on_train_end()
    assert memory.report.kind == "fit" and memory.report.epochs[0].validation


def test_an_end_of_data_is_no_failure() -> None:
    net, memory = model(), quiet()
    data = tf.data.Dataset.from_generator(
        lambda: iter([(X[:4], Y[:4])] * 5),
        output_signature=(tf.TensorSpec((4, 8)), tf.TensorSpec((4, 2))),
    )
    done = net.fit(data, epochs=2, verbose=0, callbacks=[memory])
    assert [each.batches for each in memory.report.epochs] == [5, 5]
    assert len(done.history["memory/cpu_peak"]) == 2


def test_the_same_numbers_are_computed() -> None:
    losses = []
    for callbacks in ([], [quiet(log_batches=True)]):
        keras.utils.set_random_seed(3)
        done = model().fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
        losses.append(done.history["loss"])
    assert losses[0] == losses[1]
