"""``tensorlens leaks`` and the limits of pytest on programs that use TensorFlow."""

import os
import subprocess
from pathlib import Path

import pytest

from tensorlens import LeakReport, load
from tests.warm import python

ROOT = Path(__file__).parents[2]

LOOP = """\
import sys
import tensorflow as tf
import keras

KEPT = []
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD()
optimizer.build(model.trainable_variables)

@tf.function
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

@tf.function
def plain(x):
    if tf.reduce_sum(x) > 0.0:
        x = x + 1.0
    return x

for _ in range(9):
    {"train": train, "plain": plain}[sys.argv[1]](tf.fill((8, 5), 2.5))
    KEPT.append(tf.fill((256,), 2.5))
"""

LIMITED = """\
import pytest
import tensorflow as tf

KEPT = []

@pytest.mark.limit_tensor_leaks("0 B")
def test_keeps():
    KEPT.append(tf.fill((256,), 2.5))

@pytest.mark.limit_tensor_leaks("1 KiB")
def test_within():
    KEPT.append(tf.fill((256,), 2.5))

@pytest.mark.limit_tensor_memory("2 KiB")
def test_at_once():
    tf.fill((1024,), 2.5)

@pytest.mark.limit_tensor_memory("5 KiB")
def test_one_after_the_other():
    for _ in range(3):
        tf.fill((1024,), 2.5)
"""


def run(folder, *arguments):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TENSORLENS")}
    paths = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return subprocess.run(
        [*python(tensorflow=True), "-m", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        timeout=300,
    )


@pytest.mark.parametrize(
    "arguments", [("loop.py", "train"), ("--step", "plain", "loop.py", "plain")]
)
def test_compiled_steps_of_a_script_are_found_and_judged(tmp_path, arguments):
    (tmp_path / "loop.py").write_text(LOOP)
    made = run(tmp_path, "tensorlens", "leaks", "-o", "leaks.json", *arguments)
    assert made.returncode == 0, made.stderr
    report = load(tmp_path / "leaks.json")
    assert isinstance(report, LeakReport)
    (leak,) = report.leaks
    line = LOOP.splitlines().index("    KEPT.append(tf.fill((256,), 2.5))") + 1
    assert (leak.born.lineno, leak.tensors_per_step, leak.bytes_per_step) == (line, 1, 1024)
    assert leak.path.startswith("KEPT (global) -> list[")
    assert report.notes == ("judged after step 8; the program made 9",)


def test_limits_of_pytest(tmp_path):
    (tmp_path / "test_limits.py").write_text(LIMITED)
    options = ("-p", "tensorlens.integrations.pytest", "-p", "no:cacheprovider")
    text = run(tmp_path, "pytest", *options, "test_limits.py").stdout
    assert "2 failed, 2 passed" in text, text
    assert "1.00 KiB of tensors outlive the test, its limit is 0 B" in text
    assert "1.00 KiB in 1 tensor, made at test_limits.py:8 in test_keeps" in text
    assert "held by  test_limits.KEPT (global) -> list[0]" in text
    assert "cpu: 4.00 KiB at the highest instant of the test, its limit is 2.00 KiB" in text
