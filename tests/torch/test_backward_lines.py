"""What is handed out in backward goes to the forward line whose node ran.

Each forward line makes tensors of a size of its own, so that the size of whatever backward hands
out tells which line it is for. Numbers that torch makes into tensors, of 8 bytes at most, are not
told apart by size; they go to the right lines if no others have any.
"""

import functools
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorlens
from tensorlens import record
from tensorlens.recording import record as live
from tests.torch.recorder_checks import Lines, allocations, charges, counting_allocator

FLOAT = 4
NUMBER = 8
lines = Lines(__file__)


@pytest.fixture(autouse=True)
def _native():
    counting_allocator()


def costs(recording):
    """Line to sizes, all of this file, and as :attr:`backward_by_line` says."""
    found = charges(recording, "backward")
    told = {line.lineno: nbytes for line, nbytes in recording.backward_by_line.items()}
    others = [cost for cost in recording.backward() if cost.line.filename != __file__]
    # where no line of a user calls backward(), the gradient of the loss is made in torch's own
    assert sum(cost.nbytes for cost in others) <= NUMBER
    assert told == {line: sum(sizes) for line, sizes in found.items()}
    large = {line: [size for size in sizes if size > NUMBER] for line, sizes in found.items()}
    # the line that calls backward() makes the gradient of the loss, a number
    return {line: sizes for line, sizes in large.items() if sizes}


def floats(*counts):
    return sorted(FLOAT * count for count in counts)


def test_layers_are_charged_their_backward():
    first, second = nn.Linear(8, 16), nn.Linear(16, 24)
    inputs = torch.randn(3, 8)
    with record(names=False) as recording:
        hidden = first(inputs)  # layers first
        active = hidden.relu()  # layers relu
        outputs = second(active)  # layers second
        loss = outputs.exp()  # layers exp
        loss.sum().backward()
    assert costs(recording) == {
        lines("layers exp"): floats(3 * 24),
        # of the input, the weight and the bias; of the inputs of all none is wanted
        lines("layers second"): floats(3 * 16, 24 * 16, 24),
        lines("layers relu"): floats(3 * 16),
        lines("layers first"): floats(16 * 8, 16),
    }


def test_views_are_charged_their_backward():
    whole = torch.randn(10, 20, requires_grad=True)
    with record(names=False) as recording:
        turned = whole.t()  # views turned
        row = turned[3]  # views row
        wide = row.expand(7, 10)  # views wide
        double = wide * 2  # views double
        part = double[:, 2:5]  # views part
        part.sum().backward()
    assert costs(recording) == {
        lines("views part"): floats(7 * 10),
        lines("views double"): floats(7 * 10),
        lines("views wide"): floats(10),
        lines("views row"): floats(20 * 10),
        # the gradient lies across, and a leaf's is stored as the leaf is
        lines("views turned"): floats(10 * 20),
    }


def test_in_place_operators_are_charged_their_backward():
    start = torch.randn(11, requires_grad=True)
    with record(names=False) as recording:
        copy = start * 1  # in place copy
        view = copy[2:5]
        view.mul_(3)  # in place mul
        copy[7:9] = torch.ones(2)  # in place set
        copy.exp_()  # in place exp
        copy.sum().backward()
    found = costs(recording)
    assert found.pop(lines("in place exp")) == floats(11)
    assert found.pop(lines("in place copy")) == floats(11)
    # CopySlices copies the gradient of all, and hands the part to the node
    of_part = found.pop(lines("in place mul"))
    assert set(of_part) == {FLOAT * 11, FLOAT * 3}
    of_set = found.pop(lines("in place set"))
    assert set(of_set) <= {FLOAT * 11, FLOAT * 2, FLOAT * 1}
    assert found == {}


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(context, given):
        context.save_for_backward(given)
        return given * given  # squared forward

    @staticmethod
    def backward(context, gradient):
        (given,) = context.saved_tensors
        double = torch.cat([gradient, gradient])  # squared double
        return double[: len(given)] * given  # squared backward


def test_a_custom_function():
    given = torch.randn(12, requires_grad=True)
    with record(names=False) as recording:
        exponential = given.exp()  # custom before
        squared = Squared.apply(exponential)  # custom applied
        sine = squared.sin()  # custom after
        sine.sum().backward()
    assert costs(recording) == {
        lines("custom after"): floats(12, 12),  # the cosine, and its product
        lines("squared double"): floats(24),
        lines("squared backward"): floats(12),
        lines("custom before"): floats(12),
    }
    assert charges(recording, "forward", NUMBER + 1)[lines("squared forward")] == floats(12)


def wide(gradient, given):
    return torch.cat([gradient, gradient])[: len(given)] * given  # wide


class Decorated(torch.autograd.Function):
    """As of libraries: decorated, with lines of a helper."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(context, given):
        context.save_for_backward(given)
        return given * given  # decorated forward

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    @torch.autograd.function.once_differentiable
    def backward(context, gradient):
        return wide(gradient, *context.saved_tensors)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_decorated_custom_function(checkpointed):
    given = torch.randn(14, requires_grad=True)

    def applied(exponential):
        return Decorated.apply(exponential)

    with record(names=False) as recording:
        exponential = given * 2  # decorated first
        if checkpointed:
            squared = checkpoint(applied, exponential, use_reentrant=False)
        else:
            squared = applied(exponential)
        squared.sum().backward()
    found = costs(recording)
    assert found[lines("wide")] == floats(28, 14)
    if checkpointed:
        assert found[lines("decorated forward")] == floats(14)
    else:
        assert found[lines("decorated first")] == floats(14)
        assert len(found) == 2


class Thrice(torch.autograd.Function):
    """Hands its gradient on as a tensor of torch's own making: no line of backward allocates."""

    @staticmethod
    def forward(context, given):
        return given * 3

    @staticmethod
    def backward(context, gradient):
        return gradient.expand(13)


def test_a_custom_function_that_allocates_nothing_leaves_the_sum_to_the_last_node():
    given = torch.randn(13, requires_grad=True)
    with record(names=False) as recording:
        tripled = Thrice.apply(given)  # thrice applied
        total = tripled.sum()
        total.backward()
    # the leaf's gradient has to be laid out
    assert costs(recording) == {lines("thrice applied"): floats(13)}


def block(first, second, given):
    hidden = first(given)  # block first
    active = hidden.relu()  # block relu
    return second(active)  # block second


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_recomputation_is_backward(reentrant):
    first, second = nn.Linear(8, 16), nn.Linear(16, 24)
    given = torch.randn(3, 8, requires_grad=True)
    with record(names=False) as recording:
        result = checkpoint(  # checkpoint called
            block, first, second, given, use_reentrant=reentrant, preserve_rng_state=False
        )
        result.exp().sum().backward()  # checkpoint exp
    again = {"first": [3 * 16], "relu": [3 * 16], "second": [3 * 24] if reentrant else []}
    found = costs(recording)
    assert found == {
        lines("checkpoint exp"): floats(3 * 24),
        lines("block second"): floats(*again["second"], 3 * 16, 24 * 16, 24),
        lines("block relu"): floats(*again["relu"], 3 * 16),
        lines("block first"): floats(*again["first"], 3 * 8, 16 * 8, 16),
    }


def test_backward_of_backward():
    given = torch.randn(13, requires_grad=True)
    with record(names=False) as recording:
        exponential = given.exp()  # twice exp
        sine = exponential.sin()  # twice sin
        (gradient,) = torch.autograd.grad(sine.sum(), given, create_graph=True)
        recording.mark("between")
        gradient.sum().backward()
    # cos, cos times 1, times exp; then each of the two products has two factors that depend on
    # the leaf (1 does not), the cosine gives sin, neg and a product, and exp gives its own
    assert costs(recording) == {
        lines("twice sin"): floats(*[13] * 6),
        lines("twice exp"): floats(*[13] * 4),
    }


def test_several_outputs_and_inputs():
    one, two = (torch.randn(size, requires_grad=True) for size in (14, 16))
    with record(names=False) as recording:
        first = one.exp()  # several exp
        second = two.tanh()  # several tanh
        both = torch.cat([first, second])  # several cat
        curve = both.sigmoid()  # several sigmoid
        total = first.sum()
        torch.autograd.grad([curve.sum(), total], [one, two])
    assert costs(recording) == {
        lines("several sigmoid"): floats(30),
        # it cuts its gradient, and comes after the sum: what both say of `first` is added then
        lines("several cat"): floats(14),
        lines("several exp"): floats(14),
        lines("several tanh"): floats(16),
    }


def test_hooks_are_charged_themselves():
    layer = nn.Linear(5, 7)
    inputs = torch.randn(3, 5)
    extra = {}

    def on_tensor(gradient):
        return torch.cat([gradient, gradient])[:3]  # hook on tensor

    def after(parameter):
        extra["three"] = torch.cat([parameter.grad] * 3)  # hook after

    layer.bias.register_post_accumulate_grad_hook(after)
    with record(names=False) as recording:
        outputs = layer(inputs)  # hook layer
        outputs.register_hook(on_tensor)
        outputs.exp().sum().backward()  # hook exp
    assert costs(recording) == {
        lines("hook exp"): floats(3 * 7),
        lines("hook on tensor"): floats(2 * 3 * 7),
        lines("hook layer"): floats(7 * 5, 7),
        lines("hook after"): floats(3 * 7),
    }


def test_the_same_graph_twice():
    weight = torch.randn(17, requires_grad=True)
    with record(names=False) as recording:
        exponential = weight.exp()  # retained exp
        sine = exponential.sin()  # retained sin
        total = sine.sum()
        total.backward(retain_graph=True)
        total.backward()
    # the second sum is added in place
    assert costs(recording) == {
        lines("retained sin"): floats(17, 17, 17, 17),
        lines("retained exp"): floats(17, 17),
    }


def test_a_leaf_alone_is_charged_to_the_line_of_its_backward():
    weight, alone = torch.randn(18, requires_grad=True), torch.randn(19, requires_grad=True)
    given = torch.randn(19)
    with record(names=False) as recording:
        total = weight.exp().sum()  # leaf exp
        total.backward()
        alone.backward(given)  # leaf alone
    assert costs(recording) == {lines("leaf exp"): floats(18), lines("leaf alone"): floats(19)}


def test_backward_on_another_thread():
    weight = torch.randn(20, requires_grad=True)
    with record(names=False) as recording:
        total = weight.exp().sum()  # thread exp
        thread = threading.Thread(target=total.backward)
        thread.start()
        thread.join()
    assert costs(recording) == {lines("thread exp"): floats(20)}
    (block,) = [block for block in allocations(recording, "backward") if block.nbytes > NUMBER]
    assert recording.log[block.row].context.thread == 1


def test_forward_on_another_thread():
    weight = torch.randn(21, requires_grad=True)
    made = []

    def forward():
        made.append(weight.exp().sum())  # other forward

    with record(names=False) as recording:
        # both threads make nodes with the same numbers
        own = weight.sin().sum()  # own forward
        thread = threading.Thread(target=forward)
        thread.start()
        thread.join()
        made[0].backward()
        own.backward()
    assert costs(recording) == {
        lines("other forward"): floats(21),
        lines("own forward"): floats(21, 21),
    }


def test_older_nodes_go_to_the_line_of_backward():
    weight = torch.randn(22, requires_grad=True)
    with record(names=False):
        weight.exp()
    early = weight.exp()
    with record(names=False) as recording:
        late = early.sin()  # partly sin
        late.sum().backward()  # partly backward
    assert costs(recording) == {
        lines("partly sin"): floats(22, 22),
        lines("partly backward"): floats(22),
    }


def test_nodes_of_an_earlier_recording_are_not_mistaken():
    weight = torch.randn(23, requires_grad=True)
    with record(names=False):
        weight.cos()
    unseen = weight.exp()
    with record(names=False) as recording:
        unseen.sum().backward()  # unseen backward
    assert costs(recording) == {lines("unseen backward"): floats(23)}


def test_function_transforms():
    def function(given):
        exponential = given.exp()  # transform exp
        return exponential.sin().sum()  # transform sin

    one, many = torch.randn(24), torch.randn(3, 26)
    with record(names=False) as recording:
        torch.func.grad(function)(one)
        torch.func.vmap(torch.func.grad(function))(many)  # transform mapped
        torch.autograd.functional.jacobian(function, one[:20])  # transform called
    found = costs(recording)
    # the gradient of the outputs themselves, one for each of three
    assert found.pop(lines("transform mapped")) == floats(3)
    assert found == {
        lines("transform sin"): floats(24, 24, 78, 78, 20, 20),
        lines("transform exp"): floats(24, 78, 20),
    }


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_is_charged_to_the_users_function(backend):
    layer = nn.Linear(7, 9)

    def forward(given):
        return layer(given).exp().sum()  # compiled forward

    torch._dynamo.reset()
    try:
        compiled = torch.compile(forward, backend=backend)
        given = torch.randn(3, 7)
        compiled(given).backward()
        layer.zero_grad()
        with record(names=False) as recording:
            compiled(given).backward()
    finally:
        torch._dynamo.reset()
    (sizes,) = (sizes for sizes in costs(recording).values() if sizes)
    assert sizes == floats(3 * 9, 9 * 7, 9)


def named_gradients(recording):
    """Name to the sizes of all blocks that are its gradient."""
    log = recording.log
    found = {}
    for event in log:
        if event.action == "alloc" and event.label is not None and event.label.role == "gradient":
            name = event.label.name.rpartition("(): ")[2]
            found.setdefault(name, []).append(event.nbytes)
    return found


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 12)
        self.conv = nn.Conv1d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm1d(3)
        self.lstm = nn.LSTM(12, 5)
        self.attend = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.widen = nn.Linear(5, 8)
        self.head = nn.Linear(12, 11, bias=False)
        self.head.weight = self.words.weight
        self.back = nn.Linear(8, 12)

    def forward(self, tokens):
        words = self.words(tokens)  # net words
        mixed = self.conv(words)  # net conv
        normal = self.norm(mixed)  # net norm
        states, _ = self.lstm(normal)  # net lstm
        wide = self.widen(states)  # net widen
        attended = self.attend(wide)  # net attend
        back = self.back(attended)  # net back
        return self.head(back)  # net head


PARTS = ("words", "conv", "norm", "lstm", "widen", "attend", "back", "head")


@pytest.fixture(scope="module")
def trained():
    """Three steps without an optimizer, gradients thrown away after each."""
    counting_allocator()
    torch.manual_seed(0)
    net = Net()
    tokens = torch.randint(0, 11, (2, 3))
    with record() as recording:
        for _ in range(3):
            logits = net(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())  # net loss
            loss.backward()
            net.zero_grad()
    return net, recording


def test_every_byte_of_a_mixed_model_goes_to_the_line_of_its_layer(trained):
    _, recording = trained
    places = {lines(f"net {part}"): part for part in PARTS}
    for block in allocations(recording, "backward"):
        event = recording.log[block.row]
        assert block.charged.filename == __file__, event
        if event.context.node is None:
            # the gradient of the loss, which backward() makes before any node runs
            assert block.nbytes == FLOAT and event.context.outer == "aten::ones_like"
            continue
        if block.charged.lineno == lines("net loss"):
            assert event.context.node.rpartition("::")[2] in (
                "NllLossBackward0", "LogSoftmaxBackward0", "ViewBackward0",
            )  # fmt: skip
            continue
        part = places[block.charged.lineno]
        assert block.module.startswith(f"net.{part}"), event


def test_every_gradient_of_every_step_is_named(trained):
    net, recording = trained
    found = named_gradients(recording)
    expected = {
        f"net.{name}.grad": [FLOAT * parameter.numel()] * 3
        for name, parameter in net.named_parameters()
    }
    # the tied one is the sum of two
    assert found.keys() == expected.keys()
    assert found == expected


def test_gradients_have_their_forward_line(trained):
    _, recording = trained
    for cost in recording.backward():
        for name in cost.gradients:
            part = name.split(".")[1]
            # the engine adds the embedding's part last
            assert cost.line.lineno == lines(f"net {part}"), name


def test_gradients_of_an_optimizer_that_runs_in_backward():
    layer = nn.Linear(31, 33)
    optimizers = {each: torch.optim.SGD([each], 0.1) for each in layer.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    with record() as recording:
        for _ in range(2):
            layer(torch.ones(3, 31)).exp().sum().backward()
    # a cycle through the hooks, which the collector cannot free
    optimizers.clear()
    assert named_gradients(recording) == {
        "layer.weight.grad": [FLOAT * 31 * 33] * 2,
        "layer.bias.grad": [FLOAT * 33] * 2,
    }


def test_gradients_that_accumulate_are_one_block():
    layer = nn.Linear(31, 33)
    with record() as recording:
        for _ in range(3):
            layer(torch.ones(3, 31)).exp().sum().backward()
    found = named_gradients(recording)
    assert found == {
        "layer.weight.grad": [FLOAT * 31 * 33],
        "layer.bias.grad": [FLOAT * 33],
    }


def test_sparse_gradients_have_their_forward_line():
    words = nn.Embedding(30, 8, sparse=True)
    tokens = torch.arange(4)
    with record() as recording:
        for _ in range(2):
            words(tokens).sum().backward()
            words.zero_grad()
    # the values, and indices of 8 bytes
    sizes = [size for found in named_gradients(recording).values() for size in found]
    assert sorted(sizes) == [4 * 8] * 2 + [FLOAT * 4 * 8] * 2


class Calling(nn.Module):
    """Two layers and what is between them, on lines that call one another."""

    def __init__(self, again=False):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 24)
        self.again = again

    def hidden(self, x):
        x = self.first(x)  # calls first
        return x.exp()  # calls exp

    def forward(self, x):
        if self.again:
            again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
            x = again(self.hidden, x)  # calls checkpoint
        else:
            x = self.hidden(x)  # calls hidden
        return self.second(x)  # calls second


def column(net, *functions):
    """Line of this file to its figure in the column Backward."""
    # the column has all recordings of the process
    live._total = live.BackwardLines()
    with tensorlens.LineProfiler(*functions) as profiler, record(names=False):
        run(net)
    found = {}
    for function in profiler.result().functions:
        for line in function.lines:
            if line.memory and line.hits:
                found[line.lineno] = line.memory["cpu"].backward
    return found


def run(net):
    output = net(torch.randn(3, 8))  # calls net
    output.backward(torch.ones(3, 24))  # calls backward


def test_a_table_of_lines_includes_what_a_line_calls():
    found = column(Calling(), run, Calling.forward, Calling.hidden)
    # of the second layer's input, weight and bias; of exp's input; of the first's weight and bias
    second = sum(floats(3 * 16, 24 * 16, 24))
    exp, first = sum(floats(3 * 16)), sum(floats(16 * 8, 16))
    figures = {
        "calls net": second + exp + first,
        "calls backward": 0,
        "calls hidden": exp + first,
        "calls second": second,
        "calls first": first,
        "calls exp": exp,
    }
    assert {name: found[lines(name)] for name in figures} == figures


def test_recomputation_is_not_charged_to_callers():
    found = column(Calling(again=True), run, Calling.forward, Calling.hidden)
    # forward again: what each of the lines makes
    assert found[lines("calls backward")] == 0
    exp, first = 2 * sum(floats(3 * 16)), sum(floats(16 * 8, 16, 3 * 16))
    assert (found[lines("calls exp")], found[lines("calls first")]) == (exp, first)
