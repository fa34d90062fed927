"""Each public call that measures, once, on whichever torch there is."""

from __future__ import annotations

import io

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import tensorlens  # noqa: E402
from tests.smoke import programs  # noqa: E402
from tests.smoke.programs import DATA, PARAMETERS, ROW  # noqa: E402


def rows():
    first = torch.zeros(1024)
    second = (first + first) * first
    del first
    return second


def of_line(report, function, text):
    (lines,) = (each.lines for each in report.functions if each.name == function)
    (line,) = (each for each in lines if text in each.source)
    return line.memory["cpu"]


def of_net(tensors, before="", after=""):
    """Return the roles and bytes of what belongs to the weights of the net that was given."""
    names = {f"{before}{layer}.weight{after}" for layer in ("up", "down")}
    mine = [each for each in tensors if each.name in names]
    return {each.role for each in mine}, sum(each.nbytes for each in mine)


def step_that_leaks(kept):
    def step(i=None):
        kept.append(torch.zeros(1024))

    return step


def test_profile_prints_the_lines_of_a_function():
    out = io.StringIO()
    tensorlens.profile(every=1, stream=out)(rows)()
    line = next(each for each in out.getvalue().splitlines() if "torch.zeros(1024)" in each)
    assert "+4.00 KiB" in line


def test_line_profiler_counts_each_line():
    with tensorlens.LineProfiler(rows) as profiler:
        rows()
    report = profiler.result()
    first, second = of_line(report, "rows", "zeros"), of_line(report, "rows", "* first")
    assert (first.net, second.net) == (ROW, ROW)
    assert second.peak - second.allocated == ROW
    assert of_line(report, "rows", "del").net == -ROW
    assert '"cpu"' in report.to_json()


def test_line_profiler_follows_a_module():
    net, data = programs.Net(), torch.zeros(programs.ROWS, programs.WIDTH)
    with tensorlens.LineProfiler(net) as profiler, torch.no_grad():
        net(data)
    line = of_line(profiler.result(), "forward", "relu")
    assert line.net == programs.HIDDEN_BYTES
    assert line.peak - line.allocated == programs.HIDDEN_BYTES


def test_mem_reporter_names_every_tensor_and_tells_what_came():
    net = programs.Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    reporter = tensorlens.MemReporter(net, optimizer)
    before = reporter.snapshot()
    net(torch.zeros(programs.ROWS, programs.WIDTH)).sum().backward()
    optimizer.step()
    after = reporter.report(file=io.StringIO())
    assert of_net(after.tensors) == ({"parameter"}, PARAMETERS)
    assert of_net(after.tensors, after=".grad") == ({"gradient"}, PARAMETERS)
    assert of_net(after.tensors, "SGD.", ".momentum_buffer") == ({"optimizer"}, PARAMETERS)
    ledger = after.ledger["cpu"]
    assert ledger.allocated == ledger.named + ledger.unnamed
    text = str(after - before)
    assert "up.weight.grad" in text and "up.weight  " not in text
    assert str(reporter.diff(before)).splitlines()[0] == text.splitlines()[0]


def test_activations_that_autograd_keeps_have_names():
    net = programs.Net()
    loss = net(torch.zeros(programs.ROWS, programs.WIDTH)).sum()
    snapshot = tensorlens.MemReporter(net).snapshot()
    kept = [each for each in snapshot.tensors if each.role == "activation"]
    sizes = [each.nbytes for each in kept if "Backward0" in each.name]
    assert programs.HIDDEN_BYTES in sizes
    del loss


def test_recording_has_each_event_and_is_read_back(tmp_path):
    with tensorlens.record() as recording:
        row = torch.zeros(1024)
        double = row + row
        del row, double
    # what was there before begins it
    actions = [each.action for each in recording.events if each.action != "start"]
    assert actions == ["alloc", "alloc", "free", "free"]
    peak = recording.peak("cpu")
    file = recording.save(tmp_path / "run.tlens")
    again = tensorlens.load(file).peak("cpu")
    assert again.bytes == peak.bytes
    here = test_recording_has_each_event_and_is_read_back.__qualname__
    assert [nbytes for line, nbytes in peak.by_line.items() if line and line.function == here] == [
        *(ROW, ROW)
    ]


def test_recording_of_a_step_knows_roles_and_backward():
    net = programs.Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    data = torch.zeros(programs.ROWS, programs.WIDTH)
    with tensorlens.record(net, optimizer) as recording:
        net(data).sum().backward()
        optimizer.step()
    peak = recording.peak("cpu")
    assert of_net(peak.tensors) == ({"parameter"}, PARAMETERS)
    assert sum(peak.by_role.values()) == peak.bytes
    again = {line.lineno: nbytes for line, nbytes in recording.backward_by_line.items() if line}
    relu = programs.Net.forward.__code__.co_firstlineno + 1
    # the gradients of what relu was given and of the weight of up
    assert again[relu] == programs.HIDDEN_BYTES + programs.WEIGHT


def test_find_leaks_finds_the_tensor_and_its_line():
    kept = []
    report = tensorlens.find_leaks(step_that_leaks(kept), steps=4)
    (leak,) = report.leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, ROW)
    assert leak.born is not None and leak.born.filename == __file__


def test_leak_watch_follows_a_loop():
    kept = []
    step = step_that_leaks(kept)
    with tensorlens.LeakWatch() as watch:
        for _ in range(8):
            step()
            watch.step()
    (leak,) = watch.result().leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, ROW)


def test_inputs_knows_the_queue_of_a_loader():
    data = TensorDataset(torch.zeros(8, programs.WIDTH))
    queue = tensorlens.inputs(DataLoader(data, batch_size=4, num_workers=2, prefetch_factor=3))
    assert (queue.batches, queue.nbytes, queue.max_batches) == (0, 0, 6)


def test_a_program_without_tensorlens_computes_the_same():
    torch.manual_seed(0)
    plain = programs.make_step()().item()
    torch.manual_seed(0)
    with tensorlens.record():
        assert programs.make_step()().item() == plain
    assert DATA == 8192
