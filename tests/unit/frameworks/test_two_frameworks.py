import gc
import importlib.util
import sys
import types
from unittest.mock import Mock

import pytest
from fake_frameworks import (
    FakeCounter,
    FakeFramework,
    FakeSteps,
    use,
)

from tensorlens import LeakWatch, record
from tensorlens.cli import leaks
from tensorlens.errors import DeviceError, UsageError
from tensorlens.frameworks import UNKNOWN, Adapter, StepFigures, registry
from tensorlens.frameworks.host import HeapCounter, ResidentCounter
from tensorlens.leaks import FollowedLoop
from tensorlens.lines import CounterSlots, continues
from tensorlens.tensors import reporter


def counters_of(*frameworks):
    slots = CounterSlots(find=lambda: frameworks, host=lambda: None)
    slots.refresh()
    return slots


def pair():
    first = FakeFramework("one", FakeCounter("one's", 100, 130, 1000))
    second = FakeFramework("two", FakeCounter("two's", 20, 50, 2000))
    return first, second, counters_of(first, second)


class TestHostCounter:
    def test_sums_and_the_resident_set_once(self):
        *_, both = pair()
        counter = both.host()
        assert counter.reader()() == (120, 180, 1000)
        assert counter.source == "one's and two's"
        assert counter.precision.startswith("exact bytes; a peak is the sum of theirs: an upper")
        assert (counter.device, counter.missing) == ("cpu", {})

    def test_one_framework_alone_gives_its_own_counter(self):
        first, *_ = pair()
        assert counters_of(first).host() is first.cpu
        assert counters_of().host() is None and counters_of().notes() == []

    def test_same_frameworks_count_alike(self):
        first, _, both = pair()
        counter = both.host()
        assert continues(both.host(), counter) and continues(counter, both.host())
        first.cpu = FakeCounter("another", 1, 1, 1)
        assert not continues(both.host(), counter)

    @pytest.mark.parametrize(
        ("figures", "expected"),
        [
            ((UNKNOWN, 50, 7), (UNKNOWN, 180, 1000)),
            ((20, UNKNOWN, 7), (120, UNKNOWN, 1000)),
            ((0, 0, UNKNOWN), (100, 130, 1000)),
        ],
    )
    def test_one_unknown_figure_makes_the_sum_unknown(self, figures, expected):
        _, second, both = pair()
        read = both.host().reader()
        second.cpu.figures = figures
        assert read() == expected

    def test_the_other_one_tells_the_resident_set_where_the_first_cannot(self):
        first, second, both = pair()
        first.cpu.figures, first.cpu.missing = (1, 1, UNKNOWN), {"reserved": "no /proc"}
        assert both.host().reader()() == (21, 51, 2000)
        assert both.host().missing == {}
        second.cpu.missing = {"reserved": "no /proc"}
        assert both.host().missing == {"reserved": "one's: no /proc; two's: no /proc"}

    def test_reasons_are_those_of_now(self):
        _, second, both = pair()
        counter = both.host()
        second.cpu.missing["peak"] = "it keeps none"
        assert counter.missing == {"peak": "two's: it keeps none"}

    @pytest.mark.parametrize("of_second", ["no figure", "trouble", "nothing", "the whole process"])
    def test_one_that_cannot_be_added_is_left_out_with_a_note(self, of_second):
        first, second, both = pair()
        second.lines = ["no compiler; CPU figures are from: resident set"]
        if of_second == "no figure":
            second.cpu.missing = {"allocated": "no compiler"}
        elif of_second == "trouble":
            second.trouble = UsageError("TENSORLENS_COUNTER=native: no compiler")
        else:
            second.cpu = None if of_second == "nothing" else ResidentCounter()
        assert both.host() is first.cpu
        left_out = "two: what it has on the CPU is not in these figures (see tensorlens doctor)"
        assert both.notes() == [left_out]

    def test_a_counter_of_the_process_counts_for_all(self):
        first, second, both = pair()
        first.cpu, second.cpu = HeapCounter(), HeapCounter()
        first.lines = ["no compiler; CPU figures are from: C heap (glibc mallinfo2)"]
        assert both.host() is first.cpu
        assert both.notes() == first.lines

    def test_error_of_all_counters_is_raised_once(self):
        first, second, both = pair()
        first.trouble = second.trouble = UsageError("TENSORLENS_COUNTER=x: choose one of")
        with pytest.raises(UsageError, match=r"^TENSORLENS_COUNTER=x: choose one of$"):
            both.host()

    def test_counter_continues_from_an_earlier_one(self):
        first, second, both = pair()
        counter = both.host()
        assert continues(counter, first.cpu) and continues(counter, second.cpu)
        assert not continues(first.cpu, counter)
        third = FakeFramework("three", FakeCounter("three's", 0, 0, 0))
        assert continues(counters_of(first, second, third).host(), counter)
        assert not continues(counter, FakeCounter("one's", 0, 0, 0))


class TestAccelerators:
    def both(self):
        first = FakeFramework("one", None, a=FakeCounter("A", 10, 15, 64, device="cuda:0"))
        second = FakeFramework(
            "two",
            None,
            a=FakeCounter("B", 3, 4, 32, device="cuda:0"),
            b=FakeCounter("B", 1, 1, 8, device="cuda:1"),
        )
        return first, second, counters_of(first, second)

    def test_pools_on_one_device_are_added_up(self):
        _first, second, both = self.both()
        counter = both.device("cuda:0")
        assert counter.reader()() == (13, 19, 96)
        second.devices["cuda:0"].figures = (UNKNOWN,) * 3
        assert counter.reader()() == (UNKNOWN,) * 3
        assert both.device("cuda:1") is second.devices["cuda:1"]

    def test_a_device_that_none_has(self, monkeypatch):
        *_, both = self.both()
        use(monkeypatch)
        assert registry.device_name("xpu:7") == "xpu:7"
        use(monkeypatch, *both.adapters)
        assert registry.device_name("cuda:1") == "cuda:1"
        for ask in (registry.device_name, both.device):
            with pytest.raises(DeviceError, match="xpu:0: one has none; xpu:0: two has none"):
                ask("xpu:0")


class TestCounterSlots:
    def slots(self, *frameworks):
        state = {"found": [*frameworks]}
        host = FakeCounter("the process", 7, 7, 7)
        return state, CounterSlots(find=lambda: state["found"], host=lambda: host)

    def test_figures_from_before_a_second_framework_go_on(self):
        first, second, _ = pair()
        state, slots = self.slots(first)
        assert slots.reader()() == (100, 130, 1000)
        generation = slots.generation
        state["found"] = [first, second]
        assert slots.refresh() is False
        assert slots.generation == generation + 1
        assert slots.reader()() == (120, 180, 1000)

    def test_figures_from_before_the_first_do_not(self):
        _first, _second, both = pair()
        state, slots = self.slots()
        assert slots.reader()() == (7, 7, 7)
        state["found"] = both.adapters
        assert slots.refresh() is True
        assert slots.refresh() is False

    def test_the_slot_of_a_device_that_both_use_stays(self):
        first = FakeFramework("one", FakeCounter("1", 1, 1, 1))
        first.devices = {"cuda:0": FakeCounter("A", 10, 15, 64, device="cuda:0")}
        second = FakeFramework("two", FakeCounter("2", 2, 2, 2))
        second.devices = {
            "cuda:0": FakeCounter("B", 3, 4, 32, device="cuda:0"),
            "cuda:1": FakeCounter("B", 5, 6, 7, device="cuda:1"),
        }
        first.used, second.used = ["cuda:0"], ["cuda:1", "cuda:0"]
        state, slots = self.slots(first)
        assert slots.reader()() == [1, 1, 1, 10, 15, 64]
        state["found"] = [first, second]
        slots.refresh()
        assert slots.reader()() == [3, 3, 1, 13, 19, 96, 5, 6, 7]
        assert [each.device for each in slots.counters] == ["cpu", "cuda:0", "cuda:1"]

    def test_late_framework_is_noted(self):
        first, _second, both = pair()
        state, slots = self.slots(first)
        slots.refresh()
        state["found"] = both.adapters
        (note,) = slots.notes()
        assert note.startswith("two was imported after the last profiled call began: what it")
        slots.refresh()
        assert slots.notes() == []


@pytest.fixture
def both(monkeypatch):
    first, second, counters = pair()
    use(monkeypatch, *counters.adapters)
    return first, second


class TestRegistryOfTwo:
    def test_the_first_that_knows_answers(self, both):
        first, second = both
        assert registry.first_answer(lambda each: each.compiled_by("two")) == "two.compile"
        assert registry.first_answer(lambda each: each.compiled_by("f")) is None
        first.forward = {"net": "forward", "both": "forward"}
        second.forward = {"layer": "call", "both": "call"}
        found = [registry.first_answer(lambda a, i=i: a.forward_of(i)) for i in ("layer", "both")]
        assert found == ["call", "forward"]

    def test_who_came_later(self, both):
        first, second = both
        assert registry.imported_since([first]) == ("two",)
        assert registry.imported_since([]) == ("one", "two")
        assert registry.imported_since([first, second]) == ()

    def test_failing_adapter_leaves_the_other(self, both):
        first, second = both
        second.trouble = OSError("no")
        answers, failures = registry.ask(both, lambda each: each.watch())
        assert [each for each, _ in answers] == [first]
        assert failures == {"two": "OSError: no"}
        first.trouble = UsageError("nor here")
        with pytest.raises(OSError, match=r"^no$"):
            registry.ask(both, lambda each: each.watch())
        second.trouble = UsageError("not here")
        with pytest.raises(UsageError, match=r"^nor here; not here$"):
            registry.ask(both, lambda each: each.watch())
        assert registry.ask([], lambda each: each.watch()) == ([], {})

    def test_adapter_need_not_have_more_than_a_name(self, monkeypatch):
        class Bare(Adapter):
            name = "bare"

        use(monkeypatch, Bare())
        slots = CounterSlots(host=lambda: FakeCounter("the process", 7, 7, 7))
        assert slots.reader()() == (7, 7, 7) and slots.notes() == []
        assert registry.device_name("cpu") == "cpu"
        with pytest.raises(DeviceError, match="no device cuda:0: bare has none but cpu"):
            registry.device_name("cuda:0")
        snapshot = reporter.MemReporter().snapshot()
        assert (len(snapshot.tensors), snapshot.ledger) == (0, {})
        with pytest.raises(UsageError, match="the memory of bare cannot be recorded"):
            record().start()
        with pytest.raises(UsageError, match="the steps of bare cannot be followed"):
            LeakWatch().start()

    def test_page_locked_memory_is_added_up(self, both):
        first, second = both
        first.steps = second.steps = FakeSteps(StepFigures({}, {}, {}), [])
        steps = FollowedLoop(both)
        assert steps.pinned() == UNKNOWN
        second.locked = 5
        assert steps.pinned() == 5
        first.locked = 2
        assert steps.pinned() == 7
        assert steps.host_sample(3, {}).pinned == 7

    def test_tensors_are_subtracted_from_the_resident_set_too(self, monkeypatch, both):
        both[0].steps = both[1].steps = FakeSteps(StepFigures({}, {}, {}), [])
        module = sys.modules[FollowedLoop.__module__]
        monkeypatch.setattr(module, "heap_now", lambda: None)
        monkeypatch.setattr(module, "resident", lambda: 5000)
        sample = FollowedLoop(both).host_sample(3, {"cpu": 3000, "cuda:0": 700})
        assert (sample.step, sample.heap) == (3, 2000)

    def test_notes_are_told_once(self, both):
        first, second = both
        first.lines, second.lines = ["same", "a"], ["same", "b"]
        assert counters_of(*both).notes() == ["same", "a", "b"]

    def test_reporter_keeps_compilers_out_and_watches_all(self, both):
        first, second = both
        watch = reporter.MemReporter()
        assert (first.watching, second.watching) == (1, 1)
        assert (
            first.kept_out
            == second.kept_out
            == [reporter.MemReporter.snapshot, reporter.MemReporter.report]
        )
        del watch
        gc.collect()
        assert (first.watching, second.watching) == (0, 0)

    def test_steps_are_those_of_the_first_optimizer_to_step(self, both):
        first, second = both
        judge = Mock()
        end = leaks._when_stepped(judge)
        (one,), (two,) = first.acts, second.acts
        two()
        one()
        two()
        names = [each[0] for each in judge.method_calls]
        assert names == ["step_ended", "step_ended"]
        end()
        assert first.acts == second.acts == []


@pytest.fixture
def modules(monkeypatch):
    """An empty registry, which knows one framework by the name of a module ``numbery``."""
    monkeypatch.setattr(
        registry, "_FRAMEWORKS", {"numbery": "numbery_adapter", "texty": "no_adapter"}
    )
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_unusable", {})
    monkeypatch.delitem(sys.modules, "keras.src.backend.config", raising=False)

    def imported(name, **content):
        module = types.ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    imported("numbery_adapter", Adapter=lambda: FakeFramework("numbery"))
    return imported


def names():
    return [each.name for each in registry.adapters()]


class TestRegistry:
    def test_registry_imports_no_framework(self, modules):
        assert registry.adapters() == []
        assert registry.no_framework_text("nothing to do", "first") == (
            "nothing to do: import numbery or texty first"
        )

    def test_adapters_are_cached_until_a_framework_arrives(self, modules):
        modules("numbery")
        (alone,) = registry.adapters()
        assert alone.name == "numbery" and registry.adapters() == [alone]
        modules("no_adapter", Adapter=lambda: FakeFramework("texty"))
        modules("texty")
        assert names() == ["numbery", "texty"] and registry.adapters()[0] is alone

    def test_the_order_of_imports_makes_no_difference(self, modules):
        modules("no_adapter", Adapter=lambda: FakeFramework("texty"))
        modules("texty")
        assert names() == ["texty"]
        modules("numbery")
        assert names() == ["numbery", "texty"]

    def test_framework_without_adapter_is_one_note(self, modules):
        modules("numbery")
        modules("texty")
        assert names() == ["numbery"]
        (note,) = counters_of(*registry.adapters()).notes()
        assert (note,) == registry.unusable_notes()
        assert note == "texty is left out: ModuleNotFoundError: No module named 'no_adapter'"

    def test_failing_adapter_is_asked_once(self, modules):
        asked = []

        def fail():
            asked.append(1)
            raise AttributeError("module 'texty'\nhas no attribute 'config'")

        modules("no_adapter", Adapter=fail)
        modules("texty")
        assert names() == names() == [] and len(asked) == 1
        assert registry.no_framework_text("nothing to watch", "before it") == (
            "nothing to watch: import numbery or texty before it; texty is left out: "
            "AttributeError: module 'texty' has no attribute 'config'"
        )

    def test_half_imported_framework_waits(self, modules):
        module = modules("numbery")
        module.__spec__._initializing = True
        assert names() == []
        module.__spec__._initializing = False
        assert names() == ["numbery"]

    def test_mocked_module_is_not_a_framework(self, modules, monkeypatch):
        class Mocked:
            def __getattr__(self, name):
                raise AssertionError(name)

        monkeypatch.setitem(sys.modules, "numbery", Mocked())
        assert names() == []
        monkeypatch.setitem(sys.modules, "numbery", None)
        assert names() == []
        modules("numbery").__spec__ = None
        assert names() == []

    def test_lazy_module_is_not_loaded(self, modules, tmp_path, monkeypatch):
        (tmp_path / "numbery.py").write_text("raise SystemExit('loaded')")
        spec = importlib.util.spec_from_file_location("numbery", tmp_path / "numbery.py")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "numbery", module)
        spec.loader.exec_module(module)
        assert names() == []
