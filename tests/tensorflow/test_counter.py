"""What TensorFlow's CPU allocator hands out, counted to the byte."""

import os
import subprocess
import threading
from array import array
from pathlib import Path

import pytest
import tensorflow as tf

from tensorlens.errors import UsageError
from tensorlens.frameworks.tensorflow import cpu, diagnosis
from tests.warm import python

FLOAT = 4


def counter():
    return cpu.cpu_counter()


def allocated():
    return counter().allocated()


def line_of(text):
    with Path(__file__).open(encoding="utf-8") as source:
        return next(number for number, line in enumerate(source, 1) if text in line)


def test_tensors_come_and_go():
    base = allocated()
    tensor = tf.fill((1000, 1000), 1.0)
    # the result, and no operand: fill's are freed with the call
    assert allocated() - base == 1000 * 1000 * FLOAT
    other = tensor + 1.0
    assert allocated() - base == 2 * 1000 * 1000 * FLOAT
    del tensor
    assert allocated() - base == 1000 * 1000 * FLOAT
    del other
    assert allocated() == base


def test_sizes_are_what_was_asked_for():
    base = allocated()
    # 1001 floats: no multiple of any alignment
    odd = tf.fill((1001,), 0.0)
    assert allocated() - base == 1001 * FLOAT
    assert odd.shape == (1001,)


def test_views_and_reads_of_variables_take_nothing():
    variable = tf.Variable(tf.fill((300, 100), 2.0))
    base = allocated()
    kept = [tf.reshape(variable, (100, 300)), variable.read_value()]
    assert allocated() - base == 0
    # it is shared now, so the next assignment writes elsewhere
    variable.assign_add(tf.fill((300, 100), 1.0))
    assert allocated() - base == 300 * 100 * FLOAT
    kept.clear()
    assert allocated() - base == 0


def test_an_assignment_in_place_takes_nothing():
    variable = tf.Variable(tf.fill((300, 100), 2.0))
    delta = tf.fill((300, 100), 1.0)
    base = allocated()
    variable.assign_add(delta)
    assert allocated() == base


def test_the_peak_is_of_the_time_since_the_last_read():
    read = counter().reader()
    tensor = tf.fill((256, 256), 1.0)
    base = read()[0]
    # exp into a block of its own, the sum of it into four bytes
    total = tf.reduce_sum(tf.exp(tensor))
    now, peak, resident = read()
    assert now - base == FLOAT
    assert peak - base >= 256 * 256 * FLOAT
    assert resident > 0
    assert read()[1] == now
    del total


def test_graph_functions_are_counted_on_their_own_threads():
    @tf.function
    def double_relu(value):
        first = tf.matmul(value, value)
        return tf.nn.relu(first) * 2.0

    value = tf.fill((200, 200), 1.0)
    double_relu(value)
    read = counter().reader()
    base = read()[0]
    result = double_relu(value)
    now, peak, _ = read()
    # relu and the product go into the block of the first one: nobody else reads it
    assert now - base == 200 * 200 * FLOAT
    assert 200 * 200 * FLOAT <= peak - base <= 2 * 200 * 200 * FLOAT + 64
    del result


def test_an_embedding_takes_its_rows_and_gradients_only_those():
    table = tf.Variable(tf.fill((1000, 16), 0.1))
    rows = tf.fill((32,), 7)
    base = allocated()
    with tf.GradientTape() as tape:
        looked_up = tf.gather(table, rows)
    assert allocated() - base == 32 * 16 * FLOAT
    gradient = tape.gradient(looked_up, table)
    # ones for what was looked up, and neither the table nor its shape again; it is what is given
    # back, as the gradient's rows are the table's
    assert isinstance(gradient, tf.IndexedSlices)
    del looked_up, tape
    # and the two dimensions of the table
    assert allocated() - base == 32 * 16 * FLOAT + 2 * 4


def test_a_sparse_update_is_in_place_and_makes_reads_copies():
    table = tf.Variable(tf.fill((1000, 16), 0.1))
    rows = tf.IndexedSlices(tf.fill((32, 16), 1.0), tf.fill((32,), 7))
    base = allocated()
    read = table.read_value()
    assert allocated() == base
    del read
    table.scatter_sub(rows)
    assert allocated() == base
    # who reads must not see later updates of rows, which are made in the table itself
    read = table.read_value()
    assert allocated() - base == 1000 * 16 * FLOAT
    del read
    assert allocated() == base


def test_batch_normalization_keeps_statistics_by_channel():
    value = tf.random.normal((8, 10, 10, 12))
    scale, offset = tf.fill((12,), 1.0), tf.fill((12,), 0.0)
    nothing = tf.fill((0,), 0.0)
    base = allocated()
    made = tf.raw_ops.FusedBatchNormV3(
        x=value, scale=scale, offset=offset, mean=nothing, variance=nothing, is_training=True
    )
    # the result, mean and variance, and both again for the gradient; the sixth is cuDNN's
    assert allocated() - base == 8 * 10 * 10 * 12 * FLOAT + 4 * 12 * FLOAT
    del made
    assert allocated() == base


def test_every_thread_counts():
    base = allocated()
    kept = []
    threads = [
        threading.Thread(target=lambda: kept.append(tf.fill((100, 100), 1.0))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allocated() - base == 8 * 100 * 100 * FLOAT
    kept.clear()
    assert allocated() == base


def test_a_block_knows_the_line_that_asked_for_it():
    allocator = counter()
    allocator.watch_births()
    try:
        tensor = tf.fill((10, 10), 1.0)  # born here
        address = tensor._numpy().__array_interface__["data"][0]
        (birth,), _ = allocator.births(array("Q", [address]))
    finally:
        allocator.watch_births(False)
    filename, line, _ = allocator.birth_line(birth)
    assert Path(filename).name == Path(__file__).name
    assert line == line_of("# born " + "here")


def test_the_table_balances():
    allocator = counter()
    kept = [tf.fill((100, 7), 1.0), tf.fill((3,), 1.0)]
    addresses = array("Q", [each._numpy().__array_interface__["data"][0] for each in kept])
    balance = allocator.balance(addresses)
    assert list(balance.sizes) == [100 * 7 * FLOAT, 3 * FLOAT]
    assert balance.named == 703 * FLOAT
    assert balance.allocated == allocator.allocated()


def run(code, **environment):
    return subprocess.run(
        [*python(tensorflow=True), "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )


@pytest.mark.parametrize(
    "environment",
    [{"CXX": "/nowhere/g++", "XDG_CACHE_HOME": "/nowhere"}, {"TF_CPU_ALLOCATOR_USE_BFC": "1"}],
)
def test_without_a_compiler_or_one_allocator_the_heap_counts(environment):
    code = """
import tensorflow as tf
tf.fill((1,), 1.0)
from tensorlens.frameworks.tensorflow import cpu
print(cpu.cpu_counter().source)
"""
    result = run(code, **environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in ("C heap (glibc mallinfo2)", "resident set")


def test_a_forked_child_counts_on():
    code = """
import os, tensorflow as tf
from tensorlens.frameworks.tensorflow import cpu
allocator = cpu.cpu_counter()
kept = tf.fill((100,), 1.0)
base = allocator.allocated()
child = os.fork()
if child == 0:
    os._exit(0 if allocator.allocated() == base else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = run(code)
    assert result.stdout.strip() == "0", result.stderr


def test_importing_tensorlens_imports_no_tensorflow():
    code = "import sys, tensorlens; tensorlens.MemReporter; tensorlens.record; tensorlens.profile\n"
    code += "print([name for name in ('tensorflow', 'keras', 'torch') if name in sys.modules])"
    assert run(code).stdout.strip() == "[]"


def test_a_diagnosis_refuses_a_counter_that_there_is_not(monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "nonsense")
    with pytest.raises(UsageError, match="TENSORLENS_COUNTER=nonsense: choose one of"):
        diagnosis.diagnose()
