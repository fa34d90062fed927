"""Lines of programs whose model is a library's, and of code that a framework generated."""

import importlib.util
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import tensorlens

MODELING = """\
import torch


class Attention(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.query = torch.nn.Linear(size, size, bias=False)

    def forward(self, x):
        q = self.query(x)
        return scores(q)


def scores(q):
    return q.exp()


class Bert(torch.nn.Module):
    def __init__(self, size, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(Attention(size) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def train(model, x):
    loss = model(x).sum()
    loss.backward()
"""
ROWS, SIZE, LAYERS = 50, 8, 3
ACTIVATION = ROWS * SIZE * 4


@pytest.fixture
def library(tmp_path):
    file = tmp_path / "site-packages" / "berts" / "modeling.py"
    file.parent.mkdir(parents=True)
    file.write_text(MODELING)
    spec = importlib.util.spec_from_file_location("berts_modeling", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(library, model, x) -> int:
    library.train(model, x)
    return sys._getframe().f_lineno - 1


def test_a_library_that_trains_its_own_model_has_two_levels_of_lines(library) -> None:
    model = library.Bert(SIZE, LAYERS)
    x = torch.randn(ROWS, SIZE)
    with tensorlens.record(model) as recording:
        call = train(library, model, x)
    peak = recording.peak("cpu")
    lines = {
        (line.lineno, model.lineno): size for (line, model), size in peak.by_model_line.items()
    }
    assert {line for line, _ in lines} == {call} and {model for _, model in lines} <= {10, 11}
    # kept of each layer: the result of exp, which is the next layer's input
    made = [
        block for block in peak.tensors if block.role == "activation" and block.nbytes == ACTIVATION
    ]
    # backward of the last layer's exp has run at the peak, which gave its result back
    assert [block.charged.lineno for block in made] == [call] * (LAYERS - 1)
    assert {str(block.model_line) for block in made} == {
        f"{library.__spec__.origin}:11 in Attention.forward"
    }
    (cost,) = [cost for cost in recording.backward("cpu") if cost.line.lineno == call]
    models = {line.lineno: size for line, size in cost.model_lines.items()}
    # exp: a gradient of each layer; query: of the weights, and of its input but for the first
    weights = LAYERS * SIZE * SIZE * 4
    assert models == {11: LAYERS * ACTIVATION, 10: weights + (LAYERS - 1) * ACTIVATION}
    text = str(recording)
    assert "modeling.py:11 in Attention.forward" in text and "return scores(q)" in text


def test_a_model_of_the_users_own_has_one_level(library) -> None:
    class Net(torch.nn.Module):
        def forward(self, x):
            return x.exp()

    with tensorlens.record() as recording:
        y = Net()(torch.ones(10, requires_grad=True))
    made = recording.blocks([each.row for each in recording.events if each.action == "alloc"])
    assert {block.model_line for block in made} == {None}
    del y


TRAINER = """\
class Trainer:
    def __init__(self, model, batches):
        self.model, self.batches, self.outputs = model, batches, []

    def training_step(self, x):
        output = self.model(x)
        self.outputs.append(output)
        return output.sum()

    def train(self):
        for x in self.batches:
            self.training_step(x)
"""


def test_a_snapshot_tells_the_model_line_below_a_librarys_loop(
    library, tmp_path, monkeypatch, capsys
) -> None:
    file = tmp_path / "site-packages" / "loops" / "trainer.py"
    file.parent.mkdir()
    file.write_text(TRAINER)
    spec = importlib.util.spec_from_file_location("loops_trainer", file)
    loops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loops)
    model = library.Bert(SIZE, LAYERS)
    reporter = tensorlens.MemReporter(model)
    trainer = loops.Trainer(model, [torch.randn(ROWS, SIZE)])
    before = reporter.snapshot()
    trainer.train()
    call = sys._getframe().f_lineno - 1
    after = reporter.snapshot()
    # the input's line is of this test; of each layer the result of exp is kept
    with_line = [each for each in after.tensors if each.model_line is not None]
    # what other tests left in this process is of other calls
    own = [each for each in with_line if each.born.filename == __file__]
    made = [each for each in own if each.born.lineno == call and not each.alias_of]
    assert [each.storage_nbytes for each in made] == [ACTIVATION] * LAYERS
    assert {(each.born.filename, each.born.lineno) for each in made} == {(__file__, call)}
    expected = f"{library.__spec__.origin}:11 in Attention.forward"
    assert {str(each.model_line) for each in made} == {expected}
    difference = after - before
    changed = [change.tensor.model_line for change in difference.appeared]
    assert changed.count(made[0].model_line) == LAYERS
    monkeypatch.setenv("COLUMNS", "120")
    assert "modeling.py:11" in str(after) and "modeling.py:11" in str(difference)
    capsys.readouterr()
    reporter.report(verbose=True)
    assert "line of the model " in " ".join(capsys.readouterr().out.split())
    assert tensorlens.Snapshot.from_dict(after.to_dict()).tensors == after.tensors


@pytest.mark.parametrize(
    "name", ["berts.Conv_propagate_ab12_xyz", "__main___C_edge_updater_0123abcd"]
)
def test_code_that_was_generated_for_a_layer_is_nobodys(name) -> None:
    file = Path(tempfile.gettempdir()) / f"{name}.py"
    file.write_text("def propagate(x):\n    return x * 2\n")
    try:
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        reporter = tensorlens.MemReporter()
        with tensorlens.record() as recording:
            y = module.propagate(torch.ones(100))
            line = sys._getframe().f_lineno - 1
        made = recording.blocks([each.row for each in recording.events if each.action == "alloc"])
        assert {each.charged.lineno for each in made} == {line}
        (found,) = [each for each in reporter.snapshot().tensors if each.name.endswith("): y")]
        assert (found.born.filename, found.born.lineno) == (__file__, line)
        del y
    finally:
        file.unlink()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 32)
        self.down = torch.nn.Linear(32, 8)

    def forward(self, x):
        h = torch.nn.functional.gelu(self.up(x))
        h = torch.sin(h) * 2
        return x + self.down(h)


@pytest.fixture
def own_graphs():
    """Cached graphs may be of another checkout's files; compiled kernels are of none."""
    with (
        torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        torch._dynamo.reset()
        yield


def test_compiled_code_is_of_the_line_that_called_it(own_graphs) -> None:
    net = torch.nn.Sequential(Block())
    compiled = torch.compile(net)
    optimizer = torch.optim.Adam(compiled.parameters())

    def step() -> None:
        compiled(torch.randn(64, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with tensorlens.record(compiled, optimizer) as recording:
        step()
    first = step.__code__.co_firstlineno
    made = recording.blocks([each.row for each in recording.events if each.action == "alloc"])
    assert {block.charged.filename for block in made} == {__file__}
    saved = [block for block in made if "CompiledFunctionBackward.saved_tensors" in block.name]
    lines = {block.charged.lineno - first for block in saved if block.nbytes > 64 * 8 * 4}
    assert lines == {1}
    assert all(line.filename == __file__ for line in recording.backward_by_line)
    reporter = tensorlens.MemReporter(compiled, optimizer)
    names = [each.name for each in reporter.snapshot().tensors]
    assert "0.up.weight" in names and "Adam.0.up.weight.exp_avg" in names
    assert not any("_orig_mod" in name for name in names)
    assert "_orig_mod" not in str(recording)


@pytest.mark.filterwarnings("ignore")
def test_functions_that_the_default_backend_compiled_have_one_row(own_graphs) -> None:
    torch._dynamo.utils.counters.clear()
    profiler = tensorlens.LineProfiler()

    @profiler
    def inner(x):
        return (x * 2).relu()

    compiled = profiler(torch.compile(lambda x: inner(x) + 1, fullgraph=True))
    x = torch.linspace(-1, 1, 12)
    assert torch.equal(compiled(x), (x * 2).relu() + 1)
    assert [len(function.lines) for function in profiler.result().functions] == [1, 1]
    assert not torch._dynamo.utils.counters["graph_break"]
