import signal
import time

import pytest
from fake_frameworks import FakeFramework, FakeHoldings, FakeRecorder, FakeSteps, table, use

from tensorlens import LeakWatch, record
from tensorlens.errors import UsageError
from tensorlens.frameworks import (
    TENSORFLOW,
    TORCH,
    UNKNOWN,
    Findings,
    RecordOptions,
    StepFigures,
    Survivor,
    registry,
)
from tensorlens.leaks import total_figures
from tensorlens.recording import Recorders
from tensorlens.records import (
    ALLOC,
    FREE,
    START,
    Context,
    EventLog,
    Frame,
    Ledger,
    Origin,
    Part,
    SourceLine,
    UnnamedBlock,
)
from tensorlens.tensors import merged_census


def failing_handler(number, frame):
    raise TimeoutError("the program's own time limit")


def host_ledger(source, allocated, named, **more):
    cached = None if allocated is None else 1000 - allocated
    parts = () if allocated is None else more.pop("parts", ())
    return Ledger(
        device="cpu",
        source=source,
        precision="exact bytes",
        allocated=allocated,
        named=named,
        unnamed=None if allocated is None else allocated - named,
        reserved=1000,
        cached=cached,
        other=3000,
        driver_used=4000,
        driver_total=9000,
        parts=parts,
        **more,
    )


class TestCensus:
    def found(self, first, second):
        one, two = FakeFramework("one"), FakeFramework("two")
        one.findings, two.findings = first, second
        return merged_census.census([one, two], ())

    def test_tables_are_one_and_notes_are_told_once(self):
        found = self.found(
            Findings(table(("a", 16, 8), ("a.T", 16, 8)), {}, ("odd", "one's")),
            Findings(table(("b", 32, 4), device="cuda:0"), {}, ("odd",)),
        )
        rows = [(t.name, t.device, t.nbytes, t.alias_of) for t in found.tensors]
        assert rows == [("a", "cpu", 8, None), ("a.T", "cpu", 8, "a"), ("b", "cuda:0", 4, None)]
        assert found.notes == ("odd", "one's")

    def test_memory_that_both_show_is_counted_once(self):
        found = self.found(
            Findings(table(("a", 16, 8), ("c", 64, 2)), {}, ()),
            Findings(table(("b", 16, 8), ("b[0]", 16, 8)), {}, ()),
        )
        assert {t.name: t.alias_of for t in found.tensors} == {
            **{"a": None, "c": None},
            **{"b": "a", "b[0]": "a"},
        }
        assert found.tensors.role_totals() == {("cpu", "other"): 10}

    def test_shared_memory_counts_at_its_owner(self):
        found = self.found(
            Findings(table(("a", 16, 8), ("a[0]", 16, 8), note="not torch's allocator"), {}, ()),
            Findings(table(("b", 16, 8)), {}, ()),
        )
        assert {t.name: t.alias_of for t in found.tensors} == {"a": "b", "a[0]": "b", "b": None}

    def test_the_same_address_on_another_device_is_other_memory(self):
        found = self.found(
            Findings(table(("a", 16, 8)), {}, ()),
            Findings(table(("b", 16, 8), device="cuda:0"), {}, ()),
        )
        assert [t.alias_of for t in found.tensors] == [None, None]

    def test_the_ledger_of_the_host_has_the_process_once(self):
        parts = (
            Part("cached", "files", "files", 300, ""),
            Part("cached", "shared", "shared", 50, ""),
            Part("cached", "heap", "heap", 400, ""),
            Part("cached", "rest", "rest", 150, ""),
        )
        found = self.found(
            Findings(
                table(),
                {
                    "cpu": host_ledger(
                        *("one's", 100, 90),
                        parts=parts,
                        blocks=(UnnamedBlock(1, 10),),
                        block_count=1,
                    )
                },
                (),
            ),
            Findings(
                table(),
                {
                    "cpu": host_ledger(
                        *("two's", 70, 30), blocks=(UnnamedBlock(2, 40),), block_count=2
                    )
                },
                (),
            ),
        )
        ledger = found.ledger["cpu"]
        assert (ledger.allocated, ledger.named, ledger.unnamed) == (170, 120, 50)
        assert (ledger.reserved, ledger.cached) == (1000, 830)
        assert (ledger.other, ledger.driver_used, ledger.driver_total) == (3000, 4000, 9000)
        assert ledger.source == "one's and two's"
        assert [block.nbytes for block in ledger.blocks] == [40, 10] and ledger.block_count == 3
        sizes = {term.key: term.nbytes for term in ledger.parts}
        assert sizes == {"files": 300, "shared": 50, "heap": 400 - 70, "rest": 150}
        assert sum(sizes.values()) == ledger.cached

    def test_unknown_figure_of_one_is_unknown_in_the_sum(self):
        missing = dict.fromkeys(("allocated", "unnamed", "cached"), "no compiler")
        found = self.found(
            Findings(table(), {"cpu": host_ledger("one's", 100, 90)}, ()),
            Findings(table(), {"cpu": host_ledger("heap", None, 30, missing=missing)}, ()),
        )
        ledger = found.ledger["cpu"]
        assert (ledger.allocated, ledger.unnamed, ledger.cached) == (None, None, None)
        assert (ledger.named, ledger.reserved, ledger.other) == (120, 1000, 3000)
        assert ledger.missing["allocated"] == ledger.missing["unnamed"] == "two: no compiler"
        assert ledger.missing["cached"] == "two: no compiler"

    def test_uncounted_framework_without_tensors_changes_nothing(self):
        own = host_ledger("one's", 100, 90)
        missing = dict.fromkeys(("allocated", "unnamed", "cached"), "no compiler")
        found = self.found(
            Findings(table(), {"cpu": own}, ()),
            Findings(table(), {"cpu": host_ledger("heap", None, 0, missing=missing)}, ()),
        )
        assert found.ledger["cpu"] is own
        assert found.notes == ("two: what it took on the cpu is not in the ledger: no compiler",)

    def test_the_ledger_of_a_device_has_both_pools(self):
        def pool(source, allocated, named, reserved):
            return Ledger(
                device="cuda:0",
                source=source,
                precision="exact bytes",
                allocated=allocated,
                named=named,
                unnamed=allocated - named,
                reserved=reserved,
                cached=reserved - allocated,
                other=1000 - reserved,
                driver_used=1000,
                driver_total=4000,
                parts=(Part("cached", "largest_free", "largest free block", 9, ""),),
            )

        found = self.found(
            Findings(table(), {"cuda:0": pool("A", 100, 60, 200)}, ()),
            Findings(table(), {"cuda:0": pool("B", 30, 10, 70)}, ()),
        )
        ledger = found.ledger["cuda:0"]
        assert (ledger.allocated, ledger.named, ledger.unnamed) == (130, 70, 60)
        assert (ledger.reserved, ledger.cached, ledger.other) == (270, 140, 730)
        assert ledger.driver_used == 1000
        assert ledger.parts == ()

    def test_failing_census_leaves_the_other(self):
        first, second = FakeFramework("one"), FakeFramework("two")
        both = first, second
        first.findings = Findings(table(("a", 16, 8)), {}, ())
        second.trouble = ValueError("odd")
        found = merged_census.census(both, ())
        assert [t.name for t in found.tensors] == ["a"]
        assert found.notes == ("two could not be looked at: ValueError: odd",)
        first.trouble = KeyError("x")
        with pytest.raises(ValueError, match="odd"):
            merged_census.census(both, ())

    def test_error_of_a_program_handler_passes_through(self):
        first, second = FakeFramework("one"), FakeFramework("two")
        both = first, second
        before = signal.signal(signal.SIGUSR1, failing_handler)
        try:
            first.census = lambda roots: signal.raise_signal(signal.SIGUSR1)
            with pytest.raises(TimeoutError):
                merged_census.census(both, ())
        finally:
            signal.signal(signal.SIGUSR1, before)


def made_log(*events, device="cpu", thread=0):
    log = EventLog()
    for number, (kind, address, size, at) in enumerate(events):
        stack = log.stacks.add([Frame("train.py", number + 1, "step")])
        log.append(kind, device, address, size, at, stack, Context(thread=thread))
    return log


class TestRecording:
    def frameworks(self, first, second):
        one, two = FakeFramework("one"), FakeFramework("two")
        one.recorder, two.recorder = first, second
        return one, two

    def test_events_of_both_by_time_and_marks_between_them(self, monkeypatch):
        first = made_log((START, 1, 100, 0), (ALLOC, 2, 10, 5), (FREE, 2, 10, 60))
        second = made_log((START, 8, 50, 0), (ALLOC, 9, 20, 4), (FREE, 9, 20, 30))
        # the second began 3 ns later; the mark is made 40 ns after the first began
        monkeypatch.setattr(time, "monotonic_ns", lambda: 1040)
        one = FakeRecorder(first, Origin(source={"cpu": "A"}, started=5.0, started_ns=1000))
        two = FakeRecorder(second, Origin(source={"cpu": "B"}, started=5.0, started_ns=1003))
        both = self.frameworks(one, two)
        recorder = Recorders(both, RecordOptions())
        recorder.mark("half")
        log, origin = recorder.read(True)
        assert [(e.action, e.nbytes, e.time_ns, e.pair) for e in log] == [
            ("start", 100, 0, -1),
            ("start", 50, 0, -1),
            ("alloc", 10, 5, 5),
            ("alloc", 20, 7, 4),
            ("free", 20, 33, 3),
            ("free", 10, 60, 2),
        ]
        assert log.devices == ["cpu"]
        assert [(mark.name, mark.row, mark.time_ns) for mark in log.marks] == [("half", 5, 40)]
        assert origin.source == {"cpu": "A and B"}
        assert (origin.started, origin.started_ns) == (5.0, 1000)
        assert one.ended == two.ended == 1

    def test_marks_before_all_events_that_were_kept_are_dropped(self, monkeypatch):
        first, second = made_log((ALLOC, 2, 10, 50)), made_log((ALLOC, 9, 20, 4))
        origin = Origin(started_ns=1000, dropped=7)
        both = self.frameworks(FakeRecorder(first, origin), FakeRecorder(second, origin))
        recorders = Recorders(both, RecordOptions())
        for name, now in (("a", 1002), ("b", 1045), ("c", 1060)):
            monkeypatch.setattr(time, "monotonic_ns", lambda now=now: now)
            recorders.mark(name)
        log, _ = recorders.read(True)
        assert [(mark.name, mark.row) for mark in log.marks] == [("b", 1), ("c", 2)]
        assert log.dropped_marks == ["a"]

    def test_threads_other_than_the_recordings_own_stay_apart(self):
        first = made_log((ALLOC, 1, 1, 1), thread=2)
        second = made_log((ALLOC, 2, 1, 2), thread=1)
        own = made_log((ALLOC, 3, 1, 3), thread=0)
        third = FakeFramework("three")
        third.recorder = FakeRecorder(own, Origin())
        one, two = self.frameworks(FakeRecorder(first, Origin()), FakeRecorder(second, Origin()))
        log, _ = Recorders([one, two, third], RecordOptions()).read(True)
        assert [event.context.thread for event in log] == [2, 3, 0]

    def test_peaks_that_allocators_counted_of_shared_devices_are_no_peak_of_both(self):
        one = FakeRecorder(made_log(), Origin(dropped=2))
        two = FakeRecorder(made_log(), Origin(dropped=1))
        one.log.devices += ["cuda:0"]
        both = self.frameworks(one, two)
        _, origin = Recorders(both, RecordOptions()).read(True)
        assert origin.dropped == 3

    def test_framework_without_recorder_is_a_note(self, monkeypatch):
        alone = FakeRecorder(made_log((ALLOC, 1, 1, 1)), Origin(notes=("own",)))
        monkeypatch.setitem(registry._unusable, "three", "three is left out")
        both = one, two = self.frameworks(alone, None)
        two.trouble = UsageError("host memory cannot be recorded")
        log, origin = Recorders(both, RecordOptions()).read(True)
        assert len(log) == 1
        assert origin.notes == (
            "own",
            "two is not recorded: host memory cannot be recorded",
            "three is left out",
        )
        one.trouble = UsageError("nor here")
        with pytest.raises(UsageError, match="nor here; host memory cannot be recorded"):
            Recorders(both, RecordOptions())

    def test_a_mark_without_a_name_is_refused(self, monkeypatch):
        one = FakeFramework("one")
        one.recorder = FakeRecorder(made_log(), Origin())
        use(monkeypatch, one)
        with record(names=False) as recording:
            with pytest.raises(UsageError) as raised:
                recording.mark(3)
        assert str(raised.value) == "mark(3): give a name, such as 'step 3'"
        assert recording.marks == ()

    def test_a_question_while_it_is_on_reads_once(self, monkeypatch):
        class Growing(FakeRecorder):
            """Has dropped as many events as it was read times."""

            reads = 0

            def read(self, end):
                self.reads += 1
                log = made_log(*((ALLOC, number, 8, number) for number in range(self.reads)))
                return log, Origin(dropped=self.reads)

        one = FakeFramework("one")
        one.recorder = Growing(made_log(), Origin())
        use(monkeypatch, one)
        with record(names=False) as recording:
            still = recording.still()
            assert (len(still.log), still.origin.dropped, one.recorder.reads) == (1, 1, 1)
            peak = recording.peak()
            assert peak.bytes == sum(block.nbytes for block in peak.tensors) == 16
            assert one.recorder.reads == 2
        assert recording.still() is recording.still()
        assert (len(recording.log), recording.origin.dropped) == (3, 3)

    @pytest.mark.parametrize("limit", [0, -1, 1.5, 1e6, "9", None])
    def test_limits_that_are_refused(self, limit):
        with pytest.raises(UsageError) as raised:
            record(limit=limit)
        expected = f"limit={limit!r}: give a whole number of events, 1 or more"
        assert str(raised.value) == expected

    def test_an_interrupt_while_one_starts_ends_the_other(self):
        first = FakeRecorder(made_log(), Origin())
        both = _one, two = self.frameworks(first, None)

        def interrupted(options):
            raise KeyboardInterrupt

        two.record = interrupted
        with pytest.raises(KeyboardInterrupt):
            Recorders(both, RecordOptions())
        assert first.ended == 1

    @pytest.mark.parametrize("broken", [0, 1])
    def test_unreadable_log_loses_only_its_events(self, broken):
        recorders = [FakeRecorder(made_log((ALLOC, 1, 8, 1)), Origin()) for _ in range(2)]

        def fail(end):
            raise RuntimeError("gone")

        recorders[broken].read = fail
        both = self.frameworks(*recorders)
        log, origin = Recorders(both, RecordOptions()).read(True)
        assert len(log) == 1 and recorders[1 - broken].ended == 1
        name = ("one", "two")[broken]
        assert origin.notes == (f"{name}: its events were lost: RuntimeError: gone",)

    def test_without_any_log_there_are_no_marks(self):
        def fail(end):
            raise RuntimeError("gone")

        first, second = (FakeRecorder(made_log(), Origin()) for _ in range(2))
        first.read, second.read = fail, lambda end: None  # of a device that was not used
        recorders = Recorders(self.frameworks(first, second), RecordOptions())
        recorders.mark("half")
        log, origin = recorders.read(True)
        assert (len(log), [*log.marks]) == (0, [])
        assert origin.notes == ("one: its events were lost: RuntimeError: gone",)

    def test_an_interrupt_while_one_is_read_ends_the_others(self):
        one, two = (FakeRecorder(made_log(), Origin()) for _ in range(2))

        def interrupted(end):
            raise KeyboardInterrupt

        one.read = interrupted
        both = self.frameworks(one, two)
        with pytest.raises(KeyboardInterrupt):
            Recorders(both, RecordOptions()).read(True)
        assert two.ended == 1


STEPS = 8


class Thing:
    """Stands for a tensor."""


class GrowingSteps(FakeSteps):
    """Each step leaves a block of line 3 behind."""

    def __init__(self, size, first, words):
        super().__init__(StepFigures({}, {}, {}), [])
        self.size, self.first = size, first
        self.kept = [Thing() for _ in range(STEPS)]
        self.words = words

    def figures(self):
        blocks = range(min(self.begun, STEPS))
        self._blocks = [(self.first + step, self.size, 3, step) for step in blocks]
        self.known = {
            self.first + step: Survivor(
                self.first + step, self.size, (self.kept[step],), words=self.words
            )
            for step in blocks
        }
        self.below = dict.fromkeys(map(id, self.kept), 0)
        nbytes = self.size * len(blocks)
        return StepFigures({"cpu": nbytes}, {"cpu": 1000}, {3: (len(blocks), nbytes)})


class TestSteps:
    def both(self):
        one, two = FakeFramework("one"), FakeFramework("two")
        one.steps = GrowingSteps(16, 0x100, TORCH)
        two.steps = GrowingSteps(40, 0x200, TENSORFLOW)
        return one, two

    def report(self, monkeypatch, one, two):
        use(monkeypatch, one, two)
        watch = LeakWatch().start()
        for _ in range(STEPS):
            watch.step()
        return watch.stop()

    def test_sums_by_device(self):
        figures = [
            StepFigures({"cpu": 100, "cuda:0": 10}, {"cpu": 1000, "cuda:0": 64}, {3: (1, 60)}),
            StepFigures({"cpu": 20, "cuda:0": 5}, {"cpu": 2000, "cuda:0": 32}, {3: (1, 12)}),
        ]
        found = total_figures(figures)
        assert found.allocated == {"cpu": 120, "cuda:0": 15}
        # the resident set is the process's
        assert found.reserved == {"cpu": 1000, "cuda:0": 96}
        figures[0].allocated["cpu"] = figures[0].reserved["cpu"] = UNKNOWN
        found = total_figures(figures)
        assert found.allocated["cpu"] == UNKNOWN and found.reserved["cpu"] == 2000

    def test_leaks_of_each_are_told_by_its_own_lines(self, monkeypatch):
        one, two = self.both()
        two.steps.line = lambda birth: SourceLine("other.py", birth, "fit")
        report = self.report(monkeypatch, one, two)
        assert [(leak.bytes_per_step, leak.born.filename) for leak in report.leaks] == [
            (40, "other.py"),
            (16, "train.py"),
        ]
        balance = report.balance["cpu"]
        assert (balance.growth, balance.leaks, balance.unknown) == (5 * 56, 5 * 56, 0)
        assert report.notes == ("followed",)
        assert one.steps.closed == two.steps.closed == 1

    def test_unfollowable_framework_is_a_note(self, monkeypatch):
        one, two = self.both()
        two.trouble = UsageError("no counter")
        report = self.report(monkeypatch, one, two)
        assert [leak.bytes_per_step for leak in report.leaks] == [16]
        assert report.notes == ("followed", "two is not followed: no counter")

    def test_framework_without_blocks_leaves_the_other(self, monkeypatch):
        one, two = self.both()
        two.steps.left_is_known = False
        assert [leak.bytes_per_step for leak in self.report(monkeypatch, one, two).leaks] == [16]

    def test_failure_at_the_end_is_a_note(self, monkeypatch):
        one, two = self.both()

        def holdings(addresses):
            raise ValueError("odd")

        two.steps.holdings = holdings
        report = self.report(monkeypatch, one, two)
        assert [leak.bytes_per_step for leak in report.leaks] == [16]
        note = "two: what its steps left behind could not be told: ValueError: odd"
        assert report.notes[0] == note
        # that one leaves nothing behind does not say that there is no leak
        one, two = self.both()
        one.steps.figures, two.steps.holdings = lambda: StepFigures({}, {}, {}), holdings
        report = self.report(monkeypatch, one, two)
        assert (report.leaks, report.verdict) == ((), f"not clear: {note}")

    def test_failure_at_the_second_step_is_a_note(self, monkeypatch):
        one, two = self.both()

        def filling():
            count = two.steps.begun
            two.steps._blocks = [(0x200 + place, 40, 3, STEPS - 1) for place in range(count)]
            return StepFigures({"cpu": 40 * count}, {}, {3: (count, 40 * count)})

        two.steps.figures, two.steps.holdings = filling, {}.__getitem__
        report = self.report(monkeypatch, one, two)
        assert [leak.bytes_per_step for leak in report.leaks] == [16]
        assert report.notes[0].startswith("two: what its steps left behind could not be told: ")

    def test_what_nothing_in_python_holds_is_told_by_the_framework_that_counted_it(
        self, monkeypatch
    ):
        one, two = self.both()
        for steps in (one.steps, two.steps):
            steps.holdings = lambda addresses, words=steps.words: FakeHoldings(
                [Survivor(address, 0, words=words) for address in addresses], {}
            )
        of_two, of_one = self.report(monkeypatch, one, two).leaks
        assert "TensorFlow's runtime" in of_two.reason and "TensorFlow" not in of_one.reason
