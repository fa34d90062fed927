"""Every tensor by name and exact bytes, each buffer once; the program does not notice."""

import gc
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tf_census_checks import Since, census

import tensorlens
from tensorlens.frameworks.tensorflow import cpu
from tests.warm import python


@pytest.fixture(autouse=True)
def tidy():
    tf.zeros(1)
    cpu.install()
    yield
    gc.collect()


def test_the_result_of_a_product_and_of_a_convolution():
    a, images, kernel = tf.random.normal((30, 20)), tf.ones((2, 8, 8, 3)), tf.ones((3, 3, 3, 5))
    since = Since()
    product = tf.matmul(a, a, transpose_b=True)
    maps = tf.nn.conv2d(images, kernel, strides=1, padding="SAME")
    found = since()
    one = found["test_the_result_of_a_product_and_of_a_convolution(): product"]
    assert (one.nbytes, one.storage_nbytes, one.shape, one.dtype, one.device) == (
        *(30 * 30 * 4, 30 * 30 * 4, (30, 30)),
        *("float32", "cpu"),
    )
    other = found["test_the_result_of_a_product_and_of_a_convolution(): maps"]
    assert other.nbytes == 2 * 8 * 8 * 5 * 4
    assert len(found) == 2
    assert since.grown("unnamed") == 0
    assert since.grown("named") == 30 * 30 * 4 + 2 * 8 * 8 * 5 * 4
    assert one.alias_of is other.alias_of is None
    del product, maps


def test_a_reshape_shares_its_buffer_and_is_counted_once():
    since = Since()
    whole = tf.random.normal((6, 4))
    view = tf.reshape(whole, (4, 6))
    found = since()
    assert sum(each.alias_of is None for each in found.values()) == 1
    assert {each.nbytes for each in found.values()} == {96}
    assert len({each.storage for each in found.values()}) == 1
    assert since.grown("named") == 96
    assert view is not whole


def test_a_slice_of_rows_begins_within_its_buffer():
    since = Since()
    whole = tf.random.normal((64, 16))
    rows = tf.split(whole, 2)[1]
    found = since()
    part = found["test_a_slice_of_rows_begins_within_its_buffer(): rows"]
    assert part.nbytes == 32 * 16 * 4
    # TensorFlow may copy; where it does not, the part shares the whole's buffer
    if part.alias_of is not None:
        assert (part.offset, part.storage_nbytes) == (32 * 16, 64 * 16 * 4)
    assert since.grown("named") == since.grown("allocated")
    del whole, rows


@pytest.mark.parametrize("size", [1, 1000])
def test_a_variable_is_a_value_and_the_handle_that_operations_know_it_by(size):
    since = Since()
    weight = tf.Variable(tf.random.normal((size, 7)), name="weight")
    name = "test_a_variable_is_a_value_and_the_handle_that_operations_know_it_by(): weight"
    found = since()
    assert (found[name].role, found[name].nbytes) == ("parameter", size * 7 * 4)
    handles = [each for each in since.last.tensors if each.name == f"{name}.handle"]
    assert [each.dtype for each in handles] == ["resource"]
    assert since.grown("allocated") == since.grown("named") == size * 28 + handles[0].nbytes
    # what reads the variable shares its buffer
    read = weight.read_value()
    records = since.records()
    assert sorted(each.alias_of is None for each in records) == [False, True]
    del read


def test_an_assignment_after_a_report_is_in_place():
    weight, one = tf.Variable(tf.zeros((1000, 250))), tf.ones((1000, 250))
    read = cpu.install().read
    read()
    weight.assign_add(one)
    plain = read()
    for _ in range(3):
        census()
        read()
        weight.assign_add(one)
        after = read()
        assert after[:2] == plain[:2]
    # no copy of a million bytes was made for it
    assert plain[1] - plain[0] < 1_000_000


def test_census_keeps_no_tensor_alive():
    tensor, weight = tf.random.normal((10, 10)), tf.Variable(tf.ones(5))
    gone = weakref.ref(tensor), weakref.ref(weight)
    counts = sys.getrefcount(tensor), sys.getrefcount(weight)
    gc.disable()
    try:
        found = census(held={"x": tensor})
        assert (sys.getrefcount(tensor), sys.getrefcount(weight)) == counts
        del tensor, weight
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()
    assert found.tensors


def test_no_operation_is_run_and_no_tape_notices():
    from tensorflow.python.framework import op_callbacks

    ran = []

    def note(kind, inputs, attributes, outputs, op_name=None, graph=None):
        ran.append(kind)

    weight = tf.Variable(tf.ones((3, 3)))
    op_callbacks.add_op_callback(note)
    try:
        with tf.GradientTape() as tape:
            tape.watch(weight)
            census()
            before = len(ran)
            loss = tf.reduce_sum(weight * weight)
    finally:
        op_callbacks.remove_op_callback(note)
    assert before == 0
    assert len(ran) > 0
    np.testing.assert_array_equal(tape.gradient(loss, weight), 2 * np.ones((3, 3)))


def test_strings_ragged_and_sparse_tensors():
    since = Since()
    words = tf.constant(["short", "x" * 100])
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    sparse = tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]])
    found = since()
    label = "test_strings_ragged_and_sparse_tensors(): "
    string = found[f"{label}words"]
    assert (string.dtype, string.nbytes) == ("string", 2 * 24)
    assert found[f"{label}ragged._values"].nbytes == 12
    assert found[f"{label}sparse._indices"].nbytes == 2 * 2 * 8
    assert found[f"{label}sparse._values"].nbytes == 2 * 4
    assert all(each is not None for each in (words, ragged, sparse))


def test_memory_of_numpy_is_marked():
    array = np.zeros(10_000, np.float32)
    since = Since()
    shared = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    (record,) = since.records()
    assert record.storage == array.ctypes.data
    assert record.note == "memory of NumPy or another library, not TensorFlow's allocator"
    assert since.grown("named") == 0
    del shared


def test_objects_that_misbehave_run_no_code():
    ran = []

    class Hostile:
        @property
        def __class__(self):
            ran.append("class")
            return tf.Tensor

        def __getattribute__(self, name):
            ran.append(name)
            raise RuntimeError(name)

    kept = [Hostile() for _ in range(3)]
    module = tf.Module()
    ran.clear()
    census(module)
    assert ran == []
    assert len(kept) == 3


def test_symbolic_tensors_are_not_counted():
    since = Since()
    graph = tf.function(lambda x: x * 2.0).get_concrete_function(tf.TensorSpec((10, 10)))
    found = since()
    assert not [each for each in found.values() if each.shape == (10, 10)]
    assert graph is not None


def test_modules_by_their_attributes():
    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(tf.ones((3, 4)))
            self.steps = [tf.Variable(tf.ones(2), trainable=False)]

    since = Since()
    net = Net()
    assert since.sizes(net) == {"w": ("parameter", 48), "steps[0]": ("buffer", 8)}
    assert since.sizes(ema=net) == {"ema.w": ("parameter", 48), "ema.steps[0]": ("buffer", 8)}
    label = "test_modules_by_their_attributes(): net"
    assert set(since.sizes()) == {f"{label}.w", f"{label}.steps[0]"}


def test_source_tensors_of_a_dataset_are_input():
    since = Since()
    data = tf.data.Dataset.from_tensor_slices(np.ones((100, 50), np.float32))
    found = since()
    made_from = [each for each in found.values() if each.shape == (100, 50)]
    assert [(each.role, each.nbytes) for each in made_from] == [("input", 20_000)]
    assert data is not None


def test_before_the_first_operation_nothing_is_initialised():
    program = """
        import tensorflow as tf
        from tensorflow.python.eager import context
        from tensorlens.frameworks.tensorflow import findings
        found = findings.census([])
        print(len(found.tensors), found.notes[0], context.context_safe() is None)
    """
    done = subprocess.run(
        [*python(tensorflow=True), "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "0 TensorFlow has run no operation: nothing is allocated True"


def test_a_variable_that_is_given_goes_by_its_name():
    variable = tf.Variable(tf.fill((3,), 1.0), name="mine")
    found = tensorlens.MemReporter(variable).snapshot()
    assert [each.name for each in found.tensors if each.role == "parameter"] == ["mine"]
