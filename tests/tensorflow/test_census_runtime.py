"""What only the runtime holds, named by the node that allocated it; handles folded into a row."""

import ctypes
import gc
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from tf_census_checks import Since

import tensorlens
from tensorlens.frameworks.tensorflow import cpu, tensor_reader
from tensorlens.render import TextRenderer, View


@pytest.fixture(autouse=True)
def watched():
    tf.zeros(1)
    reporter = tensorlens.MemReporter()
    yield reporter
    gc.collect()


def of_runtime(since):
    return [each for each in since.records() if each.dtype == "bytes"]


def test_a_constant_of_a_function_is_named_by_the_function():
    values = np.random.default_rng(0).random((50, 60)).astype(np.float32)

    @tf.function
    def with_constant(x):
        return tf.matmul(x, tf.constant(values, name="table"))

    since = Since()
    assert with_constant(tf.ones((4, 50))).shape == (4, 60)
    (found,) = [each for each in of_runtime(since) if each.nbytes == 50 * 60 * 4]
    assert found.name == "constants of with_constant['table']"
    assert (found.role, found.device, found.storage_nbytes) == ("other", "cpu", 12_000)
    assert found.born.function.endswith("test_a_constant_of_a_function_is_named_by_the_function")
    address, size = found.storage, np.frombuffer(values.tobytes(), np.uint8)
    held = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (12_000,))
    np.testing.assert_array_equal(held, size)


def test_hardly_any_byte_is_unnamed_after_fit():
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32), keras.layers.Dense(4)])
    model.compile("adam", "mse", metrics=["mae"])
    since = Since()
    model.fit(np.ones((64, 16), np.float32), np.ones((64, 4), np.float32), 16, verbose=0)
    gc.collect()
    assert of_runtime(since)
    # TensorFlow keeps with a graph the numbers that it has inferred shapes from
    assert since.grown("unnamed") < 512


def test_dataset_cache_is_input():
    rows = tf.data.Dataset.from_tensor_slices(np.ones((40, 64), np.float32))
    data = rows.map(lambda row: row + 1.0).cache()
    since = Since()
    assert sum(1 for _ in data) == 40
    kept = iter(data)
    next(kept)
    found = [each for each in of_runtime(since) if each.nbytes == 64 * 4]
    # the 40 of the cache; the iteration's own variable is gone with the function's frame
    assert 39 <= len(found) <= 40
    assert {each.role for each in found} == {"input"}
    assert {each.name for each in found} == {"batch of tf.data"}
    assert len({each.storage for each in found}) == len(found)


def test_blocks_from_before_the_counter_stay_unnamed():
    allocator = cpu.install()
    allocator.watch_births(False)
    since = Since()
    try:

        @tf.function
        def unwatched(x):
            return tf.matmul(x, tf.constant(np.arange(2500, dtype=np.float32).reshape(50, 50)))

        result = unwatched(tf.ones((2, 50)))
        assert of_runtime(since) == []
        assert since.grown("unnamed") >= 10_000
    finally:
        allocator.watch_births(True)
    assert result is not None


def test_the_handles_of_variables_are_one_row(watched):
    kept = [tf.Variable(tf.ones(3)), tf.Variable(tf.ones(3))]
    kept.append(tf.Variable(tf.zeros((2, 2))))
    snapshot = watched.snapshot()
    handles = [each for each in snapshot.tensors if each.name.endswith(".handle")]
    assert len(handles) >= 3
    text = str(snapshot)
    assert text.count("what operations know the variable by") == 1
    assert f"handles of variables x {len(handles)}" in text
    assert ".handle" not in text


def test_small_constants_of_a_graph_are_one_row(watched):
    @tf.function
    def with_constants(x):
        x = tf.reshape(tf.concat([x, x * 3.0], 0), (4, 2))
        return tf.nn.relu(tf.reduce_sum(x, axis=1) + tf.range(4.0))

    since = Since()
    result = with_constants(tf.ones((2, 2)))
    found = [each for each in of_runtime(since) if each.name.startswith("constants of with_")]
    assert len(found) > 1
    text = TextRenderer(view=View(top=None)).render(watched.snapshot())
    assert text.count("constants of with_constants") == 1
    assert f"constants of with_constants x {len(found)}" in text
    assert result is not None


class Stop:
    """Ends a thread that was started with it."""

    def __init__(self, make):
        self.on = True
        self._thread = threading.Thread(target=self._run, args=(make,))
        self._thread.start()

    def _run(self, make):
        while self.on:
            make()

    def end(self):
        self.on = False
        self._thread.join()


def test_lists_under_construction_do_no_harm():
    new_list = ctypes.pythonapi.PyList_New
    new_list.restype = ctypes.py_object
    new_tuple = ctypes.pythonapi.PyTuple_New
    new_tuple.restype = ctypes.py_object
    tensor = tf.ones((2, 2))
    unfilled = {"alone": new_list(5), "nested": [new_list(3), (new_list(2),)]}
    module = tf.Module()
    vars(module)["content"] = unfilled
    pairs = [new_tuple(2), (tensor,)]
    making = Stop(lambda: [tensor + 1.0 for _ in range(5)])
    try:
        for _ in range(5):
            assert tensorlens.MemReporter(module).snapshot().tensors
    finally:
        making.end()
    assert len(unfilled["alone"]) == 5
    assert len(pairs[0]) == 2


def test_shapes_of_more_dimensions_than_a_native_row_has():
    shape = (*(1,) * 8, 2, 3)
    made, weight = tf.ones(shape), tf.Variable(tf.ones(shape))
    plain, handle, value = tensor_reader.read_tensors([made, weight.handle])
    assert plain.shape == value.shape == shape and handle.shape == ()
    assert plain.nbytes == value.nbytes == 24 and plain.address


def test_without_the_native_reader_tensors_are_read_from_python():
    made = tf.random.normal((30, 20))
    weight = tf.Variable(tf.ones((5, 4)))
    words = tf.constant(["a", "b"])
    (plain, handle, value, strings) = tensor_reader.read_in_python([made, weight.handle, words])
    assert (plain.shape, plain.dtype, plain.nbytes) == ((30, 20), "float32", 2400)
    assert plain.address == tensor_reader.read_tensors([made])[0].address != 0
    assert (handle.dtype, handle.kind) == ("resource", tensor_reader.FactKind.TENSOR)
    assert (value.handle_fact, value.kind, value.shape, value.nbytes) == (
        1,
        tensor_reader.FactKind.VARIABLE,
        (5, 4),
        80,
    )
    # where a variable's value lies Python is not told
    assert value.address == 0
    assert (strings.kind, strings.nbytes) == (tensor_reader.FactKind.TENSOR, 2 * 24)
