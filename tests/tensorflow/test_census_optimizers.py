"""Each optimizer's slots by the weight they belong to, in exact bytes."""

import gc

import keras
import pytest
import tensorflow as tf
from tf_census_checks import Since

from tensorlens.frameworks.tensorflow import cpu

WEIGHTS = {"dense/kernel": (8, 4), "dense/bias": (4,)}
SLOTS = {
    "SGD": (),
    "Adam": ("momentum", "velocity"),
    "AdamW": ("momentum", "velocity"),
    "RMSprop": ("velocity",),
    "Adagrad": ("accumulator",),
    "Adadelta": ("accumulated_grad", "accumulated_delta_var"),
    "Adamax": ("momentum", "norm"),
    "Nadam": ("momentum", "velocity"),
    "Ftrl": ("accumulator", "linear"),
    "Lion": ("momentum",),
    "Lamb": ("momentum", "velocity"),
}
SCALARS = {"iteration": 8, "learning_rate": 4}


@pytest.fixture(autouse=True)
def tidy():
    tf.zeros(1)
    cpu.install()
    keras.backend.clear_session()
    yield
    gc.collect()


def bytes_of(shape):
    size = 4
    for length in shape:
        size *= length
    return size


def parameters(prefix="sequential/"):
    return {f"{prefix}{path}": ("parameter", bytes_of(shape)) for path, shape in WEIGHTS.items()}


def expected(name, slots, scalars=SCALARS):
    """Return role and bytes of what an optimizer holds, by name."""
    found = {
        f"{name}.sequential/{path}.{slot}": ("optimizer", bytes_of(shape))
        for path, shape in WEIGHTS.items()
        for slot in slots
    }
    return found | {f"{name}.{key}": ("optimizer", size) for key, size in scalars.items()}


def built(optimizer):
    """Return a model whose weights the optimizer knows."""
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
    optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("name", SLOTS)
def test_slots_by_weight(name):
    since = Since()
    optimizer = getattr(keras.optimizers, name)()
    model = built(optimizer)
    scalars = dict(SCALARS, **({"u_product": 4} if name == "Nadam" else {}))
    found = since.sizes(model, optimizer)
    found = {key: value for key, value in found.items() if not key.endswith("_scalar")}
    assert found == parameters() | expected(name, SLOTS[name], scalars)
    assert since.grown("unnamed") == 0


@pytest.mark.parametrize(
    ("name", "options", "slots"),
    [
        ("SGD", {"momentum": 0.9}, ("momentum",)),
        ("SGD", {"momentum": 0.9, "nesterov": True}, ("momentum",)),
        ("RMSprop", {"centered": True}, ("velocity", "average_gradient")),
        ("RMSprop", {"momentum": 0.9}, ("velocity", "momentum")),
        (
            "RMSprop",
            {"momentum": 0.9, "centered": True},
            ("velocity", "momentum", "average_gradient"),
        ),
        ("Adam", {"amsgrad": True}, ("momentum", "velocity", "velocity_hat")),
        ("SGD", {"use_ema": True}, ("average",)),
        ("SGD", {"gradient_accumulation_steps": 2}, ("gradient_accumulator",)),
        (
            "Adam",
            {"use_ema": True, "gradient_accumulation_steps": 4},
            ("momentum", "velocity", "average", "gradient_accumulator"),
        ),
    ],
)
def test_slots_added_by_optimizer_options(name, options, slots):
    since = Since()
    optimizer = getattr(keras.optimizers, name)(**options)
    model = built(optimizer)
    assert since.sizes(model, optimizer) == parameters() | expected(name, slots)


def test_adafactor_keeps_rows_and_columns():
    since = Since()
    optimizer = keras.optimizers.Adafactor()
    model = built(optimizer)
    found = since.sizes(model, optimizer)
    kernel = {key.rpartition(".")[2]: size for key, (_, size) in found.items() if "kernel." in key}
    assert kernel == {"r": 8 * 4, "c": 4 * 4, "velocity": 8 * 4 * 4}
    bias = {key.rpartition(".")[2]: size for key, (_, size) in found.items() if "bias." in key}
    # of a vector neither rows nor columns: Keras makes numbers in their place
    assert bias == {"r": 4, "c": 4, "velocity": 16}


def test_muon_keeps_velocities_of_vectors_alone():
    since = Since()
    optimizer = keras.optimizers.Muon()
    model = built(optimizer)
    found = since.sizes(model, optimizer)
    slots = {key: size for key, (_, size) in found.items() if ".sequential" in key}
    assert slots == {
        "Muon.sequential/dense/kernel.momentum": 128,
        "Muon.sequential/dense/bias.momentum": 16,
        "Muon.sequential/dense/bias.velocity": 16,
    }


def test_a_loss_scale_and_what_it_wraps():
    since = Since()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(momentum=0.9))
    model = built(optimizer)
    outer = dict(SCALARS, step_counter=8, dynamic_scale=4)
    wrapped = expected("SGD", ("momentum",))
    found = since.sizes(model, optimizer)
    assert found == parameters() | expected("LossScaleOptimizer", (), outer) | wrapped


def test_given_and_found_optimizers_have_their_own_names():
    since = Since()
    first, second = keras.optimizers.SGD(momentum=0.9), keras.optimizers.SGD(momentum=0.9)
    model = built(first)
    second.build(model.trainable_variables)
    found = since.sizes(model)
    assert "SGD.sequential/dense/kernel.momentum" in found
    assert "SGD#2.sequential/dense/kernel.momentum" in found
    named = since.sizes(model, opt=first)
    assert "opt.sequential/dense/kernel.momentum" in named


def test_weights_of_nested_and_subclassed_models():
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.inner = [keras.layers.Dense(3, name="one"), keras.layers.Dense(2, name="two")]

        def call(self, x):
            for layer in self.inner:
                x = layer(x)
            return x

    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.block = Block()
            self.norm = keras.layers.BatchNormalization(name="norm")
            self.table = keras.layers.Embedding(10, 5, name="table")
            self.drop = keras.layers.Dropout(0.5, seed=1, name="drop")

        def call(self, x):
            return self.drop(self.norm(self.block(self.table(x))))

    since = Since()
    model = Net()
    model(tf.constant([[1, 2]]))
    found = {name: size for name, size in since.sizes(model).items() if size[0] != "other"}
    assert found == {
        "net/block/one/kernel": ("parameter", 5 * 3 * 4),
        "net/block/one/bias": ("parameter", 3 * 4),
        "net/block/two/kernel": ("parameter", 3 * 2 * 4),
        "net/block/two/bias": ("parameter", 2 * 4),
        "net/norm/gamma": ("parameter", 8),
        "net/norm/beta": ("parameter", 8),
        "net/norm/moving_mean": ("buffer", 8),
        "net/norm/moving_variance": ("buffer", 8),
        "net/table/embeddings": ("parameter", 10 * 5 * 4),
        "seed_generator/seed_generator_state": ("buffer", 16),
    }


def test_a_frozen_weight_is_a_parameter_and_metrics_are_buffers():
    since = Since()
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
    model.trainable = False
    metric = keras.metrics.Mean(name="score")
    found = since.sizes(model)
    assert found == parameters() | {"score/total": ("buffer", 4), "score/count": ("buffer", 4)}
    assert metric is not None
