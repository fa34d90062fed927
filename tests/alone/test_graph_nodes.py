"""What a node of a graph is by the name it has where it runs.

The names are TensorFlow's own account of what its executors ran: the partitioned graphs of the
run metadata. The lines are found in this file by the marks at their ends. It has a
process of its own: once run metadata was asked for, TensorFlow keeps five times as much of each
function that it makes.
"""

import gc
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import keras
from keras import layers
from tensorflow.python.eager import context

from tensorlens.frameworks.tensorflow import (
    Functions,
    Nodes,
    follow_graph_calls,
    not_followed,
    plain_name,
    plain_names,
)

SOURCE = Path(__file__).read_text().splitlines()
X = tf.ones((4, 4))


def line_of(mark):
    (found,) = [n for n, line in enumerate(SOURCE, 1) if line.endswith(f"# mark: {mark}")]
    return found


class Ran:
    """The functions that a call ran, and the nodes that executors ran in them, by name."""

    def __init__(self, act):
        self.calls = []
        runtime = context.context()
        runtime.ensure_initialized()
        self.nodes = Nodes()
        end = follow_graph_calls(self._begin)
        runtime.enable_run_metadata()
        try:
            act()
            metadata = runtime.export_run_metadata()
        finally:
            runtime.disable_run_metadata()
            end()
        graphs = [g for each in metadata.function_graphs for g in each.partition_graphs]
        self.ops = {node.name: node.op for graph in graphs for node in graph.node}

    def _begin(self, name):
        self.calls.append(name)
        self.nodes.functions.catch_up()

    @property
    def function(self):
        return self.calls[-1]

    def find(self, name):
        return self.nodes.find(name, self.function)

    def of_type(self, op):
        kinds = (op, f"_Mkl{op}", f"_Fused{op}", f"_MklFused{op}", f"_MklNativeFused{op}")
        return {name: self.find(name) for name, kind in self.ops.items() if kind in kinds}


@tf.function
def inner(a):
    return tf.nn.relu(a @ a)  # mark: inner


def make_control():
    # executors tell the nodes of a function when it runs for the first time
    @tf.function
    def control(a):
        b = inner(a) + inner(a * 2)
        for _ in tf.range(3):
            b = tf.nn.tanh(b @ a)  # mark: in loop
            if tf.reduce_sum(b) > 0:
                b = b * tf.exp(a)  # mark: then
            else:
                b = b / tf.cos(a)  # mark: else
        return tf.reduce_sum(b)

    return control


def test_nodes_of_calls_loops_and_branches_have_their_lines():
    control = make_control()

    @tf.function
    def gradient(a):
        with tf.GradientTape() as tape:
            tape.watch(a)
            loss = control(a)
        return tape.gradient(loss, a)  # mark: gradient

    ran = Ran(lambda: gradient(X))
    products = ran.of_type("MatMul")
    forward = [each for each in products.values() if each.phase == "forward"]
    backward = [each for each in products.values() if each.phase == "backward"]
    assert sorted(each.line.lineno for each in forward) == sorted(
        [line_of("inner"), line_of("inner"), line_of("in loop")]
    )
    # two gradients of each product
    assert {each.line.lineno for each in backward} == {line_of("gradient")}
    assert sorted(each.forward.line.lineno for each in backward) == sorted(
        2 * [line_of("inner"), line_of("inner"), line_of("in loop")]
    )
    assert {each.forward.op for each in backward} == {"MatMul"}
    exps = [each.line.lineno for each in ran.of_type("Exp").values()]
    cosines = [each.line.lineno for each in ran.of_type("Cos").values()]
    assert set(exps) == {line_of("then")} and set(cosines) == {line_of("else")}


def test_the_stack_is_the_users_lines_and_the_innermost_comes_first():
    control = make_control()
    ran = Ran(lambda: control(X))
    (product,) = [each for name, each in ran.of_type("MatMul").items() if "while" in name]
    mine = [each for each in product.stack if each.filename == __file__]
    assert [each.lineno for each in mine[:1]] == [line_of("in loop")]
    assert mine[-1].function == ("test_the_stack_is_the_users_lines_and_the_innermost_comes_first")
    assert not any("site-packages" in each.filename for each in product.stack)


def test_the_forward_operation_in_a_scope_of_several_is_the_one_whose_values_are_read():
    w = tf.Variable(tf.ones((4, 4)))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            p = x @ w  # mark: product
            d = p - y  # mark: difference
            s = tf.square(d)  # mark: square
            loss = tf.reduce_mean(s)  # mark: mean
        return tape.gradient(loss, w)  # mark: step gradient

    ran = Ran(lambda: step(X, X + 1))
    muls = [each for each in ran.of_type("Mul").values() if each.phase == "backward"]
    assert muls and {each.forward.line.lineno for each in muls} == {line_of("square")}
    (product,) = [each for each in ran.of_type("MatMul").values() if each.phase == "backward"]
    assert product.forward.line.lineno == line_of("product")
    assert product.line.lineno == line_of("step gradient")


class Twice(keras.Model):
    def __init__(self):
        super().__init__(name="twice")
        self.dense = layers.Dense(8, name="dense")
        self.stack = keras.Sequential([layers.Dense(8, name="a"), layers.Dense(8, name="a_1")])
        self.out = layers.Dense(1, name="out")

    def call(self, x):
        h = self.dense(x)  # mark: first
        h = self.dense(h)  # mark: second
        return self.out(self.stack(h))  # mark: rest


def test_layers_of_a_subclassed_model_with_one_called_twice():
    # of other models, which may be there still
    others = {*Nodes().functions.names()}
    model = Twice()
    model.compile("adam", "mse")

    def fit():
        model.fit(np.zeros((4, 8)), np.zeros((4, 1)), verbose=0)

    fit()
    ran = Ran(fit)
    made = {*Nodes().functions.names()} - others
    names = {name for name in made if "one_step_on_data" in name}
    # fit does not run its function for the first time, so that its names are not told again
    found = {}
    for name in names:
        body = ran.nodes.functions.body(name)
        for node in body.nodes.values():
            origin = ran.nodes.find(node.name, name)
            if node.op == "MatMul" and origin.phase == "forward":
                found.setdefault(name, []).append((origin.layer, origin.line.lineno))
    assert found
    for products in found.values():
        assert products == [
            (model.dense.path, line_of("first")),
            (model.dense.path, line_of("second")),
            (model.stack.layers[0].path, line_of("rest")),
            (model.stack.layers[1].path, line_of("rest")),
            (model.out.path, line_of("rest")),
        ]
    # inlined into the function that fit calls, as executors name them
    at = "StatefulPartitionedCall/gradient_tape/twice_1/dense_3/MatMul/MatMul"
    origin = ran.find(at)
    assert (origin.layer, origin.phase) == ("twice/dense", "backward")
    assert origin.forward.line.lineno == line_of("second")


def test_layers_of_functional_models_and_recurrent_bodies_have_the_layers_own_paths():
    entry = keras.Input((5, 4))
    recurrent = layers.LSTM(3, name="memory")
    attention = layers.MultiHeadAttention(2, 2, name="attention")
    hidden = recurrent(attention(entry, entry))
    model = keras.Model(entry, layers.Dense(1, name="head")(hidden), name="outer")

    @tf.function
    def forward(x):
        return model(x)  # mark: model

    ran = Ran(lambda: forward(tf.ones((2, 5, 4))))
    paths = {each.layer for name, each in ran.of_type("MatMul").items()}
    assert {recurrent.cell.path, "head"} <= paths
    assert recurrent.cell.path == "memory/lstm_cell"
    einsums = {each.layer for each in ran.of_type("Einsum").values()}
    assert einsums == {"attention"}
    everything = {ran.find(name).layer for name in ran.ops if "/attention_1/" in name}
    assert {"attention/query", "attention/key", "attention/value"} <= everything


def test_optimizer_nodes_are_recognized():
    w = keras.Variable(np.ones((4, 4)), name="w")
    optimizer = keras.optimizers.Adam()
    optimizer.build([w])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ w)
        optimizer.apply([tape.gradient(loss, w.value)], [w])  # mark: apply

    ran = Ran(lambda: step(X))
    roots = list(ran.of_type("Sqrt").values())
    assert roots and {each.phase for each in roots} == {"optimizer"}
    assert {each.line.lineno for each in roots} == {line_of("apply")}


def test_recomputed_nodes_are_backward_with_their_own_line():
    @tf.recompute_grad
    def block(h):
        return tf.exp(h) @ h  # mark: block

    @tf.function
    def step(a):
        with tf.GradientTape() as tape:
            tape.watch(a)
            loss = tf.reduce_sum(block(a))
        return tape.gradient(loss, a)

    nodes = Nodes()
    concrete = step.get_concrete_function(X)
    names = [op.name for op in concrete.graph.get_operations() if op.type == "Exp"]
    exps = [nodes.find(name, concrete.name.decode()) for name in names]
    assert sorted(each.phase for each in exps) == ["backward", "forward"]
    assert {each.line.lineno for each in exps} == {line_of("block")}
    (again,) = [each for each in exps if each.phase == "backward"]
    assert again.forward.line.lineno == line_of("block")


def test_nearly_every_node_that_runs_has_a_line():
    control = make_control()
    ran = Ran(lambda: control(X))
    skip = {"_Arg", "_Retval", "_DeviceArg", "_DeviceRetval", "_EagerConst"}
    names = [name for name, op in ran.ops.items() if op not in skip and "/" in name]
    unknown = [name for name in names if (each := ran.find(name)) is None or each.line is None]
    assert len(names) > 30 and not unknown


def test_a_function_compiled_by_xla_says_so():
    @tf.function(jit_compile=True)
    def compiled(a):
        return tf.exp(a)

    concrete = compiled.get_concrete_function(X)  # mark: trace
    name = concrete.name.decode()
    nodes = Nodes()
    assert nodes.functions.compiled(name)
    assert not nodes.functions.compiled(inner.get_concrete_function(X).name.decode())
    origin = nodes.find(name)
    assert (origin.op, origin.phase) == ("XLA", "other")
    assert nodes.find("cluster_1_1/xla_run").op == "XLA"


def test_functions_outlive_their_input_pipeline():
    def prepare(i):
        return tf.exp(tf.cast(i, tf.float32))  # mark: prepare

    functions = Functions()
    data = tf.data.Dataset.range(3).map(prepare)
    functions.catch_up()
    del data
    gc.collect()
    # a function runs at the same time that has no node of that name
    origin = Nodes(functions).find("Exp", name_of(inner))
    assert (origin.line.lineno, origin.phase) == (line_of("prepare"), "other")


def name_of(function):
    return function.get_concrete_function(X).name.decode()


def test_a_function_that_died_is_unknown_unless_it_was_remembered():
    def make():
        @tf.function
        def short(a):
            return tf.math.lgamma(a)  # mark: short

        short(X)
        return name_of(short)

    kept = Functions()
    names = []

    def begin(name):
        names.append(name)
        kept.remember(name)

    end = follow_graph_calls(begin)
    name = make()
    end()
    gc.collect()
    assert names == [name]
    assert name not in Functions().names()
    assert Nodes().find("Lgamma", name) is None
    assert Nodes(kept).find("Lgamma", name).line.lineno == line_of("short")


def test_two_functions_with_nodes_of_one_name():
    @tf.function
    def one(a):
        return tf.math.erfc(a)  # mark: one

    @tf.function
    def other(a):
        return tf.math.erfc(a)  # mark: other

    first, second = name_of(one), name_of(other)
    nodes = Nodes()
    assert nodes.find("Erfc", first).line.lineno == line_of("one")
    assert nodes.find("Erfc", second).line.lineno == line_of("other")
    both = nodes.find("Erfc")
    assert both.line is None and both.op == "Erfc"
    # what called both is what they agree on
    assert both.stack[0].function == "name_of"


def test_retracing_does_not_make_a_line_ambiguous():
    @tf.function
    def traced(a):
        return tf.math.digamma(a)  # mark: traced

    for size in (2, 3):
        traced.get_concrete_function(tf.ones(size))
    origin = Nodes().find("Digamma")
    assert origin.line.lineno == line_of("traced")


def test_callees_are_searched_once_per_function():
    class Counting(Functions):
        searches = 0

        def called_by(self, name):
            self.searches += 1
            return super().called_by(name)

    body = inner.get_concrete_function(X).function_def
    functions = Counting()
    nodes = Nodes(functions, {})
    names = [node.name for node in body.node_def]
    assert len(names) > 1
    assert all(nodes.within(name, body.signature.name) for name in names)
    assert functions.searches == 1


def test_names_with_slashes_and_numbers():
    @tf.function
    def scoped(a):
        with tf.name_scope("a/b_1"), tf.name_scope("gradients_of_mine"):
            return tf.exp(a, name="c/d") + tf.exp(a)  # mark: scoped

    ran = Ran(lambda: scoped(X))
    found = ran.of_type("Exp")
    assert "a/b_1/gradients_of_mine/c/d" in found
    assert {each.line.lineno for each in found.values()} == {line_of("scoped")}
    assert {each.phase for each in found.values()} == {"forward"}


def test_unknown_node_names():
    nodes = Nodes()
    for name in ("", "/", "no/such/node", "a" * 10_000, "StatefulPartitionedCall/none"):
        assert nodes.find(name, "__inference_nobody_1") is None


@pytest.mark.parametrize(
    "name",
    [
        "range/_0__cf__0",
        "ConstantFolding/range-folded-0",
        "ConstantFolding/range_recip",
        "Func/range/output/_464",
        "range-0-TransposeNHWCToNCHW-LayoutOptimizer",
        "range_arithmetic_optimizer",
        "ArithmeticOptimizer/ReorderCastLikeAndValuePreserving_range",
    ],
)
def test_optimizer_suffixes_are_stripped_from_names(name):
    assert "range" in plain_names(name)


def test_names_of_functions():
    assert plain_name("__inference_train_step_123") == "train_step"
    assert plain_name("__forward_f_461") == "f"
    assert plain_name("__inference___backward_f_153_462") == "f"
    assert plain_name("while_body_31") == "while_body_31"
    name = name_of(inner)
    assert name in Functions().names()


def test_looking_keeps_no_function_alive():
    def make():
        @tf.function
        def short(a):
            return tf.exp(a)

        name = name_of(short)
        nodes = Nodes()
        assert nodes.find("Exp", name) is not None
        return nodes, name

    nodes, name = make()
    gc.collect()
    assert name not in nodes.functions.names()


# calls


def test_calls_are_followed_with_gradients_and_nested_calls():
    assert not_followed() is None
    seen, depth = [], []

    def begin(name):
        depth.append(name)
        seen.append((plain_name(name), len(depth)))
        return depth.pop

    @tf.function
    def outer(a):
        return tf.py_function(lambda b: inner(b), [a], tf.float32)

    outer(X)
    end = follow_graph_calls(begin)
    try:
        outer(X)
        with tf.GradientTape() as tape:
            tape.watch(X)
            loss = tf.reduce_sum(inner(X))
        tape.gradient(loss, X)
    finally:
        end()
    assert seen == [("outer", 1), ("inner", 2), ("inner", 1), ("inner", 1)]
    assert depth == []
    inner(X)
    assert len(seen) == 4


def test_failing_function_keeps_its_traceback():
    @tf.function
    def failing(a):
        tf.debugging.assert_equal(a, 0.0)

    ended = []
    end = follow_graph_calls(lambda name: lambda: ended.append(1))
    try:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            failing(X)
    finally:
        end()
    assert ended == [1]
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not any(
        "tensorlens" in Path(file).parts and "tests" not in file for file in files
    ) and not any(file.endswith("calls.py") for file in files)


def test_errors_of_those_who_follow_do_not_reach_the_program():
    def broken(*_):
        raise RuntimeError

    end = follow_graph_calls(broken)
    half = follow_graph_calls(lambda name: broken)
    try:
        assert float(tf.reduce_sum(inner(X))) == 64.0
    finally:
        half()
        end()


def test_followers_end_in_any_order_and_more_than_once():
    method = vars(context.Context)["call_function"]
    first, second = [], []
    end_first = follow_graph_calls(first.append)
    end_second = follow_graph_calls(second.append)
    end_first()
    inner(X)
    end_second()
    end_second()
    end_first()
    assert (len(first), len(second)) == (0, 1)
    inner(X)
    assert (len(first), len(second)) == (0, 1)
    assert vars(context.Context)["call_function"] is method


def test_calls_are_reported_on_their_thread():
    inner(X)
    seen = []
    end = follow_graph_calls(lambda name: seen.append(threading.get_ident()))
    try:
        threads = [threading.Thread(target=inner, args=(X,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        end()
    assert sorted(seen) == sorted(thread.ident for thread in threads)
