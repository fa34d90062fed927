"""Every kind of callable stays what it is, and its lines are seen."""

import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from bench import Bench, FakeMemory

from tensorlens.errors import ProfileError


@pytest.fixture
def bench() -> Any:
    made = Bench("decorated")
    yield made
    made.close()


def test_name_doc_and_signature_are_kept(bench: Bench) -> None:
    def step(a: int, /, b: str = "x", *rest: float, c: bool = True, **others: bytes) -> None:
        """What it does."""

    step.extra = 5  # type: ignore[attr-defined]
    wrapped = bench.profile(step)
    assert wrapped.__name__ == "step"
    assert wrapped.__qualname__ == step.__qualname__
    assert wrapped.__doc__ == "What it does."
    assert wrapped.__module__ == __name__
    assert wrapped.extra == 5
    assert inspect.signature(wrapped) == inspect.signature(step)
    # this one looks at no __wrapped__
    assert inspect.getfullargspec(wrapped) == inspect.getfullargspec(step)
    assert wrapped.__wrapped__ is step


def test_signatures_of_methods_that_are_wrapped_once_more(bench: Bench) -> None:
    class Layer:
        @bench.profile
        def __init__(self, units: int = 32) -> None:
            self.units = units

        @bench.profile
        def build(self, input_shape: tuple[int, ...]) -> None:
            self.shape = input_shape

    layer = Layer(3)
    bound = layer.build

    # as Keras does with what builds a layer
    @functools.wraps(bound)
    def build(*args: Any, **kwargs: Any) -> None:
        bound(*args, **kwargs)

    assert list(inspect.signature(build).parameters) == ["input_shape"]
    assert list(inspect.signature(bound).parameters) == ["input_shape"]
    # and for the arguments that a layer is made with it asks this, which looks at no __wrapped__
    assert inspect.getfullargspec(Layer.__init__).args == ["self", "units"]


def test_methods_of_every_kind(bench: Bench, memory: FakeMemory) -> None:
    class Net:
        @bench.profile
        def plain(self) -> Any:
            memory.allocate(1)  # A
            return self

        @bench.profile
        @classmethod
        def of_class(cls) -> Any:
            memory.allocate(20)  # B
            return cls

        @classmethod
        @bench.profile
        def of_class_inside(cls) -> Any:
            memory.allocate(300)  # C
            return cls

        @bench.profile
        @staticmethod
        def static(value: int) -> int:
            memory.allocate(4000)  # D
            return value

        @bench.profile
        @property
        def computed(self) -> int:
            """Doc of it."""
            memory.allocate(50_000)  # E
            return 5

        @computed.setter
        def computed(self, value: int) -> None:
            self.stored = value

        @bench.profile
        @functools.cached_property
        def cached(self) -> int:
            memory.allocate(600_000)  # F
            return 6

        def base(self, first: int, second: int = 0) -> tuple[int, int]:
            memory.allocate(7_000_000)  # G
            return first, second

        part = bench.profile(functools.partialmethod(base, 1))

    net = Net()
    assert net.plain() is net
    assert Net.of_class() is Net
    assert net.of_class_inside() is Net
    assert Net.static(3) == net.static(3) == 3
    assert net.computed == 5
    net.computed = 9
    assert net.stored == 9
    assert Net.computed.__doc__ == "Doc of it."
    assert net.cached == net.cached == 6
    assert net.part(second=4) == (1, 4)
    assert isinstance(vars(Net)["of_class"], classmethod)
    assert isinstance(vars(Net)["static"], staticmethod)
    assert isinstance(vars(Net)["computed"], property)
    assert isinstance(vars(Net)["cached"], functools.cached_property)
    assert isinstance(vars(Net)["part"], functools.partialmethod)
    nets = [1, 20, 300, 8000, 50_000, 600_000, 7_000_000]
    assert bench.nets("A", "B", "C", "D", "E", "F", "G") == nets
    assert bench.is_idle()


def test_bound_methods_partials_and_callable_objects(bench: Bench, memory: FakeMemory) -> None:
    class Net:
        def step(self, size: int, times: int = 1) -> int:
            memory.allocate(size * times)  # A
            return size

        def __call__(self, size: int) -> int:
            memory.allocate(size)
            return size

    net = Net()
    bound = bench.profile(net.step)
    assert inspect.ismethod(bound)
    assert bound.__self__ is net
    assert bound(10) == 10
    part = bench.profile(functools.partial(net.step, 100, times=2))
    assert isinstance(part, functools.partial)
    assert (part.args, part.keywords) == ((100,), {"times": 2})
    assert part() == 100
    with bench.another_profiler(net) as profiler:
        assert net(3000) == 3000
    assert bench.nets("A") == [210]
    (function,) = profiler.result().functions
    assert [line.memory["cpu"].net for line in function.lines if line.hits] == [3000, 0]


def test_the_innermost_function_of_a_chain_of_wrappers_is_meant(
    bench: Bench, memory: FakeMemory
) -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inside(*args: Any) -> Any:
            memory.spike(500)
            return function(*args)

        return inside

    @bench.profile
    @logged
    @logged
    def step(size: int) -> int:
        memory.allocate(size)  # A
        return size

    assert step(4) == 4
    assert bench.at("A").net == 4
    assert bench.at("A").peak == 4
    assert bench.function("step").calls == 1
    assert bench.is_idle()


def test_decorators_on_top_go_on_working(bench: Bench, memory: FakeMemory) -> None:
    @functools.lru_cache
    @bench.profile
    def step(size: int) -> int:
        memory.allocate(size)  # A
        return size

    assert [step(4), step(4)] == [4, 4]
    assert bench.hits("A") == [1]


def test_wrapping_twice_by_one_profiler_counts_once(bench: Bench, memory: FakeMemory) -> None:
    def step() -> None:
        memory.allocate(1)  # A

    once = bench.profile(step)
    assert bench.profile(once) is once
    once()
    assert bench.hits("A") == [1]


def test_wrapping_by_two_profilers_counts_in_each(bench: Bench, memory: FakeMemory) -> None:
    def step() -> None:
        memory.allocate(8)  # A

    other = bench.another_profiler()
    both = other(bench.profile(step))
    both()
    both()
    assert bench.hits("A") == [2]
    assert bench.at("A").net == 16
    (function,) = other.result().functions
    assert [line.memory["cpu"].net for line in function.lines if line.hits] == [16]
    assert bench.is_idle()


def test_a_property_can_be_added_without_wrapping(bench: Bench, memory: FakeMemory) -> None:
    class Net:
        @property
        def computed(self) -> int:
            memory.allocate(5)  # A
            return 5

    profiler = bench.another_profiler(Net.computed)
    with profiler:
        assert Net().computed == 5
    (function,) = profiler.result().functions
    assert [line.hits for line in function.lines if line.source.endswith("# A")] == [1]


def module_level(size: int) -> int:
    return size


def test_a_wrapped_function_can_be_pickled_by_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = bench.profile(module_level)
    monkeypatch.setitem(globals(), "module_level", wrapped)
    assert pickle.loads(pickle.dumps(wrapped)) is wrapped


class Plain:
    pass


@pytest.mark.parametrize("item", [len, 5, Plain, None, "name", dict.get, functools.partial(len)])
def test_object_without_lines_is_one_line(bench: Bench, item: Any) -> None:
    for refused in (bench.profiler.add_function, bench.profiler):
        with pytest.raises(ProfileError, match=r"^cannot profile [^\n]+$"):
            refused(item)
    assert bench.functions() == []


def test_memlabs_ways_to_show_one_function(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    @bench.profile
    def first() -> None:
        pass

    @bench.profile
    def second() -> None:
        pass

    first()
    second()
    assert [each.name for each in bench.profiler.display().functions] == ["first", "second"]
    (shown,) = bench.profiler.display(second).functions
    assert shown.name == "second"
    bench.profiler.print_stats(second)
    printed = capsys.readouterr().out
    assert "second()" in printed and "first()" not in printed
