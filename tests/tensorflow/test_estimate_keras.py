"""Estimates of Keras models: against what a step takes, and against a published measurement."""

import gc
import weakref
from collections import Counter
from functools import partial
from statistics import median

import keras
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.core.config import flags
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

import tensorlens
from tensorlens import TensorlensError
from tensorlens.errors import UsageError
from tensorlens.frameworks.tensorflow import cpu_counter
from tensorlens.planning.tensorflow import StepGraph, tracing
from tensorlens.units import format_bytes
from tests.tensorflow.estimate_models import (
    batch_for,
    cnn_3d,
    gru_both_ways,
    loss,
    lstm,
    measured,
    mlp,
    transformer,
    wide_mlp,
)

SMALL_CNN = partial(cnn_3d, shape=(12, 12, 12, 1), filters=(4,), units=8)

T4_PEAK = 7_991_122_432
"""``get_memory_info('GPU:0')['peak']`` after a step of the network below on a Tesla T4."""


def estimated(make, optimizer="sgd", eager=False):
    model, batch = make()
    return tensorlens.estimate(
        model,
        batch_size=batch,
        optimizer=optimizer,
        loss=loss(),
        run_eagerly=eager,
        device="cpu",
    )


def gated():
    """A network whose results refer to what they were computed from."""
    inner = [layers.Dense(512, "sigmoid"), layers.Dense(512), layers.Activation("softmax")]
    return keras.Sequential([keras.Input((64,)), *inner, layers.Dense(10)]), 1024


@pytest.mark.parametrize(
    "make",
    [
        *(cnn_3d, gated),
        pytest.param(partial(transformer, 1), id="block"),
        pytest.param(partial(gru_both_ways, 10), id="GRU both ways"),
    ],
)
def test_an_eager_step_takes_what_was_estimated(make):
    peaks = measured(make, "adam", eager=True, steps=3)
    assert estimated(make, "adam", eager=True).peak_allocated == pytest.approx(peaks[-1], rel=0.005)


@pytest.mark.parametrize(
    ("make", "optimizer"),
    [
        (cnn_3d, "sgd"),
        pytest.param(partial(transformer, 1), "adam", id="block"),
        pytest.param(partial(wide_mlp, 512), "sgd", id="wide_mlp"),
    ],
)
def test_a_step_of_a_graph_takes_what_was_estimated(make, optimizer):
    peaks = measured(make, optimizer, eager=False, steps=5)
    found = estimated(make, optimizer)
    assert found.allocated.low <= median(peaks) <= found.allocated.high


def _with_normalization():
    inner = [layers.Dense(300), layers.BatchNormalization(), layers.Dense(10)]
    return keras.Sequential([keras.Input((100,)), *inner])


WEIGHTS = (100 * 300, 300, 300, 300, 300 * 10, 10)
"""Numbers in each trainable weight of this network."""
_SCALARS = (2, 1)
"""The counter of steps has 64 bits, the learning rate 32."""


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        ("sgd", _SCALARS),
        ("nadam", (*WEIGHTS * 2, *_SCALARS, 1)),
        (lambda: keras.optimizers.RMSprop(momentum=0.9, centered=True), (*WEIGHTS * 3, *_SCALARS)),
    ],
)
def test_optimizer_state_is_the_slots_that_exist(optimizer, slots):
    optimizer = optimizer() if callable(optimizer) else optimizer
    model = _with_normalization()
    found = {}
    for way in ("graph", "eager", "card"):
        found[way] = tensorlens.estimate(
            model,
            batch_size=8,
            optimizer=optimizer,
            loss=loss(),
            run_eagerly=way == "eager",
            device="cuda" if way == "card" else "cpu",
        )
    # the BFC allocator hands out multiples of 256 bytes
    exact, rounded = sum(4 * each for each in slots), sum(-(-each // 64) * 256 for each in slots)
    for way, nbytes in {"graph": exact, "eager": exact, "card": rounded}.items():
        assert found[way].by_role["optimizer"] == nbytes, way
        assert sum(found[way].by_role.values()) == found[way].peak_allocated, way
    assert found["graph"].by_role["parameter"] == 4 * sum(WEIGHTS)
    # moving mean and variance are replaced in forward, the state in the optimizer's step
    for each in found.values():
        log, held = each.recording.log, Counter()
        end = each.recording.at(len(log) - 1, each.device)
        for block in end.tensors:
            held[block.role] += 1
        assert (held["parameter"], held["buffer"], held["optimizer"]) == (6, 2, len(slots))


def test_order_dependence_is_noted():
    found = estimated(mlp, "sgd")
    assert found.allocated.low < found.peak_allocated < found.allocated.high
    assert [each.text for each in found.warnings if "one was simulated" in each.text]


def test_a_loop_is_run_in_the_graph():
    steps, batch, units = 20, 32, 256
    found = estimated(partial(lstm, steps))
    gates = 4 * steps * batch * units * 4
    assert found.peak_allocated > gates, "backward needs the four gates of every step"
    assert not [each for each in found.warnings if "shape" in each.text]


def t4_network(relu_apart=False):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return cnn_3d((150, 300, 150, 3), (64, 64, 128, 256), 512, relu_apart)[0]
    finally:
        keras.config.set_dtype_policy(before)


@pytest.fixture(scope="module")
def on_t4():
    return tensorlens.estimate(t4_network(), batch_size=2, optimizer="adam", loss=loss(), card="t4")


@pytest.fixture(scope="module")
def relu_apart():
    net = t4_network(relu_apart=True)
    return tensorlens.estimate(net, batch_size=2, optimizer="adam", loss=loss(), card="t4")


def test_shapes_that_only_a_run_tells_are_inferred():
    inputs = keras.Input((3, 8, 8, 2))
    outputs = keras.layers.Flatten()(keras.layers.ConvLSTM2D(4, 3)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    found = tensorlens.estimate(model, batch_size=4, optimizer="sgd", loss="mse", device="cpu")
    assert not [each for each in found.warnings if "shape" in each.text]


def test_words_are_looked_up_in_the_model():
    words = layers.TextVectorization(max_tokens=50, output_sequence_length=6)
    words.adapt(["a b c", "d e f g"])
    inner = [words, layers.Embedding(50, 8), layers.GlobalAveragePooling1D(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((), dtype="string"), *inner])
    found = tensorlens.estimate(model, batch_size=4, optimizer="sgd", loss="mse", device="cpu")
    assert found.by_role["parameter"] == 4 * (50 * 8 + 8 + 1)


def test_a_published_peak_on_a_t4_is_met(on_t4):
    assert on_t4.peak_allocated == pytest.approx(T4_PEAK, rel=0.05)


def test_an_activation_may_be_a_layer_of_its_own(on_t4, relu_apart):
    assert relu_apart.peak_allocated == on_t4.peak_allocated
    assert relu_apart.peak_reserved == on_t4.peak_reserved


def test_that_xla_is_left_out_is_in_the_headline(on_t4):
    assert str(on_t4).splitlines()[0].endswith("without XLA")
    model, batch = mlp()
    model.compile("sgd", loss(), jit_compile=False)
    told = str(tensorlens.estimate(model, batch_size=batch, card="t4"))
    assert "without XLA" not in told.splitlines()[0]
    (layout,) = [each.text for each in on_t4.warnings if "layout optimizer" in each.text]
    assert "as for a CPU" in layout


@tf.function(jit_compile=True)
def compiled_gelu(features):
    return tf.nn.gelu(features) * 2.0


def small(activation=None, **compiled):
    inner = [layers.Dense(32, activation=activation), layers.Dense(4)]
    model = keras.Sequential([keras.Input((64,)), *inner])
    if compiled:
        model.compile("sgd", "mse", **compiled)
    return model


def two_headed(first, second):
    inputs = keras.Input((16,))
    outputs = [layers.Dense(4, name=first)(inputs), layers.Dense(3, name=second)(inputs)]
    model = keras.Model(inputs, outputs)
    losses = {first: "sparse_categorical_crossentropy", second: "mse"}
    model.compile("sgd", losses, run_eagerly=True)
    return model


def test_losses_by_name_are_paired_with_outputs_by_name():
    in_order, in_reverse = (
        tensorlens.estimate(two_headed(*names), batch_size=8, device="cpu")
        for names in (("box", "label"), ("label", "box"))
    )
    assert in_reverse.peak_allocated == in_order.peak_allocated


def unsupported():
    model = small()
    model.layers[0].supports_jit = False
    return model


@pytest.mark.parametrize(
    ("make", "device", "asked", "why"),
    [
        (partial(small, jit_compile=True), "cpu", {}, "compile(jit_compile=True)"),
        (small, "cuda", {"loss": "mse"}, "unless compile(jit_compile=False)"),
        (partial(small, compiled_gelu, jit_compile=False), "cpu", {}, "tf.function(jit_compile"),
        (partial(small, compiled_gelu, run_eagerly=True), "cuda", {}, "tf.function(jit_compile"),
        (small, "cpu", {"loss": "mse"}, ""),
        (unsupported, "cuda", {"loss": "mse"}, ""),
        (partial(small, jit_compile=False), "cuda", {}, ""),
        (partial(small, jit_compile=True), "cpu", {"run_eagerly": True}, ""),
    ],
)
def test_xla_is_noted_and_has_no_bounds(make, device, asked, why):
    found = tensorlens.estimate(make(), batch_size=4, device=device, capacity="1 GiB", **asked)
    told = [each.text for each in found.warnings if "XLA plans buffers" in each.text]
    headline, verdict = str(found).splitlines()[:2]
    if not why:
        assert not told and found.unsimulated is None
        assert found.upper is not None and found.fits().verdict == "fits"
        assert "without XLA" not in headline
        return
    (text,) = told
    assert why in text
    assert headline.endswith("without XLA")
    assert found.lower is None and found.upper is None
    assert found.fits and found.fits().verdict == "tight" and not found.fits("1 KiB")
    assert verdict.startswith("  likely fits into 1.00 GiB: needs ")
    assert "no bounds are known" in " ".join(found.explain().split())
    assert " to " not in str(found).partition("At the peak")[0].replace(" to spare", "")


def test_xla_has_no_sure_batch():
    with pytest.raises(UsageError, match=r"surely=True .* XLA's buffers are not simulated"):
        tensorlens.max_batch(small(jit_compile=True), "1 GiB", surely=True, highest=4)


def test_batches_that_fit_holds_ahead_are_within_the_upper_bound():
    model = keras.Sequential([keras.Input((2000,)), layers.Dense(10)])
    model.compile("sgd", loss(), run_eagerly=True)
    found = tensorlens.estimate(model, batch_size=64, device="cpu")
    batch = 64 * (2000 * 4 + 4)
    assert found.allocated.low == found.peak_allocated
    assert found.allocated.high == found.peak_allocated + 4 * batch
    (told,) = [each.text for each in found.warnings if "ahead" in each.text]
    assert format_bytes(batch) in told


def test_rule_of_thumb_is_shown_as_published(on_t4, relu_apart):
    (formula,) = on_t4.formulas
    assert round(formula.nbytes / 2**30, 3) == 2.383
    # the author's last layer computes in float32 there, for 80 bytes more
    assert round(relu_apart.formulas[0].nbytes / 2**30, 3) == 4.167
    assert ["weights", "+", "layer", "outputs", "2.38", "GiB", "-68%"] in [
        line.split() for line in str(on_t4).splitlines()
    ]


def test_copies_that_pooling_makes_are_a_term(on_t4):
    conv, pooled = 2 * 148 * 298 * 148 * 64 * 2, 2 * 74 * 149 * 74 * 64 * 2
    (term,) = [each for each in on_t4.terms if each.name == "copies with channels first"]
    assert term.nbytes.point == 2 * (conv + pooled)


def test_roles_and_layers_add_up_to_the_peak(on_t4):
    assert sum(on_t4.by_role.values()) == on_t4.peak_allocated
    assert sum(on_t4.by_module.values()) == on_t4.peak_allocated
    assert on_t4.by_role["optimizer"] > 2 * 1_356_000 * 4, "two slots of float32 a weight"
    assert any("max_pooling3d" in str(each) for each in on_t4.by_module)


def test_a_policy_can_be_asked_for():
    model = keras.Sequential([keras.Input((64,)), layers.Dense(1000), layers.Dense(1000)])
    options = {"batch_size": 4096, "optimizer": "sgd", "loss": "mse", "device": "cpu"}
    whole = tensorlens.estimate(model, **options)
    half = tensorlens.estimate(model, policy="mixed_bfloat16", **options)
    assert half.by_role["parameter"] == whole.by_role["parameter"]
    assert half.by_role["activation"] < whole.by_role["activation"]


def test_convolutions_in_bfloat16_that_are_fused_on_a_cpu():
    convolution = [keras.Input((16, 16, 3)), layers.Conv2D(32, 3, activation="relu")]
    model = keras.Sequential([*convolution, layers.GlobalAveragePooling2D(), layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=False)
    options = {"batch_size": 256, "device": "cpu"}
    single = tensorlens.estimate(model, **options)
    half = tensorlens.estimate(model, policy="mixed_bfloat16", **options)
    assert half.by_role["activation"] < single.by_role["activation"]


def test_a_model_that_was_never_compiled_stays_so():
    model, batch = mlp()
    weights = [each.numpy().tobytes() for each in model.weights]
    attributes = {name: id(value) for name, value in model.__dict__.items()}
    tensorlens.estimate(model, batch_size=batch, optimizer="adam", loss=loss(), device="cpu")
    assert not model.compiled
    assert {name: id(value) for name, value in model.__dict__.items()} == attributes
    assert [each.numpy().tobytes() for each in model.weights] == weights
    assert model.metrics == []


def test_a_model_in_training_goes_on_as_if_nothing_had_been_asked():
    def trained(ask):
        keras.utils.set_random_seed(1)
        inner = [layers.Dense(32), layers.BatchNormalization(), layers.Dropout(0.3)]
        model, batch = keras.Sequential([keras.Input((20,)), *inner, layers.Dense(10)]), 4
        model.compile("adam", loss(), metrics=["accuracy"])
        data = [batch_for(model, batch)]
        model.make_train_function()
        model.train_function(iter(data))
        step = model.train_function
        slots = len(model.optimizer.variables)
        if ask:
            tensorlens.estimate(model, batch_size=batch, device="cpu")
        assert model.train_function is step
        assert len(model.optimizer.variables) == slots
        model.train_function(iter(data))
        kept = [*model.weights, *model.optimizer.variables]
        return [each.numpy().tobytes() for each in kept]

    assert trained(ask=True) == trained(ask=False)


@pytest.mark.parametrize("eager", [False, True])
def test_estimate_leaves_no_hooks(eager, monkeypatch):
    read = cpu_counter().reader()
    made = []
    original = tracing.clone_of

    def noted(model):
        twin = original(model)
        made.append(weakref.ref(twin))
        return twin

    monkeypatch.setattr(tracing, "clone_of", noted)

    def ask(model, batch):
        tensorlens.estimate(
            model,
            batch_size=batch,
            optimizer="adam",
            loss=loss(),
            device="cpu",
            run_eagerly=eager,
        )
        gc.collect()

    def optimizers_and_graphs():
        kinds = (keras.optimizers.Adam, FuncGraph, StepGraph)
        # by type: isinstance() would ask lazy modules for what they hold
        return sum(issubclass(type(each), kinds) for each in gc.get_objects())

    ask(*mlp())  # TensorFlow keeps scalars that it converts for the first time
    gc.collect()
    before, others = read()[0], optimizers_and_graphs()
    made.clear()
    model, batch = mlp()
    made.append(weakref.ref(model))
    built = read()[0]
    ask(model, batch)
    weights = sum(each.numpy().nbytes for each in model.weights)
    assert read()[1] - built < weights / 4, "no slot of the optimizer is allocated"
    assert made[1]() is None, "the twin goes while the model lives"
    assert optimizers_and_graphs() == others
    del model
    gc.collect()
    assert [each() for each in made] == [None, None]
    assert read()[0] == before


def test_graphs_with_gradients_of_their_own_are_let_go_of():
    registered = ops.gradient_registry._registry
    before = set(registered)
    model, batch = SMALL_CNN()
    # with a loss scale there are some in the branch for gradients that are finite, too
    options = {"optimizer": "adam", "loss": loss(), "policy": "mixed_float16"}
    tensorlens.estimate(model, batch_size=batch, device="cpu", **options)
    # tf.custom_gradient, in which losses are averaged, registers one for each trace
    assert set(registered) == before


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(50)

    def call(self, inputs):
        return self.dense(inputs)


def test_a_model_of_ones_own_class_is_called_once():
    model = Subclassed()
    options = {"optimizer": "sgd", "loss": "mse", "device": "cpu", "batch_size": 4}
    # its layers are not built behind its back
    with pytest.raises(UsageError, match="call it once with a batch"):
        tensorlens.estimate(model, input_shape=(20,), **options)
    assert not model.dense.built
    model(tf.zeros((1, 20)))
    found = tensorlens.estimate(model, **options)
    assert found.by_role["parameter"] == (20 * 50 + 50) * 4
    assert found.by_role["input"] == 4 * (20 + 50) * 4


def test_a_train_step_of_ones_own_is_traced():
    class Doubled(keras.Model):
        def train_step(self, data):
            inputs, targets = data
            with tf.GradientTape() as tape:
                lost = self.compute_loss(y=targets, y_pred=self(inputs, training=True)) * 2.0
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(lost, weights), weights)
            return {"loss": lost}

    given = keras.Input((100,))
    model = Doubled(given, layers.Dense(200)(given))
    found = tensorlens.estimate(model, batch_size=8, optimizer="sgd", loss="mse", device="cpu")
    assert found.by_role["parameter"] == (100 * 200 + 200) * 4
    lines = [each.function for each in found.by_line if each is not None]
    assert lines
    assert all("train_step" in each for each in lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"device": "tpu"}, "cuda and cpu"),
        ({"loss": None}, "not compiled"),
        ({"card": "h1000"}, "no card is known"),
    ],
)
def test_bad_keras_request_is_one_line(options, said):
    model, _ = mlp()
    with pytest.raises(UsageError, match=said):
        tensorlens.estimate(model, **{"loss": "mse", "optimizer": "sgd", **options})


def test_a_model_without_shapes_is_asked_for_them():
    model = keras.Sequential([layers.Dense(10)])
    with pytest.raises(UsageError, match="input_shape"):
        tensorlens.estimate(model, optimizer="sgd", loss="mse", device="cpu")


def test_a_step_that_cannot_be_traced_says_why():
    given = keras.Input((4,))
    model = keras.Model(given, layers.Dense(3)(given))

    def refuse(targets, predictions):
        raise ValueError("no loss today")

    with pytest.raises(TensorlensError, match="no loss today"):
        tensorlens.estimate(model, optimizer="sgd", loss=refuse, device="cpu")


def test_estimate_prints_and_saves(on_t4, tmp_path):
    text = str(on_t4)
    assert "outside of tensorflow" in text
    assert "Rules of thumb, for comparison" in text
    assert "XLA" in text
    for ending in ("html", "json", "txt", "tlens"):
        assert on_t4.save(tmp_path / f"estimate.{ending}").stat().st_size > 1000


def test_a_flag_of_tensorflow_is_as_it_was_after_an_estimate():
    flag = flags.config().graph_building_optimization
    assert not flag.value()
    estimated(SMALL_CNN, eager=True)
    assert not flag.value()
