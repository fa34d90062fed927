import importlib.util
import sys
import types

import pytest
from fake_frameworks import (
    FakeCounter,
    FakeFramework,
)

from tensorlens.errors import DeviceError, UsageError
from tensorlens.frameworks import base
from tensorlens.frameworks.base import UNKNOWN
from tensorlens.frameworks.process import HeapCounter, ResidentCounter
from tensorlens.frameworks.together import arrived, parts_of, together
from tensorlens.frameworks.together.counters import goes_on_from
from tensorlens.lines.meters import Meters


def pair(**options):
    first = FakeFramework("one", FakeCounter("one's", 100, 130, 1000))
    second = FakeFramework("two", FakeCounter("two's", 20, 50, 2000))
    return first, second, together([first, second], **options)


class TestMakeUp:
    def test_none_one_and_several(self):
        first, second, both = pair()
        assert together([]) is None
        assert together([first]) is first
        assert (both.name, parts_of(both)) == ("one and two", (first, second))
        assert (parts_of(first), parts_of(None)) == ((first,), ())

    def test_a_note_on_who_is_left_out_is_told_with_one_alone(self):
        first, *_ = pair()
        alone = together([first], ["two is left out: OSError: broken"])
        assert alone.notes() == ["two is left out: OSError: broken"]
        assert alone.name == "one" and alone.cpu_counter() is first.cpu
        assert alone.census(()).notes == ("two is left out: OSError: broken",)

    def test_who_came_later(self):
        first, _second, both = pair()
        assert arrived(first, both) == ("two",)
        assert arrived(None, both) == ("one", "two")
        assert arrived(both, both) == arrived(both, first) == ()


class TestHostCounter:
    def test_sums_and_the_resident_set_once(self):
        *_, both = pair()
        counter = both.cpu_counter()
        assert counter.reader()() == (120, 180, 1000)
        assert counter.source == "one's and two's"
        assert counter.precision.startswith("exact bytes; a peak is the sum of theirs: an upper")
        assert (counter.device, counter.missing) == ("cpu", {})

    def test_it_is_the_same_counter_while_theirs_are(self):
        first, _, both = pair()
        counter = both.cpu_counter()
        assert both.cpu_counter() is counter
        first.cpu = FakeCounter("another", 1, 1, 1)
        assert both.cpu_counter() is not counter

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
        read = both.cpu_counter().reader()
        second.cpu.figures = figures
        assert read() == expected

    def test_the_other_one_tells_the_resident_set_where_the_first_cannot(self):
        first, second, both = pair()
        first.cpu.figures, first.cpu.missing = (1, 1, UNKNOWN), {"reserved": "no /proc"}
        assert both.cpu_counter().reader()() == (21, 51, 2000)
        assert both.cpu_counter().missing == {}
        second.cpu.missing = {"reserved": "no /proc"}
        assert both.cpu_counter().missing == {"reserved": "one's: no /proc; two's: no /proc"}

    def test_reasons_are_those_of_now(self):
        _, second, both = pair()
        counter = both.cpu_counter()
        second.cpu.missing["peak"] = "it keeps none"
        assert counter.missing == {"peak": "two's: it keeps none"}

    def test_one_without_a_figure_is_left_out_with_a_note(self):
        first, second, both = pair()
        second.cpu.missing = {"allocated": "no compiler"}
        assert both.cpu_counter() is first.cpu
        assert both.notes() == ["two: what it has on the CPU is not in these figures: no compiler"]

    def test_one_that_raises_or_has_none_is_left_out_with_a_note(self):
        first, second, both = pair()
        second.trouble = UsageError("TENSORLENS_COUNTER=native: no compiler")
        assert both.cpu_counter() is first.cpu
        beginning = "two: what it has on the CPU is not in these figures: "
        assert both.notes() == [f"{beginning}TENSORLENS_COUNTER=native: no compiler"]
        second.trouble, second.cpu = None, None
        assert both.cpu_counter() is first.cpu
        assert both.notes() == [f"{beginning}nothing here counts it"]

    def test_the_whole_process_is_never_added_to_what_is_in_it(self):
        first, second, both = pair()
        second.cpu = ResidentCounter()
        second.lines = ["no compiler; CPU figures are from: resident set", "another note"]
        assert both.cpu_counter() is first.cpu
        assert both.notes() == [
            "another note",
            "two: what it has on the CPU is not in these figures: no compiler",
        ]

    def test_a_counter_of_the_process_counts_for_all(self):
        first, second, both = pair()
        first.cpu, second.cpu = HeapCounter(), HeapCounter()
        first.lines = ["no compiler; CPU figures are from: C heap (glibc mallinfo2)"]
        assert both.cpu_counter() is first.cpu
        assert both.notes() == first.lines

    def test_what_is_wrong_with_all_is_raised_once(self):
        first, second, both = pair()
        first.trouble = second.trouble = UsageError("TENSORLENS_COUNTER=x: choose one of")
        with pytest.raises(UsageError, match=r"^TENSORLENS_COUNTER=x: choose one of$"):
            both.cpu_counter()

    def test_what_goes_on_from_what(self):
        first, second, both = pair()
        counter = both.cpu_counter()
        assert goes_on_from(counter, first.cpu) and goes_on_from(counter, second.cpu)
        assert not goes_on_from(first.cpu, counter)
        third = FakeFramework("three", FakeCounter("three's", 0, 0, 0))
        assert goes_on_from(together([first, second, third]).cpu_counter(), counter)
        assert not goes_on_from(counter, FakeCounter("one's", 0, 0, 0))


class TestAccelerators:
    def both(self):
        first = FakeFramework("one", None, a=FakeCounter("A", 10, 15, 64, device="cuda:0"))
        second = FakeFramework(
            "two",
            None,
            a=FakeCounter("B", 3, 4, 32, device="cuda:0"),
            b=FakeCounter("B", 1, 1, 8, device="cuda:1"),
        )
        return first, second, together([first, second])

    def test_those_in_use_in_any_each_once(self):
        first, second, both = self.both()
        assert both.has_accelerators() and both.used_devices() == []
        second.used.append("cuda:1")
        used = both.used_devices()
        assert used == ["cuda:1"] and both.used_devices() is used
        first.used.append("cuda:0")
        second.used.append("cuda:0")
        assert both.used_devices() == ["cuda:0", "cuda:1"]
        assert not pair()[2].has_accelerators()

    def test_pools_on_one_device_are_added_up(self):
        _first, second, both = self.both()
        counter = both.device_counter("cuda:0")
        assert counter.reader()() == (13, 19, 96)
        assert both.device_counter("cuda:0") is counter
        second.devices["cuda:0"].figures = (UNKNOWN,) * 3
        assert counter.reader()() == (UNKNOWN,) * 3
        assert both.device_counter("cuda:1") is second.devices["cuda:1"]

    def test_a_device_that_none_has(self):
        *_, both = self.both()
        assert both.device_name("cuda:1") == "cuda:1"
        for ask in (both.device_name, both.device_counter):
            with pytest.raises(DeviceError, match="xpu:0: one has none; xpu:0: two has none"):
                ask("xpu:0")


class TestMeters:
    def meters(self, *frameworks):
        state = {"found": together(frameworks)}
        host = FakeCounter("the process", 7, 7, 7)
        return state, Meters(find=lambda: state["found"], host=lambda: host)

    def test_figures_from_before_a_second_framework_go_on(self):
        first, second, _ = pair()
        state, meters = self.meters(first)
        assert meters.reader()() == (100, 130, 1000)
        generation = meters.generation
        state["found"] = together([first, second])
        assert meters.refresh() is False
        assert meters.generation == generation + 1
        assert meters.reader()() == (120, 180, 1000)

    def test_figures_from_before_the_first_do_not(self):
        _first, _second, both = pair()
        state, meters = self.meters()
        assert meters.reader()() == (7, 7, 7)
        state["found"] = both
        assert meters.refresh() is True
        assert meters.refresh() is False

    def test_the_slot_of_a_device_that_both_use_stays(self):
        first = FakeFramework("one", FakeCounter("1", 1, 1, 1))
        first.devices = {"cuda:0": FakeCounter("A", 10, 15, 64, device="cuda:0")}
        second = FakeFramework("two", FakeCounter("2", 2, 2, 2))
        second.devices = {
            "cuda:0": FakeCounter("B", 3, 4, 32, device="cuda:0"),
            "cuda:1": FakeCounter("B", 5, 6, 7, device="cuda:1"),
        }
        first.used, second.used = ["cuda:0"], ["cuda:1", "cuda:0"]
        state, meters = self.meters(first)
        assert meters.reader()() == [1, 1, 1, 10, 15, 64]
        state["found"] = together([first, second])
        meters.refresh()
        assert meters.reader()() == [3, 3, 1, 13, 19, 96, 5, 6, 7]
        assert [each.device for each in meters.counters] == ["cpu", "cuda:0", "cuda:1"]

    def test_one_that_came_too_late_is_told(self):
        first, _second, both = pair()
        state, meters = self.meters(first)
        meters.refresh()
        state["found"] = both
        (note,) = meters.notes()
        assert note.startswith("two was imported after the last profiled call began: what it")
        meters.refresh()
        assert meters.notes() == []


class TestTheRest:
    def test_the_first_that_knows_answers(self):
        _first, second, both = pair()
        assert both.compiled_by("two") == "two.compile" and both.compiled_by("f") is None
        second.forward = {"layer": "call"}
        assert both.forward_of("layer") == "call" and both.forward_of("net") is None
        second.request = object()
        assert both.failed_request(MemoryError()) is second.request

    def test_all_are_asked(self):
        first, second, both = pair()
        first.graphs, second.graphs = ["a"], ["b", "c"]
        assert both.graphs_kept() == ["a", "b", "c"]
        assert both.pinned() == UNKNOWN
        second.locked = 5
        assert both.pinned() == 5
        first.locked = 2
        assert both.pinned() == 7
        both.keep_compilers_out([len])
        assert first.kept_out == second.kept_out == [len]
        first.lines, second.lines = ["same", "a"], ["same", "b"]
        assert both.notes() == ["same", "a", "b"]

    def test_watching_ends_in_all_at_once(self):
        first, second, both = pair()
        end = both.watch()
        assert (first.watching, second.watching) == (1, 1)
        end()
        end()
        assert (first.watching, second.watching) == (0, 0)
        second.trouble = OSError("no")
        both.watch()()
        assert first.watching == 0

    def test_steps_are_those_of_the_first_optimizer_to_step(self):
        first, second, both = pair()
        steps = []
        end = both.when_stepped(lambda: steps.append(1))
        (one,), (two,) = first.acts, second.acts
        two()
        one()
        two()
        assert len(steps) == 2
        end()
        assert first.acts == second.acts == []


@pytest.fixture
def registry(monkeypatch):
    """An empty registry, which knows one framework by the name of a module ``numbery``."""
    monkeypatch.setattr(base, "_FRAMEWORKS", {"numbery": "numbery_adapter", "texty": "no_adapter"})
    monkeypatch.setattr(base, "_loaded", {})
    monkeypatch.setattr(base, "_left_out", {})
    monkeypatch.setattr(base, "_whole", (0, 0, None))

    def imported(name, **content):
        module = types.ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    imported("numbery_adapter", Adapter=lambda: FakeFramework("numbery"))
    return imported


class TestRegistry:
    def test_nothing_is_imported_by_itself(self, registry):
        assert base.whole() is None and base.frameworks() == []
        assert base.missing("nothing to do", "first") == (
            "nothing to do: import numbery or texty first"
        )

    def test_it_is_the_same_until_another_one_comes(self, registry):
        registry("numbery")
        alone = base.whole()
        assert alone.name == "numbery" and base.whole() is alone
        registry("no_adapter", Adapter=lambda: FakeFramework("texty"))
        registry("texty")
        both = base.whole()
        assert both.name == "numbery and texty" and both.parts[0] is alone
        assert base.whole() is both

    def test_the_order_of_imports_makes_no_difference(self, registry):
        registry("no_adapter", Adapter=lambda: FakeFramework("texty"))
        registry("texty")
        assert base.whole().name == "texty"
        registry("numbery")
        assert base.whole().name == "numbery and texty"

    def test_one_without_its_adapter_is_left_out_with_one_note(self, registry):
        registry("numbery")
        registry("texty")
        whole = base.whole()
        assert whole.name == "numbery" and base.whole() is whole
        (note,) = whole.notes()
        assert note == "texty is left out: ModuleNotFoundError: No module named 'no_adapter'"

    def test_one_whose_adapter_fails_is_asked_once(self, registry):
        asked = []

        def fail():
            asked.append(1)
            raise AttributeError("module 'texty'\nhas no attribute 'config'")

        registry("no_adapter", Adapter=fail)
        registry("texty")
        assert base.whole() is None and base.whole() is None and len(asked) == 1
        assert base.missing("nothing to watch", "before it") == (
            "nothing to watch: import numbery or texty before it; texty is left out: "
            "AttributeError: module 'texty' has no attribute 'config'"
        )

    def test_one_that_is_half_imported_waits(self, registry):
        module = registry("numbery")
        module.__spec__._initializing = True
        assert base.whole() is None
        module.__spec__._initializing = False
        assert base.whole().name == "numbery"

    def test_what_stands_in_for_a_module_is_not_asked(self, registry, monkeypatch):
        class Mocked:
            def __getattr__(self, name):
                raise AssertionError(name)

        monkeypatch.setitem(sys.modules, "numbery", Mocked())
        assert base.whole() is None
        monkeypatch.setitem(sys.modules, "numbery", None)
        assert base.whole() is None
        registry("numbery").__spec__ = None
        assert base.whole() is None

    def test_one_that_loads_when_it_is_used_is_not_loaded(self, registry, tmp_path, monkeypatch):
        (tmp_path / "numbery.py").write_text("raise SystemExit('loaded')")
        spec = importlib.util.spec_from_file_location("numbery", tmp_path / "numbery.py")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "numbery", module)
        spec.loader.exec_module(module)
        assert base.whole() is None
