"""Programs that run into a limit on their addresses: TensorFlow raises, and the note says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import python

pytest.importorskip("resource")

ROOT = Path(__file__).parents[2]

# In eager steps: where a node of a graph is refused memory, TensorFlow 2.21 ends with a
# segmentation fault in about every third run, with tensorlens and without. What does not fit is one
# tensor, and there is room for all else.
PROGRAM = """\
import re, resource
import keras, numpy
import tensorflow as tf
import tensorlens

model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1 << 20)])
model.compile("sgd", "mse", run_eagerly=True)
x, y = numpy.ones((4096, 5), "float32"), numpy.ones((4096, 1), "float32")
model.predict(x[:1], verbose=0)
with open("/proc/self/status") as status:
    size = int(re.search(r"VmSize:\\s+(\\d+)", status.read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 30),) * 2)
try:
    with tensorlens.record():
        tf.fill((1 << 32,), 2.5)
except tf.errors.ResourceExhaustedError as error:
    print(*error.__notes__)
tensorlens.explain_oom()
model.fit(x, y, batch_size=4096, verbose=0)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_eager_operations_and_fit_under_a_limit_are_explained(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    made = subprocess.run(
        [*python(tensorflow=True), str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=300,
    )
    assert made.returncode == 1, made.stderr
    line = PROGRAM.splitlines().index("        tf.fill((1 << 32,), 2.5)") + 1
    eager = "tensorlens: out of memory: Tried to allocate 16.00 GiB (17,179,869,184 B) on cpu\n"
    assert f"{eager}  by         {path}:{line} in <module>\n" in made.stdout, made.stdout
    assert "tf.fill((1 << 32,), 2.5)" in map(str.strip, made.stdout.splitlines())
    # 4096 rows of 2**20 floats
    fit = "tensorlens: out of memory: Tried to allocate 16.00 GiB (17,179,869,184 B) on cpu\n"
    assert f"{fit}  by         {path}:{len(PROGRAM.splitlines())} in <module>\n" in made.stderr
    for text in (made.stdout, made.stderr):
        assert "in all (ulimit -v)" in text
