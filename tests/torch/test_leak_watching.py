"""Watching changes nothing, and survives what loops do to it."""

import contextlib
import functools
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from tensorlens import LeakWatch, find_leaks
from tensorlens.errors import UsageError
from tensorlens.frameworks.torch import loop_steps

STEPS = 8


def leaking(kept):
    def step():
        kept.append(torch.zeros(4))

    return step


def trained(watch):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        if watch is not None:
            watch.step()
    return torch.cat([each.detach().flatten() for each in net.parameters()]), torch.randn(3)


def test_results_are_the_same_bits():
    weights, following = trained(None)
    with LeakWatch() as watch:
        watched, after = trained(watch)
    assert torch.equal(weights, watched)
    assert torch.equal(following, after)


def test_watch_keeps_no_tensor_alive():
    kept = []
    report = find_leaks(leaking(kept))
    references = [weakref.ref(each) for each in kept]
    kept.clear()
    assert [each() for each in references] == [None] * STEPS
    assert report.leaks[0].bytes_per_step == 16


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_errors_of_a_step_come_through(kind):
    kept = []

    def step(number):
        kept.append(torch.zeros(4))
        if number == 5:
            raise kind("as it was")

    with pytest.raises(kind, match="as it was"):
        find_leaks(step)
    assert len(kept) == 6
    # the watch is off: the next one is told nothing of it
    assert find_leaks(leaking([])).leaks[0].tensors_per_step == 1


@pytest.mark.parametrize("source", ["heap", "resident"])
@pytest.mark.parametrize("numel", [1_000_000, 4])
def test_uncounted_tensors_have_no_verdict(monkeypatch, source, numel):
    monkeypatch.setenv("TENSORLENS_COUNTER", source)
    kept = []
    report = find_leaks(lambda: kept.append(torch.ones(numel)))
    assert report.verdict == (
        "not clear: the counter of host memory that is in use does not know blocks "
        "(see tensorlens doctor)"
    )
    assert report.notes == (
        f"tensors on cpu are not followed: TENSORLENS_COUNTER asks for {source}",
    )
    assert not any("without tensors" in each.text for each in report.others)


async def asleep():
    raise AssertionError("it never runs")


async def asleep_and_giving():
    yield


class Asleep:
    async def step(self):
        raise AssertionError("it never runs")


def giving():
    yield


@pytest.mark.parametrize(
    "step",
    [asleep, asleep_and_giving, giving, Asleep().step, functools.partial(asleep)],
)
def test_a_function_whose_call_runs_nothing_is_refused(step):
    with pytest.raises(UsageError, match="a call of a generator or coroutine function runs noth"):
        find_leaks(step)


def test_a_verdict_that_fails_says_why(monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("inner")

    monkeypatch.setattr(loop_steps.TorchSteps, "left", fail)
    report = find_leaks(lambda: None)
    assert report.verdict == "not clear: RuntimeError: inner"
    assert (report.steps, report.warmup, bool(report)) == (6, 2, False)
    assert str(report).startswith("Not clear: RuntimeError: inner\n")
    assert capsys.readouterr().err == "tensorlens: no leaks are told: RuntimeError: inner\n"


def test_a_loop_that_failed_is_not_judged():
    watch = LeakWatch()
    with contextlib.suppress(ZeroDivisionError), watch:
        watch.step()
        _ = 1 / 0
    with pytest.raises(UsageError):
        watch.result()


def test_nested_watches_agree():
    outer_kept, inner = [], []

    def step():
        outer_kept.append(torch.zeros(4))
        if len(outer_kept) == 4:
            inner.append(find_leaks(leaking([])))

    report = find_leaks(step)
    assert [leak.bytes_per_step for leak in report.leaks] == [16]
    assert [leak.bytes_per_step for leak in inner[0].leaks] == [16]


def test_watches_in_threads():
    reports = {}

    def work(size):
        kept = []

        def step():
            kept.append(torch.zeros(size))

        reports[size] = find_leaks(step)

    threads = [threading.Thread(target=work, args=(size,)) for size in (4, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # each may see the other's: both are of the same line
    assert all(report.leaks for report in reports.values())


def test_follow_with_a_break():
    kept = []
    watch = LeakWatch()
    for number in watch.follow(range(100)):
        kept.append(torch.zeros(4))
        if number == 9:
            break
    report = watch.stop()
    (leak,) = report.leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, 16)
    assert "kept (local) -> list[" in leak.path
    # the step that was left in the middle is not counted
    assert report.steps == 9 - 2


def test_follow_keeps_no_item():
    def batches():
        for _ in range(STEPS):
            yield torch.zeros(4)

    watch = LeakWatch()
    for batch in watch.follow(batches()):
        batch.sum()
    assert watch.stop().leaks == ()


def test_no_step_at_all():
    with LeakWatch() as watch:
        pass
    assert watch.report.leaks == ()
    assert watch.report.verdict.startswith("too few steps to tell")
    assert watch.report.steps == 0


def test_leaks_without_warm_up():
    report = find_leaks(leaking([]), steps=4, warmup=0)
    assert [leak.bytes_per_step for leak in report.leaks] == [16]


@pytest.mark.parametrize("arguments", [{"steps": 1}, {"steps": 2}, {"warmup": -1}])
def test_impossible_numbers_of_steps(arguments):
    with pytest.raises(UsageError):
        find_leaks(lambda: None, **arguments)


def test_the_collector_stays_as_it_was():
    gc.disable()
    try:
        find_leaks(leaking([]))
        assert not gc.isenabled()
    finally:
        gc.enable()
    find_leaks(leaking([]))
    assert gc.isenabled()


def test_many_steps_make_it_certain():
    assert find_leaks(leaking([])).leaks[0].certainty == "likely"
    assert find_leaks(leaking([]), steps=24).leaks[0].certainty == "certain"


def test_a_list_that_is_cleared_every_ten_steps():
    kept = []

    def step(number):
        kept.append(torch.zeros(4))
        if number % 10 == 9:
            kept.clear()

    assert all(leak.certainty == "likely" for leak in find_leaks(step).leaks)
    kept.clear()
    assert find_leaks(step, steps=22).leaks == ()


def test_a_tensor_that_gets_longer_has_its_advice():
    longer = torch.zeros(0)

    def step():
        nonlocal longer
        longer = torch.cat([longer, torch.ones(5)])

    (leak,) = find_leaks(step).leaks
    assert leak.bytes_per_step == 5 * 4
    assert leak.advice.startswith("cap the size of longer, which ")


def test_growth_that_ended_with_its_function_is_no_reason_to_say_no_leak():
    watch = LeakWatch().start()

    def train():
        kept = []
        for _ in range(12):
            kept.append(torch.zeros(256))
            watch.step()

    train()
    report = watch.stop()
    assert report
    assert report.verdict == (
        "no tensor is known to stay behind in any of 9 steps, but memory is 9.00 KiB more at the "
        "end"
    )
    (unknown,) = (other for other in report.others if other.kind == "unknown")
    assert (unknown.bytes_per_step, unknown.device) == (256 * 4, "cpu")


def test_omitted_leaks_are_noted():
    kept = [[] for _ in range(23)]
    code = [f"def make_{n}(size): return torch.zeros(size)" for n in range(23)]
    made = {"torch": torch}
    exec(compile("\n".join(code), "made.py", "exec"), made)

    def step():
        for number, each in enumerate(kept):
            each.append(made[f"make_{number}"](number + 1))

    report = find_leaks(step)
    # a line each: the three with 1, 2 and 3 numbers of 4 B are the smallest
    assert len(report.leaks) == 20
    assert report.notes == (
        "3 smaller groups left something behind too, 24 B a step: not looked at",
    )


def test_failures_of_a_watch_do_not_reach_the_loop(monkeypatch, capsys):
    made = []
    with LeakWatch(warmup=0) as watch:
        steps = watch._steps
        for number in range(4):
            made.append(torch.zeros(256))
            with monkeypatch.context() as patch:
                if number == 1:
                    patch.setattr(steps, "figures", lambda: 1 / 0)
                watch.step()
    assert watch.count == 3
    assert "a step is not told apart from the next: ZeroDivisionError" in capsys.readouterr().err
    with LeakWatch() as watch:
        watch.step()
        monkeypatch.setattr(watch, "result", lambda: 1 / 0)
    assert "no leaks are told: ZeroDivisionError" in capsys.readouterr().err


def test_one_step_is_too_few_to_tell():
    kept = []
    with LeakWatch() as watch:
        for _ in range(4):
            kept.append(torch.zeros(100))
            watch.step()
    assert watch.report.verdict == "too few steps to tell: one judged"
