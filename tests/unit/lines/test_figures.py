"""What the figures of a line are: every number here is added up by hand."""

import gc
import sys

import pytest
from bench import WAYS, Bench, FakeFramework, FakeMemory

from tensorlens.lines import LineMemory, layouts, overview


def test_a_line_has_what_was_handed_out_while_it_ran(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(100)  # A
        memory.spike(40)  # B
        memory.free(30)  # C
        memory.allocate(5)  # D

    memory.allocate(1000)
    step()
    assert bench.at("A") == LineMemory(1100, 1100, 1100, 100, 100, 100)
    assert bench.at("B") == LineMemory(1100, 1140, 1140, 0, 0, 0)
    assert bench.at("C") == LineMemory(1070, 1100, 1140, -30, -30, -30)
    assert bench.at("D") == LineMemory(1075, 1075, 1140, 5, 5, 5)
    assert bench.function("step").calls == 1
    assert bench.is_idle()


def test_the_peak_of_before_the_call_is_not_charged(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)  # A

    memory.spike(5000)
    step()
    assert bench.at("A").peak == 1


def test_loops_sum_net_and_keep_the_largest_of_the_rest(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        for size in (10, 40, -20):  # A
            memory.allocate(size)  # B

    step()
    assert bench.hits("A", "B") == [4, 3]
    assert bench.at("B") == LineMemory(50, 50, 50, 30, 40, 10)
    assert bench.at("A") == LineMemory(50, 50, 50, 0, 0, 0)


def test_net_max_is_negative_where_every_hit_freed(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        for size in (30, 10):
            memory.free(size)  # A

    memory.allocate(100)
    step()
    assert bench.at("A") == LineMemory(70, 100, 100, -40, -10, -30)


def test_figures_add_up_over_calls(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step(size: int) -> None:
        memory.allocate(size)  # A

    for size in (7, 50, 3):
        step(size)
    assert bench.at("A") == LineMemory(60, 60, 60, 60, 50, 7)
    assert bench.hits("A") == [3]
    assert bench.function("step").calls == 3


def test_a_line_that_never_ran_is_blank(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step(wanted: bool) -> None:
        if wanted:  # A
            memory.allocate(1)  # B

    @bench.profile
    def uncalled() -> None:
        memory.allocate(1)  # C

    step(False)
    assert bench.hits("A", "B", "C") == [1, 0, 0]
    assert bench.line("A").memory
    assert not bench.line("B").memory
    assert not bench.line("C").memory
    assert bench.function("step").note is None
    assert bench.function("uncalled").note == "never called"


def test_locals_are_freed_in_the_line_of_the_caller(bench: Bench, memory: FakeMemory) -> None:
    class Tensor:
        def __init__(self) -> None:
            memory.allocate(100)

        def __del__(self) -> None:
            memory.free(100)

    @bench.profile
    def step() -> int:
        kept = Tensor()  # A
        return len([kept])  # B

    @bench.profile
    def outer() -> None:
        step()  # C
        memory.allocate(1)  # D

    outer()
    assert bench.nets("A", "B", "C", "D") == [100, 0, 0, 1]
    assert bench.at("B").allocated == 100
    assert bench.at("C") == LineMemory(0, 100, 100, 0, 0, 0)
    assert bench.peaks("D") == [1]
    assert bench.is_idle()


def test_more_hits_hold_no_more_memory(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step(times: int) -> None:
        for _ in range(times):
            memory.allocate(1)

    def held() -> tuple[int, int]:
        gc.collect()
        lines = bench.profiler.functions[0].account.lines
        cells = [cell for stats in lines.values() for cell in stats.cells]
        sizes = [sys.getsizeof(item) for stats in lines.values() for item in (stats, stats.cells)]
        return len(gc.get_objects()), len(cells) * 1000 + sum(sizes)

    gc.freeze()  # what other tests left may go at any time
    try:
        for _ in range(2):  # the second time nothing is new any more
            step(10)
            objects, size = held()
        step(100_000)
        after, size_after = held()
        assert size_after == size
        # other threads of the process have a few of their own
        assert abs(after - objects) < 50
    finally:
        gc.unfreeze()


def test_accelerators_appear_as_they_come_into_use(bench: Bench, memory: FakeMemory) -> None:
    first, second = FakeMemory("cuda:0"), FakeMemory("cuda:1")
    fake = FakeFramework(first, second)
    bench.frameworks.append(fake)

    @bench.profile
    def step() -> None:
        memory.allocate(1)  # A
        fake.used.append("cuda:1")
        second.allocate(20)  # B
        fake.used.append("cuda:0")
        first.allocate(300)  # C
        second.free(5)  # D

    step()
    assert set(bench.line("A").memory) == {"cpu"}
    assert bench.at("B", "cuda:1") == LineMemory(20, 20, 20, 20, 20, 20)
    assert bench.at("C", "cuda:0") == LineMemory(300, 300, 300, 300, 300, 300)
    assert bench.at("D", "cuda:1") == LineMemory(15, 20, 20, -5, -5, -5)
    assert bench.at("D", "cpu") == LineMemory(1, 1, 1, 0, 0, 0)


def test_a_device_first_used_within_a_line_held_nothing_before(
    bench: Bench, memory: FakeMemory
) -> None:
    device = FakeMemory("cuda:0")
    fake = FakeFramework(device)
    bench.frameworks.append(fake)

    def first_use() -> None:
        device.spike(50)
        device.allocate(20)
        fake.used.append("cuda:0")

    @bench.profile
    def step() -> None:
        first_use()  # A
        first_use  # noqa: B018

    step()
    assert bench.at("A", "cuda:0") == LineMemory(20, 50, 50, 20, 20, 20)


def test_a_figure_that_cannot_be_had_is_none(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.free(0)  # A

    memory.allocated = memory.peak = -1
    step()
    assert bench.at("A") == LineMemory(None, None, 0, None, None, None)


def test_an_accelerator_whose_framework_came_later_is_seen(
    bench: Bench, memory: FakeMemory
) -> None:
    device = FakeMemory("cuda:0")

    @bench.profile
    def step() -> None:
        device.allocate(10)  # A

    step()
    bench.frameworks.append(FakeFramework(device))
    bench.frameworks[0].used.append("cuda:0")
    if bench.enabled:  # a counter is taken up where a profiled region begins
        bench.profiler.disable_by_count()
        bench.profiler.enable_by_count()
    step()
    assert bench.at("A", "cuda:0").net == 10


def test_a_framework_imported_by_the_profiled_code_does_not_wipe_its_figures(
    bench: Bench, memory: FakeMemory
) -> None:
    better = FakeMemory()

    @bench.profile
    def main() -> None:
        bench.frameworks.append(FakeFramework(cpu=better))  # A
        memory.allocate(10)  # B

    main()
    assert bench.nets("A", "B") == [0, 10]
    assert bench.function("main").calls == 1


def test_figures_of_two_counters_are_never_mixed(memory: FakeMemory) -> None:
    bench = Bench("decorated")
    better = FakeMemory()

    @bench.profile
    def step() -> None:
        bench.memory.allocate(10)
        better.allocate(3)  # A

    step()
    bench.frameworks.append(FakeFramework(cpu=better))
    step()
    assert bench.at("A") == LineMemory(6, 6, 6, 3, 3, 3)
    function = bench.function("step")
    assert function.calls == 1
    assert function.note is not None
    assert "(1)" in function.note
    bench.close()


def test_clear_starts_afresh_in_the_middle_of_a_call(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(10)  # A
        bench.profiler.clear()
        memory.allocate(5)  # B

    step()
    assert bench.hits("A", "B") == [0, 1]
    assert bench.at("B") == LineMemory(15, 15, 15, 5, 5, 5)
    assert bench.function("step").note is None


@pytest.mark.parametrize("way", WAYS)
def test_time_of_a_line_includes_what_it_calls(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr("tensorlens.lines.activation.perf_counter_ns", lambda: next(clock))
    bench = Bench(way)

    @bench.profile
    def step() -> None:
        next(clock)  # A
        next(clock) + next(clock)  # B

    step()
    # a line asks the clock when it begins and when it ends; each asking takes 100 ns
    assert bench.line("A").time_ns == 200
    assert bench.line("B").time_ns == 300
    bench.close()


def marks(bench: Bench) -> tuple[list[str], list[str]]:
    """Return the comments of the lines that have the marks of peak and of growth."""
    found = overview(layouts(bench.profiler.result()))
    return tuple(
        [each.row.source.rpartition("# ")[2] for each in places]
        for places in (found.peaks, found.growths)
    )


def test_peak_is_marked_where_it_rose(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        for size in (10, 20):  # A
            memory.allocate(size)  # B
        memory.free(5)  # C
        memory.spike(5)  # D

    memory.allocate(100)
    step()
    assert bench.peaks("A", "B", "C", "D") == [130, 130, 130, 130]
    assert [bench.at(mark).rise for mark in "ABCD"] == [0, 20, 0, 5]
    assert marks(bench) == (["B"], ["B"])


def test_level_of_before_the_call_is_nobodys_peak(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.free(90)  # A
        memory.allocate(10)  # B

    memory.allocate(100)
    step()
    assert bench.peaks("A", "B") == [100, 20]
    assert marks(bench) == ([], ["B"])


def test_growth_that_is_given_back_elsewhere_has_no_mark(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1000)  # A
        memory.allocate(1)  # B

    for _ in range(44):
        step()
        memory.free(1000)  # by a graph, or by another thread
    # at the last end there are 44 more of B than at the first start, and one of A
    assert bench.nets("A", "B") == [44_000, 44]
    assert (bench.at("A").growth, bench.at("B").growth) == (1043, 44)
    assert marks(bench)[1] == ["B"]


def test_growth_within_one_call_is_marked(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(7)  # A
        for _ in range(3):
            memory.allocate(10)  # B
            memory.free(10)  # C

    step()
    assert bench.nets("A", "B", "C") == [7, 30, -30]
    assert [bench.at(mark).growth for mark in "ABC"] == [7, 10, 0]
    assert marks(bench)[1] == ["A"]


def test_growth_that_a_call_gives_back_at_its_end_has_no_mark(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def evaluate() -> None:
        for batch in range(4):
            memory.allocate(0 if batch else 1000)  # A

    for _ in range(3):
        evaluate()
        memory.free(1000)
    assert bench.at("A").net == 3000
    # when last seen, that of the third call was there
    assert bench.at("A").growth == 1000
    assert marks(bench)[1] == []


def test_state_is_growth_and_gradients_are_not(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def train() -> None:
        for step in range(3):
            memory.allocate(100)  # A
            memory.allocate(0 if step else 220)  # B
            memory.free(100)  # C

    train()
    assert bench.nets("A", "B", "C") == [300, 220, -300]
    # the first gradients may be what the state is; those of the second step are surely gone
    assert [bench.at(mark).growth for mark in "ABC"] == [200, 220, 0]
    assert marks(bench)[1] == ["B"]
