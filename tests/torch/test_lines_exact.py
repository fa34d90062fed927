"""Figures of lines on the CPU against bytes derived by hand: equal, not close."""

import copy
import gc
import io
import pickle
import queue
import sys
import threading

import numpy
import pytest
import torch
from line_figures import FLOAT, LONG, NUMBER, Decorated, Lines, SwitchedOn, handed_out

import tensorlens
from tensorlens.frameworks.torch import Adapter
from tensorlens.lines import build_report, engine


@pytest.fixture(params=[Decorated, SwitchedOn])
def profiled(request):
    """Both ways to profile: by a wrapper, and by switching on what is left as it is."""
    handed_out()
    gc.collect()
    gc.disable()
    yield request.param
    gc.enable()


def multiply(left, right):
    product = left @ right
    total = (left @ right).relu()
    del product
    total = None
    return total


def test_matmul_lines(profiled):
    lines = profiled(multiply).measure(multiply, torch.ones(300, 200), torch.ones(200, 100))
    size = 300 * 100 * FLOAT
    assert lines["product = "] == (size, size, size)
    # the product lives until relu has made its own result
    assert lines["(left @ right).relu()"] == (2 * size, 3 * size, size)
    assert lines["del product"] == (size, 2 * size, -size)
    assert lines["total = None"] == (0, size, -size)
    assert lines["return total"] == (0, 0, 0)


def convolve(image, weight):
    result = torch.nn.functional.conv2d(image, weight, padding=1)
    return result.shape


def test_convolution_that_unfolds(profiled):
    image, weight = torch.ones(8, 16, 64, 64), torch.ones(32, 16, 3, 3)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        lines = profiled(convolve).measure(convolve, image, weight)
    result = 8 * 32 * 64 * 64 * FLOAT
    # aten/src/ATen/native/ConvolutionMM2d.cpp unfolds the whole batch: a column of 16 x 3 x 3
    # for each of 64 x 64 pixels of 8 images
    columns = 8 * (16 * 3 * 3) * (64 * 64) * FLOAT
    assert lines["conv2d("] == (result, result + columns, result)
    assert lines["return"] == (result, result, 0)


def test_convolution_with_scratch_of_its_kernel(profiled):
    image, weight = torch.ones(8, 16, 64, 64), torch.ones(32, 16, 3, 3)
    read = Adapter().cpu_counter().reader()
    with torch.no_grad():
        convolve(image, weight)  # the kernel is chosen, and its own cache filled
        read()
        before = handed_out()
        kept = torch.nn.functional.conv2d(image, weight, padding=1)
        peak = read()[1] - before
        del kept
        lines = profiled(convolve).measure(convolve, image, weight)
    result = 8 * 32 * 64 * 64 * FLOAT
    # what scratch oneDNN takes depends on the processor: read beside, around the one operation
    assert lines["conv2d("] == (result, peak, result)
    assert peak >= result


def look_at(base):
    flat = base.view(-1)
    row = base[3]
    turned = base.t().expand(4, 100, 10)
    apart = base.detach()
    copied = base.t().contiguous()
    del base, flat, row, turned
    del apart
    return copied


def test_views_are_free_and_keep_their_base(profiled):
    lines = profiled(look_at).measure(look_at, torch.ones(10, 100))
    for part in ("flat = base.view", "row = base[3]", "turned = base.t()", "apart = base.det"):
        assert lines[part] == (0, 0, 0)
    assert lines["copied = "] == (4000, 4000, 4000)
    # the last view holds the storage of the base
    assert lines["del base, flat"] == (4000, 4000, 0)
    # it was handed out before the call
    assert lines["del apart"] == (0, 4000, -4000)


def change_in_place(x, y):
    x.add_(y).mul_(y).neg_()
    x.add_(1)
    x[2:5] = y[2:5]
    x += y
    x = x + 1
    x.resize_(2000)
    return x


def test_in_place_lines(profiled):
    x = torch.ones(1000)
    lines = profiled(change_in_place).measure(change_in_place, x, torch.ones(1000))
    assert lines["x.add_(y)"] == (0, 0, 0)
    assert lines["x.add_(1)"] == (0, NUMBER, 0)
    assert lines["x[2:5] ="] == (0, 0, 0)
    assert lines["x += y"] == (0, 0, 0)
    # the old x is ours
    assert lines["x = x + 1"] == (4000, 4000 + NUMBER, 4000)
    # the new block is filled from the old one, which is freed after that
    assert lines["x.resize_"] == (8000, 4000 + 8000, 4000)


def drop(held):
    held.pop()
    held.clear()
    return None


def test_tensors_from_before_the_call_are_freed(profiled):
    held = [torch.ones(500), torch.ones(250), torch.ones(1000)]
    lines = profiled(drop).measure(drop, held)
    assert lines["held.pop()"] == (-4000, 0, -4000)
    assert lines["held.clear()"] == (-4000 - 3000, -4000, -3000)


def forget(argument, *, keyword=None):
    kept = argument.sum()
    del argument
    del keyword
    return kept


def test_a_deleted_argument_is_freed_inside():
    # a with block has a caller's frame in between that holds arguments only by chance
    wrapped = tensorlens.LineProfiler()
    function = wrapped(forget)
    base = handed_out()
    kept = function(torch.ones(1000), keyword=torch.ones(500))
    lines = Lines(wrapped.result().functions[0], base)
    assert lines["kept = "] == (6000 + FLOAT, 6000 + FLOAT, FLOAT)
    assert lines["del argument"] == (2000 + FLOAT, 6000 + FLOAT, -4000)
    assert lines["del keyword"] == (FLOAT, 2000 + FLOAT, -2000)
    assert kept.item() == 1000


results = queue.SimpleQueue()


def free_elsewhere(jobs, done):
    tensor = torch.ones(1000)
    jobs.put(tensor)
    del tensor
    jobs.put(None)
    done.wait()
    made = results.get()
    return made.numel()


def test_tensors_freed_and_made_on_another_thread(profiled):
    jobs, done = queue.SimpleQueue(), threading.Event()

    def work():
        tensor = jobs.get()
        jobs.get()
        del tensor
        results.put(torch.ones(3000))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    lines = profiled(free_elsewhere).measure(free_elsewhere, jobs, done)
    thread.join()
    assert lines["tensor = torch"] == (4000, 4000, 4000)
    assert lines["jobs.put(tensor)"] == (4000, 4000, 0)
    assert lines["del tensor"] == (4000, 4000, 0)
    # when the other thread runs is not ours to say: between here and the end of wait()
    woken, waited = lines["jobs.put(None)"], lines["done.wait()"]
    assert woken.net + waited.net == -4000 + 12000
    assert waited.allocated == 12000
    assert lines["made = "] == (12000, 12000, 0)


def bridge(array):
    shared = torch.from_numpy(array)
    copied = torch.tensor(array)
    out = copied.numpy()
    del copied
    del out
    del shared


def test_numpy_bridge_lines(profiled):
    lines = profiled(bridge).measure(bridge, numpy.ones(1000, dtype=numpy.float32))
    assert lines["shared = torch"] == (0, 0, 0)
    assert lines["copied = torch"] == (4000, 4000, 4000)
    assert lines["out = copied"] == (4000, 4000, 0)
    # the array holds the tensor's memory
    assert lines["del copied"] == (4000, 4000, 0)
    assert lines["del out"] == (0, 4000, -4000)
    assert lines["del shared"] == (0, 0, 0)


def travel(tensor):
    twin = copy.deepcopy(tensor)
    text = pickle.dumps(tensor)
    again = pickle.loads(text)
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded = torch.load(file)
    return twin, again, loaded


def test_deepcopy_pickle_and_files(profiled):
    lines = profiled(travel).measure(travel, torch.ones(1000))
    # torch/_tensor.py: __deepcopy__ makes an empty scalar and then gives it the copied storage
    assert lines["deepcopy"] == (4000, 4000 + FLOAT, 4000)
    assert lines["dumps"] == (4000, 4000, 0)
    assert lines["loads"] == (8000, 8000, 4000)
    assert lines["torch.save"] == (8000, 8000, 0)
    assert lines["torch.load"] == (12000, 12000, 4000)


def train_step(layer, x):
    hidden = layer(x).relu()
    loss = hidden.sum()
    loss.backward()
    del hidden
    del loss


BATCH, INPUTS, OUTPUTS = 8, 16, 32


def test_autograd_linear_and_relu(profiled):
    layer = torch.nn.Linear(INPUTS, OUTPUTS)
    lines = profiled(train_step).measure(train_step, layer, torch.ones(BATCH, INPUTS))
    hidden = BATCH * OUTPUTS * FLOAT
    gradients = (OUTPUTS * INPUTS + OUTPUTS) * FLOAT
    # relu saves its result and Linear its input, which are there anyway: before it was rectified,
    # the result of Linear is not needed again
    assert lines["hidden = layer"] == (hidden, 2 * hidden, hidden)
    assert lines["loss = "] == (hidden + FLOAT, hidden + FLOAT, FLOAT)
    # backward() keeps the gradient of the loss, which sum spreads as a view; relu makes one as
    # large as hidden, and Linear those of bias and weight
    peak = hidden + FLOAT + FLOAT + hidden + gradients
    assert lines["loss.backward()"] == (
        hidden + FLOAT + gradients,
        peak,
        gradients,
    )
    # backward has let go of what relu had saved
    assert lines["del hidden"].net == -hidden
    assert lines["del loss"] == (gradients, gradients + FLOAT, -FLOAT)


def step_without_names(layer, x):
    loss = layer(x).relu().sum()
    loss.backward()
    return None


def test_backward_frees_what_forward_saved(profiled):
    layer = torch.nn.Linear(INPUTS, OUTPUTS)
    lines = profiled(step_without_names).measure(
        step_without_names, layer, torch.ones(BATCH, INPUTS)
    )
    hidden = BATCH * OUTPUTS * FLOAT
    gradients = (OUTPUTS * INPUTS + OUTPUTS) * FLOAT
    assert lines["loss = "] == (hidden + FLOAT, 2 * hidden, hidden + FLOAT)
    # what relu saved goes when relu is done, so only one such tensor is there with the gradients
    in_relu = FLOAT + hidden + FLOAT + hidden
    in_linear = FLOAT + FLOAT + hidden + gradients
    assert lines["loss.backward()"] == (
        FLOAT + gradients,
        max(in_relu, in_linear),
        gradients - hidden,
    )


def optimize(optimizer, times):
    for _ in range(times):
        optimizer.step()


def parameter(size):
    made = torch.nn.Parameter(torch.ones(size))
    made.grad = torch.ones(size)
    return made


def test_adam_lines(profiled):
    small, large = 1000, 5000
    optimizer = torch.optim.Adam([parameter(large), parameter(small)])
    lines = profiled(optimize).measure(optimize, optimizer, 3)
    # two averages of each parameter, and a step count of float32
    state = 2 * (large + small) * FLOAT + 2 * FLOAT
    # torch/optim/adam.py, _single_tensor_adam: (exp_avg_sq.sqrt() / number) of the large one; the
    # small one's come while the large one's denom still has its name
    first = 2 * large * FLOAT + NUMBER
    second = large * FLOAT + 2 * small * FLOAT + NUMBER
    assert lines["optimizer.step()"] == (state, state + max(first, second), state)
    memory = lines.line("optimizer.step()").memory["cpu"]
    assert (memory.net_first, memory.net_max) == (state, state)
    assert lines.line("optimizer.step()").hits == 3


def test_sgd_with_momentum(profiled):
    optimizer = torch.optim.SGD([parameter(1000), parameter(200)], momentum=0.9)
    lines = profiled(optimize).measure(optimize, optimizer, 2)
    # the first step clones the gradients; the second multiplies by a number, in place
    buffers = 1200 * FLOAT
    assert lines["optimizer.step()"] == (buffers, buffers + NUMBER, buffers)
    memory = lines.line("optimizer.step()").memory["cpu"]
    assert (memory.net_first, memory.net_max) == (buffers, buffers)


def grow(kept):
    for size in (100, 300, 200):
        kept.append(torch.empty(size))
        torch.empty(10 * size)
    return None


def test_loops_keep_sum_largest_and_first(profiled):
    lines = profiled(grow).measure(grow, [])
    assert lines["kept.append"] == (2400, 2400, 2400)
    memory = lines.line("kept.append").memory["cpu"]
    assert (memory.net_first, memory.net_max) == (400, 1200)
    # 400 and 1600 bytes are kept when the two largest come and go
    assert lines["torch.empty(10"] == (2400, max(400 + 4000, 1600 + 12000, 2400 + 8000), 0)
    assert lines.line("torch.empty(10").hits == 3
    assert lines.line("for size in").hits == 4


def descend(depth):
    mine = torch.empty(100)
    if depth:
        descend(depth - 1)
    return mine.numel()


def test_recursion_keeps_one_state_per_frame(profiled):
    lines = profiled(descend).measure(descend, 3)
    assert lines["mine = "] == (1600, 1600, 1600)
    # what an inner call took is back when the line ends
    assert lines["descend(depth - 1)"] == (1200, 1600, 0)
    assert lines["return mine"] == (1600, 1600, 0)
    assert lines.line("mine = ").hits == 4


def inner():
    scratch = torch.empty(2500)
    scratch = None
    return scratch


def outer():
    kept = torch.empty(100)
    inner()
    kept = torch.empty(50)
    return kept


def test_a_callers_line_knows_the_peak_inside(profiled):
    first, second = profiled(outer, inner).measure(outer)
    assert first["inner()"] == (400, 400 + 10000, 0)
    assert first["kept = torch.empty(50)"] == (200, 600, -200)
    assert second["scratch = torch"] == (10400, 10400, 10000)
    assert second["scratch = None"] == (400, 10400, -10000)


def batches(count):
    for _ in range(count):
        batch = torch.full((250,), 0.0)
        yield batch
        del batch


def consume(count, loader):
    seen = 0
    for batch in loader(count):
        result = torch.cat([batch, batch])
        seen += result.numel()
        del batch, result
    return seen


def test_a_generator_as_loader():
    wrapped = tensorlens.LineProfiler()
    loader = wrapped(batches)
    step = wrapped(consume)
    base = handed_out()
    assert step(3, loader) == 1500
    made, used = (Lines(function, base) for function in wrapped.result().functions)
    assert made["batch = torch.full"] == (1000, 1000, 3000)
    # the consumer's 2000 bytes are not the generator's doing
    assert made["yield batch"] == (1000, 1000, 0)
    assert made["del batch"] == (0, 1000, -3000)
    # each next() drops the batch before and makes a new one; the last one only drops
    assert used["for batch in"] == (1000, 1000, 0)
    assert used["torch.cat"] == (3000, 3000, 6000)
    # the loader still holds its batch
    assert used["del batch, result"] == (1000, 3000, -6000)


def fail(kept):
    kept.append(torch.empty(100))
    kept.append(torch.empty(200) @ torch.empty(3, 3))
    return kept


def test_a_line_that_raises(profiled):
    profiler, kept = profiled(fail), []
    base = handed_out()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        profiler.measure(fail, kept)
    lines = profiler.lines(base)
    assert lines["kept.append(torch.empty(100))"] == (400, 400, 400)
    # both operands came and, when the exception left the frame, were gone
    assert lines["@"] == (400, 400 + 800 + 36, 0)
    raised = lines.line("@").raised
    assert raised is not None
    assert raised.startswith("RuntimeError: mat1")
    assert lines.line("return kept").hits == 0
    assert lines.line("return kept").memory == {}


def swallow():
    kept = torch.empty(25)
    try:
        big = torch.empty(100)
        raise ValueError(big.numel())
    except ValueError:
        big = torch.empty(10)
    finally:
        kept = None
    with torch.no_grad():
        sums = [torch.empty(size).numel() for size in (5, 10)]
    return kept, sums


def test_try_with_and_comprehensions(profiled):
    lines = profiled(swallow).measure(swallow)
    assert lines["big = torch.empty(100)"] == (500, 500, 400)
    assert lines["raise ValueError"] == (500, 500, 0)
    assert lines["big = torch.empty(10)"] == (140, 540, 40 - 400)
    assert lines["kept = None"] == (40, 140, -100)
    # one after the other, so only the largest counts
    assert lines["sums = "] == (40, 80, 0)
    assert all(line.raised is None for line in lines.function.lines)


def long_and_int():
    index = torch.arange(10)
    mask = torch.zeros(7, dtype=torch.bool)
    half = torch.zeros(9, dtype=torch.bfloat16)
    nothing = torch.empty(0, 5)
    return index, mask, half, nothing


def test_sizes_are_not_rounded(profiled):
    lines = profiled(long_and_int).measure(long_and_int)
    assert lines["index = "].net == 10 * LONG
    assert lines["mask = "].net == 7
    assert lines["half = "].net == 18
    # 80 bytes of the index, 7 of the mask, 18 of the half
    assert lines["nothing = "] == (105, 105, 0)


def test_figures_in_a_with_block():
    with tensorlens.LineProfiler():
        pass
    base = handed_out()
    with tensorlens.profile as block:
        kept = torch.empty(100)
        kept = torch.empty(300) @ torch.empty(300)
    assert kept.numel() == 1
    lines = Lines(build_report([block.function], engine.counters).functions[0], base)
    assert lines["kept = torch.empty(100)"] == (400, 400, 400)
    assert lines["torch.empty(300) @"] == (FLOAT, 400 + 2400 + FLOAT, FLOAT - 400)


def test_a_function_that_was_only_added_is_seen_from_a_wrapped_one():
    profiler = tensorlens.LineProfiler(inner)
    base = handed_out()
    profiler(outer)()
    added, wrapped = (Lines(function, base) for function in profiler.result().functions)
    assert added["scratch = torch"] == (10400, 10400, 10000)
    assert wrapped["inner()"] == (400, 400 + 10000, 0)


def untraced(found):
    found.append(sys.gettrace())
    return found


def test_a_decorated_function_runs_without_a_trace_function():
    wrapped, original = tensorlens.LineProfiler()(untraced), untraced
    globals()["untraced"] = wrapped
    try:
        assert wrapped([]) == [sys.gettrace()]
    finally:
        globals()["untraced"] = original


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64, 64))

    def forward(self, x):
        x = x @ self.weight
        return x.exp()


def train(layer, steps):
    for _ in range(steps):
        x = torch.ones(32, 64)
        loss = layer(x).sum()
        loss.backward()
        layer.weight.grad = None


def test_peak_of_backward_names_the_lines_whose_memory_was_there():
    layer = Layer()
    with tensorlens.LineProfiler(train, Layer.forward) as profiler:
        train(layer, 3)
    report = profiler.result()
    lines = {line.source.strip(): line for each in report.functions for line in each.lines}
    found = lines["loss.backward()"].memory["cpu"].residents
    # exp's result is there in every pass; what the loss's line keeps by itself is the loss
    output = 32 * 64 * FLOAT
    by_line = {each.lineno: each.nbytes for each in found}
    assert by_line[lines["return x.exp()"].lineno] == output
    assert lines["loss = layer(x).sum()"].lineno not in by_line or (
        by_line[lines["loss = layer(x).sum()"].lineno] <= NUMBER
    )
    assert "8.00 KiB left by" in str(report)
    assert type(report).from_json(report.to_json()).to_json() == report.to_json()


def called(kept):
    scratch = torch.ones(1000)  # noqa: F841
    kept.append(torch.ones(100))


def calling(kept):
    called(kept)


def test_memory_that_the_caller_shows_to_be_gone_is_no_growth():
    with tensorlens.LineProfiler(called, calling) as profiler:
        calling([])
    by_source = {
        line.source.strip(): line.memory["cpu"]
        for each in profiler.result().functions
        for line in each.lines
        if line.memory
    }
    scratch, kept = (
        by_source["scratch = torch.ones(1000)  # noqa: F841"],
        by_source["kept.append(torch.ones(100))"],
    )
    assert (scratch.net, scratch.growth) == (1000 * FLOAT, 100 * FLOAT)
    assert (kept.net, kept.growth) == (100 * FLOAT, 100 * FLOAT)
