"""Modules of torch under the profiler: forward, copies, compilers, autograd, loaders."""

import copy
import functools
import gc
import inspect
import io
import re

import pytest
import torch
from line_figures import FLOAT, Lines, handed_out, run
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tensorlens
from tensorlens.errors import ProfileError

HIDDEN = 4 * 8 * FLOAT
"""Bytes of what Net's first layer makes of four rows."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x)
        x = x.relu()
        return self.second(x)


@pytest.fixture(autouse=True)
def no_garbage():
    handed_out()
    gc.collect()


def rows():
    return torch.ones(4, 3)


def only(profiler, base=0):
    (function,) = profiler.result().functions
    return Lines(function, base)


class TestModuleInstances:
    def test_its_forward_is_profiled_and_it_is_returned_itself(self):
        net, x, profiler = Net(), rows(), tensorlens.LineProfiler()
        expected = net(x)
        assert profiler(net) is net
        base = handed_out()
        assert torch.equal(net(x), expected)
        lines = only(profiler, base)
        assert lines.function.qualname == "Net.forward"
        assert lines["self.first(x)"] == (HIDDEN, HIDDEN, HIDDEN)
        # relu keeps its result; what went in is freed when the name is given away
        assert lines["x.relu()"] == (HIDDEN, 2 * HIDDEN, 0)
        assert lines["self.second(x)"].net == 4 * 2 * FLOAT

    def test_its_lines_are_counted_in_a_with_block_too(self):
        net = Net()
        with tensorlens.LineProfiler(net) as profiler:
            net(rows())
        assert only(profiler).function.calls == 1
        assert "forward" not in vars(net)

    def test_hooks_still_run(self):
        net, seen = Net(), []
        net.register_forward_pre_hook(lambda *_: seen.append("before"))
        tensorlens.LineProfiler()(net)
        net.register_forward_hook(lambda *_: seen.append("after"))
        net.register_full_backward_hook(lambda *_: seen.append("backward"))
        net(rows().requires_grad_()).sum().backward()
        assert seen == ["before", "after", "backward"]

    @pytest.mark.parametrize(
        "container", [nn.Sequential(nn.Linear(3, 8), nn.ReLU()), nn.Sequential()]
    )
    def test_sequential_instance(self, container):
        profiler = tensorlens.LineProfiler()
        container = profiler(copy.deepcopy(container))
        container(rows())
        lines = only(profiler)
        assert lines.function.qualname == "Sequential.forward"
        assert lines.line("input = module(input)").hits == len(container)

    def test_a_list_of_modules_has_no_forward_of_its_own(self):
        modules = nn.ModuleList([nn.Linear(3, 3)])
        profiler = tensorlens.LineProfiler()
        profiler(modules)
        with pytest.raises(NotImplementedError, match="forward"):
            modules(rows())
        assert modules[0](rows()).shape == (4, 3)

    def test_another_instance_runs_as_before(self):
        one, other, profiler = Net(), Net(), tensorlens.LineProfiler()
        profiler(one)
        other(rows())
        assert only(profiler).function.calls == 0

    @pytest.mark.parametrize("travel", ["deepcopy", "save"])
    def test_copies_of_a_profiled_instance(self, travel):
        net, x = tensorlens.LineProfiler()(Net()), rows()
        net(x)
        again = copied(net, travel)
        expected = net(x)
        assert torch.equal(again(x), expected)
        assert list(again.state_dict()) == list(Net().state_dict())
        # it has weights of its own, and its forward uses them
        for parameter in net.parameters():
            parameter.data.zero_()
        assert torch.equal(again(x), expected)
        assert not net(x).any()


DECORATOR = tensorlens.LineProfiler()


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    @DECORATOR
    def forward(self, x):
        return self.layer(x)


def copied(module, travel):
    if travel == "deepcopy":
        return copy.deepcopy(module)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class TestDecoratedForward:
    @pytest.mark.parametrize("travel", ["deepcopy", "save"])
    def test_copies_are_profiled_as_well(self, travel):
        net, x = Decorated(), rows()
        again = copied(net, travel)
        DECORATOR.clear()
        assert torch.equal(again(x), net(x))
        assert only(DECORATOR).function.calls == 2

    def test_state_dict_knows_nothing_of_it(self):
        net = Decorated()
        assert list(net.state_dict()) == ["layer.weight", "layer.bias"]
        assert Decorated().load_state_dict(net.state_dict()).missing_keys == []

    @pytest.mark.parametrize(
        "context",
        [
            torch.no_grad,
            torch.inference_mode,
            functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16),
        ],
    )
    def test_under_modes_of_torch(self, context):
        net, x = Decorated(), rows()
        with context():
            expected = net.layer(x)
        DECORATOR.clear()
        with context():
            found = net(x)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
        assert found.requires_grad == expected.requires_grad
        assert only(DECORATOR).line("return self.layer").hits == 1

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_checkpointing_runs_the_lines_again(self, reentrant):
        net, x = Decorated(), rows().requires_grad_()
        net(x).sum().backward()
        expected = [parameter.grad.clone() for parameter in (x, *net.parameters())]
        x.grad = None
        net.zero_grad()
        DECORATOR.clear()
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()
        for found, want in zip((x, *net.parameters()), expected, strict=True):
            assert torch.equal(found.grad, want)
        assert only(DECORATOR).function.calls == 2
        assert only(DECORATOR).line("return self.layer").raised is None

    @pytest.mark.filterwarnings("ignore")
    def test_scripting_is_refused(self):
        scripted = torch.jit.script(Net())
        with pytest.raises(ProfileError, match="cannot profile an object of ScriptMethod"):
            tensorlens.LineProfiler()(scripted)


class Scriptable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    @tensorlens.LineProfiler()
    def forward(self, x):
        return functional.relu(self.layer(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [Scriptable, lambda: tensorlens.LineProfiler()(Net())])
def test_other_tools_read_a_profiled_module_as_before(make):
    net, x = make(), rows()
    expected = net(x)
    for other in (
        torch.jit.script(net),  # reads the source, and looks its names up where it was written
        torch.jit.trace(net, x),
        torch.fx.symbolic_trace(net),
        torch.export.export(net, (x,)).module(),
        torch.vmap(net),
    ):
        assert torch.equal(other(x), expected)
    assert str(inspect.signature(net.forward)) == "(x)"
    assert torch.func.grad(lambda given: net(given).sum())(x).shape == x.shape


@tensorlens.LineProfiler()
@torch.no_grad()
def without_gradients(layer, x):
    kept = layer(x)
    return kept.requires_grad


@torch.no_grad()
def plain(layer, x):
    kept = layer(x)
    return kept.requires_grad


class TestWrappedByOthers:
    def test_no_grad_below_and_above(self):
        layer = nn.Linear(3, 2)
        profiler = tensorlens.LineProfiler()
        below, above = profiler(plain), torch.no_grad()(profiler(plain.__wrapped__))
        assert below(layer, rows()) is above(layer, rows()) is False
        assert only(profiler).line("kept = layer").hits == 2

    def test_wrapped_function_keeps_attributes(self):
        assert without_gradients.__name__ == "without_gradients"
        assert without_gradients.__wrapped__.__name__ == "without_gradients"

    def test_autograd_functions_on_autograds_thread(self):
        profiler = tensorlens.LineProfiler()

        class Square(torch.autograd.Function):
            @staticmethod
            @profiler
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            @profiler
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                double = x + x
                return double * gradient

        x = torch.full((100,), 3.0, requires_grad=True)
        y = Square.apply(x)
        base = handed_out()
        y.backward(torch.ones(100))
        assert torch.equal(x.grad, torch.full((100,), 6.0))
        forward, backward = (Lines(function, base) for function in profiler.result().functions)
        assert forward.function.calls == backward.function.calls == 1
        assert forward["return x * x"].net == 400
        assert backward["double = "].net == 400
        assert backward["double = "].allocated == 400 + 400  # and the gradient


class TestCompiled:
    """With the backend that compiles nothing: the same tracing as with every other."""

    @pytest.fixture(autouse=True)
    def fresh(self):
        import torch._dynamo

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        yield
        torch._dynamo.reset()

    @staticmethod
    def breaks():
        return sum(torch._dynamo.utils.counters["graph_break"].values())

    def test_profile_above_compile_is_one_row(self):
        profiler = tensorlens.LineProfiler()
        net = Net()

        def step(x):
            hidden = net.first(x)
            return hidden.relu().sum()

        compiled = profiler(torch.compile(step, backend="eager", fullgraph=True))
        base = handed_out()
        x = rows()
        assert torch.equal(compiled(x), step(x))
        lines = only(profiler, base)
        (line,) = lines.function.lines
        assert "def step(x):" in line.source
        assert line.hits == 1
        assert lines.function.note == "compiled by torch.compile: its lines were compiled away"
        assert str(profiler.result()).count("compiled away") == 1
        assert self.breaks() == 0

    def test_profile_below_compile_is_one_row_and_no_graph_break(self):
        profiler = tensorlens.LineProfiler()

        @profiler
        def inner(x):
            doubled = x * 2
            return doubled.relu()

        def step(x):
            return inner(x).sum()

        x = rows()
        compiled = torch.compile(step, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), (x * 2).relu().sum())
        lines = only(profiler)
        assert lines.function.note == (
            "compiled into a larger graph by torch.compile: its lines were compiled away"
        )
        (line,) = lines.function.lines
        assert "def inner(x):" in line.source
        assert self.breaks() == 0
        # called alone it runs its lines as ever
        inner(x)
        assert only(profiler).line("doubled = ").hits == 1

    def test_explain_counts_one_graph(self):
        profiler = tensorlens.LineProfiler()
        explained = torch._dynamo.explain(profiler(lambda x: (x * 2).relu()))(rows())
        assert (explained.graph_count, explained.graph_break_count) == (1, 0)

    def test_a_decorated_forward_in_a_compiled_module(self):
        net, x = Decorated(), rows()
        DECORATOR.clear()
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), net.layer(x))
        (line,) = only(DECORATOR).function.lines
        assert line.hits == 0
        assert "compiled away" in only(DECORATOR).function.note
        assert self.breaks() == 0

    def test_a_compiled_module_profiled(self):
        net, x = Net(), rows()
        expected = net(x)
        profiler = tensorlens.LineProfiler()
        compiled = profiler(torch.compile(net, backend="eager", fullgraph=True))
        assert torch.equal(compiled(x), expected)
        function = only(profiler).function
        assert function.qualname == "Net.forward"
        assert function.note == "compiled by torch.compile: its lines were compiled away"
        (line,) = function.lines
        assert (line.hits, function.calls) == (1, 1)
        assert self.breaks() == 0

    @pytest.mark.filterwarnings("error")
    def test_a_compiled_layer_of_torch_profiled(self):
        layer, x = nn.Linear(3, 2), rows()
        profiler = tensorlens.LineProfiler()
        compiled = profiler(torch.compile(layer, backend="eager", fullgraph=True))
        assert torch.equal(compiled(x), layer(x))
        assert only(profiler).function.qualname == "Linear.forward"

    def test_a_module_compiled_in_place(self):
        net, x = Net(), rows()
        expected = net(x)
        profiler = tensorlens.LineProfiler()
        net.compile(backend="eager", fullgraph=True)
        assert torch.equal(profiler(net)(x), expected)
        assert "compiled" in only(profiler).function.note
        assert self.breaks() == 0

    @pytest.mark.parametrize("when", ["inside", "before", "warm"])
    def test_functions_profiled_as_they_are_are_compiled_as_they_are(self, when):
        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(3, 2)

            def forward(self, x):
                return helper(self.first(x)).relu()

        def helper(x):
            return x * 2

        net, x = Outer(), rows()
        expected, code = net(x), helper.__code__
        compiled = None

        def compile():
            return torch.compile(net, backend="eager", fullgraph=True)

        if when != "inside":
            compiled = compile()
        if when == "warm":
            compiled(x)

        def train():
            run = compile() if compiled is None else compiled
            for _ in range(3):
                assert torch.equal(run(x), expected)

        with tensorlens.LineProfiler(train, Outer.forward, helper) as profiler:
            train()
        outer = profiler.result().functions[0]
        assert [line.hits for line in outer.lines] == [0, 1, 4, 3]
        assert helper.__code__ is code
        assert self.breaks() == 0
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1

    def test_caller_of_a_compiled_module_is_measured(self):
        net, x = Net(), rows()

        def train(run):
            for _ in range(3):
                run(x)

        with tensorlens.LineProfiler(train) as profiler:
            train(torch.compile(net, backend="eager", fullgraph=True))
        (lines,) = profiler.result().functions
        assert [line.hits for line in lines.lines] == [0, 4, 3]
        assert self.breaks() == 0

    def test_training_under_compile_computes_the_same(self):
        profiler = tensorlens.LineProfiler()

        def train(wrap):
            torch.manual_seed(0)
            net = Net()
            forward = wrap(net)
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            for _ in range(3):
                optimizer.zero_grad()
                forward(rows()).square().sum().backward()
                optimizer.step()
            return [parameter.detach() for parameter in net.parameters()]

        plain = train(lambda net: torch.compile(net, backend="eager"))
        profiled = train(lambda net: torch.compile(profiler(net), backend="eager"))
        for one, other in zip(plain, profiled, strict=True):
            assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore")
class TestTransformers:
    @pytest.fixture
    def transformers(self):
        return pytest.importorskip("transformers")

    def gpt2(self, transformers):
        config = transformers.GPT2Config(
            vocab_size=50, n_positions=16, n_embd=8, n_layer=2, n_head=2, use_cache=False
        )
        return transformers.GPT2LMHeadModel(config).eval(), torch.arange(10).view(2, 5)

    def test_forward_of_a_model_from_its_config(self, transformers):
        model, tokens = self.gpt2(transformers)
        expected = model(tokens)[0]
        # forward is under decorators of transformers itself
        for use in ("class", "instance"):
            target = type(model).forward if use == "class" else model
            with tensorlens.LineProfiler(target) as profiler:
                found = model(tokens)[0]
            assert torch.equal(found, expected)
            lines = only(profiler)
            assert lines.function.name == "forward"
            assert lines.function.qualname == f"{type(model).__name__}.forward"
            assert lines.function.calls == 1
        wrapped = tensorlens.LineProfiler()(model)
        assert torch.equal(wrapped(tokens)[0], expected)
        assert "generate" not in vars(model)

    def test_the_logits_line_of_gpt2(self, transformers):
        model, tokens = self.gpt2(transformers)
        with torch.no_grad(), tensorlens.LineProfiler(type(model).forward) as profiler:
            model(tokens)
        # 2 x 5 tokens, 50 words
        assert only(profiler)["logits = self.lm_head("].net == 2 * 5 * 50 * FLOAT


LOADER = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
import tensorlens

class Squares(Dataset):
    def __len__(self):
        return 8

    @tensorlens.profile
    def __getitem__(self, index):
        value = torch.full((100,), float(index))
        return value * value

if __name__ == "__main__":
    loader = DataLoader(
        Squares(), batch_size=2, num_workers=int(sys.argv[2]), multiprocessing_context=sys.argv[1]
    )
    print([int(batch[0, 0]) for batch in loader])
    print("loaded", flush=True)
"""


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_loader_report_the_items_they_made(tmp_path, method, workers, monkeypatch):
    # however long the path of the program is
    monkeypatch.setenv("COLUMNS", "400")
    script = tmp_path / "program.py"
    script.write_text(LOADER)
    result = run(script, method, str(workers))
    assert result.stderr == ""
    assert "[0, 4, 16, 36]" in result.stdout
    titles = [
        line for line in result.stdout.splitlines() if line.startswith("Squares.__getitem__  ")
    ]
    calls = [int(re.search(r"(\d+) calls", line)[1]) for line in titles if "never" not in line]
    assert calls == [8 // workers] * workers
    assert sum("never called" in line for line in titles) == 1
    rows = [
        line for line in result.stdout.splitlines() if "│" in line and "value = torch.full" in line
    ]
    # 400 bytes a call, eight calls
    each = f"{3.125 / workers:.2f} KiB"
    assert [row.count(each) for row in rows] == [1] * workers
