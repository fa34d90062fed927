"""Line tables made from graph execution: bytes derived by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from interrupting import Interrupted, interrupt_once
from line_checks import Table, tables

from tensorlens import LineProfiler, LineReport
from tensorlens.frameworks.tensorflow import cpu, profiled_lines
from tensorlens.lines import Options, Profile, layouts, overview
from tensorlens.render import TextRenderer, fragment

FLOAT = 4
SQUARE = 64 * 64 * FLOAT


def square(value=0.01):
    return tf.fill((64, 64), value)


def graph_table(profiler):
    """Return the table of the only function, which no line of is told to have run."""
    report = profiler.result()
    assert tables(report) == {}
    (found,) = tables(report, "graph").values()
    return found


def test_lines_are_charged_with_their_nodes():
    profiler = LineProfiler()

    @tf.function
    @profiler
    def work(x):
        a = x @ x
        b = a @ x
        both = tf.concat([a, b], 0)
        tf.exp(both) @ x
        return both

    x = square()
    # the first call also keeps the constants of the graph
    work(x)
    profiler.clear()
    kept = [work(x) for _ in range(3)]
    table = graph_table(profiler)
    assert table.function.calls == len(kept) == 3
    for line in ("a = x @ x", "b = a @ x"):
        memory = table.memory(line)
        assert table.line(line).hits == 3
        assert (memory.allocated, memory.peak, memory.net) == (SQUARE, SQUARE, 0)
        assert memory.reserved is memory.backward is None
    result = table.memory("both = tf.concat")
    # it is what the call gives back
    assert result.allocated == result.peak == result.net_max == result.net_first == 2 * SQUARE
    assert result.net == 3 * 2 * SQUARE
    # optimised away
    assert table.line("tf.exp(both) @ x").memory == {}
    assert table.line("tf.exp(both) @ x").hits == 0


@pytest.mark.parametrize("moment", ["tl_nodes_begin", "tl_end"])
def test_calls_after_an_interrupt_are_added_up(monkeypatch, moment):
    profiler = LineProfiler()

    @tf.function
    @profiler
    def work(x):
        a = x @ x
        return a @ x

    x = square()
    work(x)
    interrupt_once(monkeypatch, cpu.install().library, moment)
    with pytest.raises(Interrupted):
        work(x)
    profiler.clear()
    work(x), work(x)
    table = graph_table(profiler)
    memory = table.memory("a = x @ x")
    assert (table.line("a = x @ x").hits, table.function.calls) == (2, 2)
    assert (memory.allocated, memory.peak, memory.net) == (SQUARE, SQUARE, 0)


def test_the_whole_graph_agrees_with_the_allocator():
    allocator = cpu.install()
    profiler = LineProfiler()

    @tf.function
    @profiler
    def work(x):
        a = x @ x
        return tf.reduce_sum(a @ x, 0)

    x = square()
    work(x)
    profiler.clear()
    allocator.read()
    base = allocator.allocated()
    result = work(x)
    allocated, peak, _ = allocator.read()
    (memory,) = graph_table(profiler).function.whole.values()
    assert memory.net == allocated - base == 64 * FLOAT
    assert memory.peak == peak - base
    assert result.shape == (64,)


def test_gradients_go_to_the_lines_they_are_of():
    profiler = LineProfiler()

    @profiler
    @tf.function
    def work(x, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            a = x @ w
            b = tf.sin(a) @ w
        return tape.gradient(b, w)

    work(square(), square())
    profiler.clear()
    work(square(), square())
    table = graph_table(profiler)
    assert table.memory("a = x @ w").allocated == SQUARE
    assert table.memory("a = x @ w").backward == SQUARE
    # of sin(a) @ w: the gradients of both factors, and of sin the cosine
    assert table.memory("b = tf.sin(a) @ w").backward >= 2 * SQUARE
    asked = table.memory("return tape.gradient(b, w)")
    lines = table.function.lines
    backward = [line.memory["cpu"].backward for line in lines if line.memory]
    assert asked.allocated >= sum(backward)
    assert asked.net == SQUARE


def test_a_tape_around_a_graph():
    profiler = LineProfiler()

    @tf.function
    @profiler
    def work(x):
        a = tf.sin(x)
        return a @ x

    x = square()
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = work(x)
        tape.gradient(result, x)
    table = graph_table(profiler)
    # the call of the gradient function is none of the function
    assert table.function.calls == 2
    assert table.memory("return a @ x").backward == 2 * SQUARE
    assert table.memory("a = tf.sin(x)").backward == SQUARE
    # kept for the gradient
    assert table.memory("a = tf.sin(x)").net == 2 * SQUARE


def test_loops_add_up_their_iterations():
    profiler = LineProfiler()

    @tf.function
    @profiler
    def work(x):
        total = x
        for _ in tf.range(5):
            total = total @ x
        return total

    work(square())
    memory = graph_table(profiler).memory("total = total @ x")
    assert memory.allocated == 5 * SQUARE
    assert memory.peak == 2 * SQUARE
    assert memory.net == SQUARE


def test_a_call_with_too_many_allocations_says_so_and_the_next_is_whole():
    profiler = LineProfiler()

    @tf.function
    @profiler
    def work(x, turns):
        for _ in tf.range(turns):
            x = tf.reverse(tf.reverse(tf.reverse(tf.reverse(x, [0]), [0]), [0]), [0])
        return x

    x, few, many = tf.zeros(1000), tf.constant(2), tf.constant(300_000)
    # the first call also keeps the constants of the graph
    work(x, few)
    profiler.clear()
    work(x, many)
    assert "two million allocations" in graph_table(profiler).function.note
    profiler.clear()
    work(x, few)
    table = graph_table(profiler)
    assert table.memory("x = tf.reverse").allocated == 2 * 4 * 4000
    assert "two million" not in (table.function.note or "")


def test_figures_stay_when_functions_are_read_again(monkeypatch):
    monkeypatch.setattr(profiled_lines, "_MAX_FUNCTIONS", 1)
    profiler = LineProfiler()

    @profiler
    def work(x):
        return tf.reverse(x, [0])

    one, other, x = tf.function(work), tf.function(work), tf.zeros(1000)
    for _ in range(3):
        one(x), other(x)
    table = graph_table(profiler)
    line, memory = table.line("tf.reverse(x"), table.memory("tf.reverse(x")
    assert (table.function.calls, line.hits) == (6, 6)
    # each of the two graphs keeps the axis from its first call on
    assert memory.net == 6 * 4000 + 2 * 4


def test_failure_to_add_up_is_a_note(monkeypatch):
    profiler = LineProfiler()

    @tf.function
    @profiler
    def work(x):
        return x + 1

    def fail(*given):
        raise MemoryError("no room")

    work(tf.zeros(1000))
    profiler.clear()
    with monkeypatch.context() as patch:
        patch.setattr(profiled_lines, "listed", fail)
        work(tf.zeros(1000))
        table = graph_table(profiler)
    assert table.function.calls == 1
    assert "figures of some calls are missing: MemoryError: no room" in table.function.note
    profiler.clear()
    work(tf.zeros(1000))
    assert graph_table(profiler).function.note is None


def test_only_the_branch_that_ran_has_figures():
    profiler = LineProfiler()

    @tf.function
    @profiler
    def work(x):
        if x[0, 0] > 0:
            y = x @ x
        else:
            y = tf.transpose(x) @ x
        return y

    work(square())
    table = graph_table(profiler)
    assert table.memory("y = x @ x").allocated == SQUARE
    assert not table.line("y = tf.transpose(x) @ x").memory
    work(square(-1.0))
    table = graph_table(profiler)
    assert table.memory("y = tf.transpose(x) @ x").net == SQUARE
    assert table.line("y = x @ x").hits == 1


def test_callers_include_what_they_call():
    profiler = LineProfiler()

    @profiler
    def inner(x):
        return x @ x

    @tf.function
    @profiler
    def outer(x):
        a = inner(x)
        b = inner(a)
        return tf.concat([a, b], 0)

    outer(square())
    found = tables(profiler.result(), "graph")
    assert found["outer"].memory("a = inner(x)").allocated == SQUARE
    assert found["outer"].memory("b = inner(a)").allocated == SQUARE
    assert found["inner"].memory("return x @ x").allocated == 2 * SQUARE
    assert found["inner"].function.calls == 1


def test_eager_calls_and_graphs_have_a_table_each():
    profiler = LineProfiler()

    @profiler
    def work(x):
        return x @ x

    x = square()
    kept = [work(x), tf.function(work)(x)]
    report = profiler.result()
    assert tables(report)["work"].function.calls == 1
    assert tables(report)["work"].net("return x @ x") == SQUARE
    assert tables(report, "graph")["work"].memory("return x @ x").net == SQUARE
    assert len(kept) == 2


def test_only_while_the_profiler_is_on():
    @tf.function
    def work(x):
        return x @ x

    x = square()
    work(x)
    with LineProfiler(work) as profiler:
        work(x)
    work(x)
    assert graph_table(profiler).function.calls == 1
    again = LineProfiler(work)
    work(x)
    assert tables(again.result(), "graph") == {}


def test_traced_and_never_run():
    profiler = LineProfiler()

    @tf.function
    @profiler
    def work(x):
        return x @ x

    work.get_concrete_function(square())
    (function,) = profiler.result().functions
    assert function.calls == 0
    assert not any(line.hits for line in function.lines)
    assert function.note == "it ran once to build graphs, and none was seen to run"


def test_xla_function_is_one_row():
    profiler = LineProfiler()

    @profiler
    @tf.function(jit_compile=True)
    def work(x):
        y = tf.exp(x)
        return tf.concat([y, y], 0)

    x = square()
    kept = [work(x), work(x)]
    report = profiler.result()
    (function,) = report.functions
    assert function.execution == "XLA"
    assert function.note == "compiled by XLA: its lines do not run"
    (line,) = function.lines
    assert line.source.strip() == "def work(x):"
    assert line.hits == function.calls == len(kept)
    assert line.memory["cpu"].net_max == 2 * SQUARE
    assert line.memory["cpu"].allocated >= line.memory["cpu"].peak >= 2 * SQUARE
    assert LineReport.from_json(report.to_json()) == report
    profiler.clear()
    kept.append(work(x))
    (function,) = profiler.result().functions
    assert (function.execution, function.calls) == ("XLA", 1)


class Small(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(32, use_bias=False)

    def call(self, x):
        y = self.dense(x)
        return tf.concat([y, y], 1)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean(predicted * y)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def test_fit_of_a_compiled_model():
    profiler = LineProfiler()
    originals = Small.call, Small.train_step
    Small.call, Small.train_step = map(profiler, originals)
    try:
        model = Small()
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(square(), square(), batch_size=16, epochs=2, verbose=0)
    finally:
        Small.call, Small.train_step = originals
    report = profiler.result()
    assert tables(report) == {}
    found = tables(report, "graph")
    call, step = found["call"], found["train_step"]
    assert call.function.calls == step.function.calls == 8
    assert call.line("y = self.dense(x)").hits == 8
    assert call.memory("y = self.dense(x)").peak == 16 * 32 * FLOAT
    # the gradient of the kernel
    assert call.memory("y = self.dense(x)").backward == 64 * 32 * FLOAT
    # their sum, by which what follows is included
    predicted = step.memory("predicted = self(x, training=True)")
    lines = [line.memory["cpu"] for line in call.function.lines if line.memory]
    assert predicted.allocated == sum(each.allocated for each in lines)
    assert predicted.backward == sum(each.backward for each in lines)
    assert not step.line("x, y = data").memory


def test_a_compiled_model_by_itself():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, use_bias=False)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(square(), tf.fill((64, 32), 1.0), verbose=0)
    with LineProfiler(model, model.layers[0]) as profiler:
        model.predict(square(), verbose=0)
    whole, layer = profiler.result().functions
    assert (whole.qualname, layer.qualname) == ("Sequential.call", "Dense.call")
    assert whole.execution == layer.execution == "graph"
    # two batches of 32, in one graph as two calls
    product = Table(layer).line("ops.matmul(inputs, self.kernel)")
    assert product.hits == whole.calls == 2
    assert product.memory["cpu"].peak == 32 * 32 * FLOAT
    assert Table(whole).memory("return self._functional.call(").peak == 32 * 32 * FLOAT


@pytest.mark.parametrize("order", ["below", "above"])
def test_autograph_converts_what_is_inside(order):
    profiler = LineProfiler()

    def work(x):
        if x > 0:
            x = x * 2.0
        for _ in tf.range(3):
            x = x + 1.0
        while x < 10.0:
            x = x + 1.5
        return x

    traced = tf.function(profiler(work)) if order == "below" else profiler(tf.function(work))
    plain = tf.function(work)
    for value in (2.0, -3.0, 40.0):
        assert traced(tf.constant(value)) == plain(tf.constant(value))
    assert type(traced) is type(plain)


def test_autograph_is_kept_out_where_it_was():
    def work(x):
        return x if x > 0 else -x

    profiled = tf.function(LineProfiler()(work), autograph=False)
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        profiled(tf.constant(1.0))

    @tf.function
    @tf.autograph.experimental.do_not_convert
    @LineProfiler()
    def unconverted(x):
        return x if x > 0 else -x

    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        unconverted(tf.constant(1.0))


def test_methods_are_converted_too():
    class Counting:
        @tf.function
        @LineProfiler()
        def up_to(self, x):
            return self.rest(x + 1.0)

        @LineProfiler()
        def rest(self, x):
            while x < 10.0:
                x = x + 2.0
            return x

    counting = Counting()
    assert counting.up_to(tf.constant(1.0)) == 10.0
    assert counting.rest(tf.constant(1.0)) == 11.0


def test_functions_that_run_eagerly_have_lines():
    profiler = LineProfiler()

    @profiler
    @tf.function
    def work(x):
        return x @ x

    tf.config.run_functions_eagerly(True)
    try:
        kept = work(square())
    finally:
        tf.config.run_functions_eagerly(False)
    assert tables(profiler.result())["work"].line("return x @ x").hits == 1
    assert kept.shape == (64, 64)


def test_a_block_in_a_function_that_is_traced_is_left_alone():
    profile = Profile()

    @tf.function(autograph=False)
    def work(x):
        with profile as block:
            blocks.append(block)
            return x @ x

    blocks = []
    assert work(square()).shape == (64, 64)
    assert blocks == [None]


def report_of_both():
    profiler = LineProfiler()

    @profiler
    def eager(x):
        return x @ x

    @tf.function
    @profiler
    def graph(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            a_result_with_a_rather_long_name = tf.sin(x @ x) @ tf.cos(x @ tf.transpose(x))
        return tape.gradient(a_result_with_a_rather_long_name, x)

    eager(square())
    graph(square())
    return profiler.result()


@pytest.mark.parametrize("width", [80, 120])
def test_text_is_headed_and_fits(width):
    text = TextRenderer(width=width).render(report_of_both())
    assert max(map(len, text.splitlines())) <= width
    before, heading, after = text.partition("From graph execution: ")
    assert heading
    assert "return x @ x" in before
    assert "tape.gradient" not in before
    assert "Reserved" not in after.split("Left out")[0]
    assert "Backward" in after


def test_html_json_and_rows():
    report = report_of_both()
    assert LineReport.from_json(report.to_json()) == report
    eager, graph = report.to_dict()["functions"]
    assert "execution" not in eager
    assert graph["execution"] == "graph"
    html = fragment(report)
    assert html.count("From graph execution: ") == 1
    # Reserved and Time are columns of the first table alone
    assert html.count(">Reserved</th>") == html.count(">Time</th>") == 1
    header, *rows = report.to_csv().splitlines()
    assert header.endswith(",raised,execution")
    assert {row.rpartition(",")[2] for row in rows} == {"lines", "graph"}


def test_batches_of_pipelines_are_not_of_the_whole_graph():
    profiler = LineProfiler()
    batches = tf.data.Dataset.from_tensor_slices(tf.fill((4 * 64, 64), 0.01))
    batches = batches.map(lambda row: row * 2.0).batch(64).prefetch(2)

    @tf.function
    @profiler
    def epoch(batches, w):
        total = 0.0
        for batch in batches:
            total += tf.reduce_sum(batch @ w)
        return total

    epoch(batches, square())
    profiler.clear()
    epoch(batches, square())
    table = graph_table(profiler)
    memory = table.memory("total += tf.reduce_sum")
    # four products one after the other, and their sums; once the two axes to sum over
    assert memory.allocated == 4 * (SQUARE + FLOAT) + 2 * 4
    (whole,) = table.function.whole.values()
    lines = table.function.lines
    assert whole.allocated == sum(line.memory["cpu"].allocated for line in lines if line.memory)
    assert whole.peak < 2 * SQUARE


def test_batches_that_fit_makes_of_arrays_are_not_of_its_line():
    profiler = LineProfiler()
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64)])
    model.compile("sgd", "mse")
    x = np.zeros((4 * 64, 64), "float32")

    @profiler
    def train():
        model.fit(x, x, batch_size=64, verbose=0)

    train()
    profiler.clear()
    train()
    (found,) = tables(profiler.result(), "graph").values()
    line = found.line("model.fit(")
    (whole,) = found.function.whole.values()
    memory = line.memory["cpu"]
    assert (memory.allocated, memory.peak) == (whole.allocated, whole.peak)
    # a graph for each batch, and none for the pipeline
    assert line.hits == found.function.calls == 4


def test_replacement_is_no_growth():
    profiler = LineProfiler()
    state = tf.Variable(square())

    @tf.function
    @profiler
    def work(x):
        state.assign(x @ x)

    x = square()
    work(x)
    profiler.clear()
    for _ in range(4):
        work(x)
    memory = graph_table(profiler).memory("state.assign(x @ x)")
    assert (memory.net, memory.growth) == (4 * SQUARE, 0)
    (layout,) = layouts(profiler.result())
    assert overview([layout]).growths == ()


def test_kept_tensor_is_growth():
    profiler = LineProfiler()
    x = square()

    @tf.function
    @profiler
    def grow(x):
        return x @ x

    grow(x)
    profiler.clear()
    kept = [grow(x) for _ in range(4)]
    memory = graph_table(profiler).memory("return x @ x")
    assert memory.net == memory.growth == len(kept) * SQUARE
    (layout,) = layouts(profiler.result())
    assert [each.entry for each in overview([layout]).growths] == [*layout.entries]


def test_cleared_graph_is_no_table_of_what_ran_to_build_it():
    profiler = Profile().profiler

    def work(x):
        return x @ x

    wrapped = tf.function(profiler.decorate(work, Options()))
    wrapped(square())
    profiler.clear()
    assert profiler.unprinted(None) == []


class Doubled(keras.layers.Layer):
    def call(self, x):
        return keras.ops.tanh(x) * 2


@pytest.mark.parametrize("functional", [True, False])
def test_the_line_of_a_model_without_code_points_to_its_layers(functional):
    inputs, doubled = keras.Input((8,)), Doubled()
    layers = [keras.layers.Dense(8), doubled, keras.layers.Dense(2)]
    model = keras.Sequential([inputs, *layers])
    if functional:
        outputs = inputs
        for layer in layers:
            outputs = layer(outputs)
        model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    profiler = LineProfiler(Doubled.call)

    @profiler
    def train():
        model.fit(tf.zeros((32, 8)), tf.zeros((32, 2)), batch_size=16, verbose=0)

    with profiler:
        train()
    notes = {
        table.function.name: table.function.note or ""
        for table in tables(profiler.result(), "graph").values()
    }
    line = train.__wrapped__.__code__.co_firstlineno + 2
    assert f"line {line}: all layers of a Keras model are in one line" in notes["train"]
    # a layer with code of its own has lines
    assert "layers" not in notes["call"]
