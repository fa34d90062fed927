"""``compare()`` on programs of TensorFlow and Keras whose memory is known, in processes."""

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf
import tf_compare_programs as programs

import tensorlens
from tensorlens.cli import main
from tensorlens.errors import UsageError
from tensorlens.frameworks.tensorflow import TensorflowAllocator, cpu_counter
from tensorlens.planning import processes
from tests import warm
from tests.under_limit import largest_batch

BATCH = 1024
A = BATCH * programs.WIDTH * 4
"""Bytes of one layer's output."""
LOWEST = 11
"""The smallest batch that is tried under a limit."""
UNDER_SETRLIMIT = "test_the_largest_batch_under_setrlimit_is_the_largest"
P = programs.PARAMETER_BYTES
N = programs.PARAMETERS

SAVING = {
    "baseline": {},
    "adam": {"optimizer": "adam"},
    "bf16": {"policy": "mixed_bfloat16"},
    "blocks": {"recompute": "blocks"},
}


@pytest.fixture(autouse=True, scope="module")
def warm_processes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "interpreter", lambda: warm.python(tensorflow=True))
        yield


@pytest.fixture(scope="module", autouse=True)
def largest_under_setrlimit(warm_processes, request):
    """What is looked for while others run: TensorFlow tries a refused request again for 10 s."""
    tests = {item.name for item in request.session.items}
    with ThreadPoolExecutor() as pool:
        if sys.platform == "linux" and UNDER_SETRLIMIT in tests:
            yield pool.submit(largest_batch, programs.make_large, "tensorflow", LOWEST)
        else:
            yield None


@pytest.fixture(scope="module")
def measured():
    return tensorlens.compare(programs.make_step, SAVING, batch=BATCH, repeats=1, steps=2)


@pytest.fixture(scope="module")
def handle():
    """Bytes that a variable has beside its value, as the counter of this process counts them."""
    counter = cpu_counter()
    if not isinstance(counter, TensorflowAllocator):
        pytest.skip("TensorFlow's allocator is not counted exactly here")
    value = tf.zeros([programs.WIDTH, programs.WIDTH])
    tf.Variable(value)
    read = counter.reader()
    before = read()[0]
    kept = tf.Variable(value)
    found = read()[0] - before
    del kept
    return found % (programs.WIDTH * programs.WIDTH * 4)


def test_the_framework_is_the_one_that_the_program_uses(measured):
    assert measured.framework == "tensorflow" and measured.device == "cpu"


def test_the_slots_of_optimizers(measured, handle):
    baseline = measured["baseline"].peak_allocated
    # a number may be read at the peak of one run and not of another
    scalars = 16
    adam = measured["adam"].peak_allocated - baseline
    assert adam == pytest.approx(2 * (P + N * handle), abs=scalars)
    # they are made in the first step
    assert measured["adam"].setup_allocated == measured["baseline"].setup_allocated


def test_recomputed_activations_are_not_kept(measured):
    # of 24 outputs each block keeps its last one, as the input of the next; of one at a time the
    # others are made again
    kept = programs.BLOCKS - 1 + programs.LAYERS
    assert measured.saved("blocks") == pytest.approx((N - kept) * A, rel=0.25)
    assert measured.loss_check("blocks").verdict == "same"
    assert "6 blocks (Block)" in measured["blocks"].notes[0]


def test_losses_of_options_are_compared(measured):
    verdicts = {name: measured.loss_check(name).verdict for name in SAVING}
    assert verdicts == {
        "baseline": "same",
        "adam": "same at first",
        "bf16": "differs",
        "blocks": "same",
    }


def test_predicted_savings_are_the_measured_ones(measured):
    options = {**SAVING, "jit": {"jit_compile": True}, "no jit": {"jit_compile": False}}
    predicted = tensorlens.compare(
        programs.make_step, options, how="estimated", device="cpu", batch=BATCH
    )
    for name in SAVING:
        assert predicted[name].ran, predicted[name].why
        assert predicted.saved(name) == pytest.approx(measured.saved(name), rel=0.05)
    assert predicted["jit"].status == "cannot" and "measure it" in predicted["jit"].why
    assert predicted["no jit"].ran, predicted["no jit"].why
    assert predicted["no jit"].peak_allocated == predicted["baseline"].peak_allocated


def test_the_largest_batch_under_a_simulated_capacity_is_the_largest():
    # outputs of 24 MiB: what is needed is told in steps of 2 MiB, and one row more takes another
    most = (24 << 20) // (programs.WIDTH * 4)
    found = tensorlens.compare(
        programs.make_step,
        {"a": {}},
        how="estimated",
        card="t4",
        capacity="512 MiB",
        lowest=most - 10,
        highest=most + 10,
        arguments={"blocks": 1},
    )
    assert found["a"].ran, found["a"].why
    assert found["a"].largest_batch == most
    assert found["a"].beyond.startswith(f"{most + 1:,} would need")


def crash(make_step):
    ctypes.string_at(0)


def refused(make_step):
    @tf.function
    def step():
        return tf.strings.length(tf.strings.as_string(tf.random.uniform([])))

    return step


@pytest.fixture(scope="module")
def uneven():
    options = {
        "baseline": {},
        "sgd": {"optimizer": "sgd"},
        "policy": {"policy": "mixed_float16"},
        "blocks": {"recompute": "blocks"},
        "jit": {"jit_compile": True},
        "eager": {"run_eagerly": True},
        "strings": {"jit_compile": True, "function": refused},
        "crash": crash,
    }
    return tensorlens.compare(programs.make_uneven_steps, options, repeats=1, steps=3)


def test_the_median_step_after_the_warm_up(uneven):
    outcome = uneven["baseline"]
    assert outcome.peaks[0] - outcome.step_peaks[0] == (9 - 3) << 20


def test_impossible_and_failed_options_are_rows(uneven):
    said = {each.name: (each.status, each.why) for each in uneven.outcomes}
    assert said["baseline"] == ("ran", "")
    for name, words in {
        "sgd": "no optimizer of Keras",
        "policy": "no model of Keras",
        "blocks": "no repeated blocks",
        "jit": "makes no tf.function",
        "eager": "no tf.function called",
        "strings": "XLA refuses it",
    }.items():
        assert said[name][0] == "cannot" and words in said[name][1], said[name]
    assert said["crash"] == ("failed", "the process was ended by SIGSEGV: a crash")
    assert str(uneven)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is as Linux counts it")
def test_the_largest_batch_under_setrlimit_is_the_largest(largest_under_setrlimit):
    # 16 of 4 MiB, less what the process needs besides
    assert 12 <= largest_under_setrlimit.result() <= 16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"a": {"policy": "half"}}, "policy='half': it takes one of"),
        ({"a": {"recompute": 0}}, "it takes blocks"),
        ({"a": {"autocast": "bf16"}}, "there is no setting 'autocast'; there are policy"),
    ],
)
def test_options_that_make_no_sense(options, words):
    with pytest.raises(UsageError, match=words):
        tensorlens.compare(programs.make_step, options)


def test_the_command_line_sets_a_policy_of_layers_without_a_constructor(monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parent)
    arguments = ["--option", "sgd", "--option", "bf16", "policy=mixed_bfloat16"]
    arguments += ["--batch", "8", "--repeats", "1", "--steps", "1", "--warmup", "0"]
    assert main(["compare", "tf_compare_programs:make_layer_without_constructor", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "sgd" in shown and "bf16" in shown and "Without figures" not in shown
