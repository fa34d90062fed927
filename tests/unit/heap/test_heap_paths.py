"""Every way that keeps an object, from each kind of root."""

import collections
import concurrent.futures
import functools
import gc
import queue
import sys
import threading
import types
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar

import pytest

from tensorlens.heap import frames, reference_paths
from tensorlens.records import Reference, ReferencePath

pytestmark = pytest.mark.skipif(bool(frames.why_no_locals()), reason="frames cannot be read here")

HERE = __name__


class Thing:
    pass


class Slotted:
    __slots__ = ("second",)


class Trainer:
    shared: ClassVar[list[Any]] = []
    error: Any = None

    def __init__(self) -> None:
        self.history: list[Any] = []


kept: list[Any] = []


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    yield
    kept.clear()
    Trainer.shared.clear()
    Trainer.error = None


def found(ref: Any, **how: Any) -> list[ReferencePath]:
    return reference_paths([ref()], **how)[0]


def told(ref: Any, **how: Any) -> list[str]:
    return [str(path) for path in found(ref, **how)]


def put(into: Callable[[Any], Any]) -> Any:
    """Hand a new thing over, and return a weak reference to it."""
    thing = Thing()
    into(thing)
    return weakref.ref(thing)


def last(ref: Any) -> Reference:
    (path,) = found(ref)
    return path.references[-1]


def test_path_of_a_global() -> None:
    ref = put(kept.append)
    assert told(ref) == [f"{HERE}.kept (global) -> list[0]"]
    assert last(ref) == Reference("item", "list[0]", "Thing", 1, None)


def test_a_global_of_main(monkeypatch: pytest.MonkeyPatch) -> None:
    main = vars(sys.modules["__main__"])
    ref = put(lambda thing: monkeypatch.setitem(main, "history", [None, thing]))
    mine = [text for text in told(ref) if "(global)" in text]
    assert mine == ["history (global) -> list[1]"]


def test_an_interactive_result(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    ref = put(lambda thing: setattr(builtins, "_", [thing]))
    try:
        assert told(ref) == ["builtins._ (global) -> list[0]"]
    finally:
        del builtins._  # type: ignore[attr-defined]


def test_globals_of_executed_code() -> None:
    namespace: dict[str, Any] = {"__name__": "executed"}
    exec("history = []\ndef read():\n    return history", namespace)
    ref = put(namespace["history"].append)
    read = namespace["read"]
    del namespace
    assert told(ref) == ["executed.history (global) -> list[0]"]
    del read


def test_path_of_attributes() -> None:
    trainer = Trainer()
    ref = put(trainer.history.append)
    assert told(ref) == [
        "test_path_of_attributes(): trainer (local) -> Trainer.history (attribute) -> list[0]"
    ]


def test_an_attribute_in_a_dict() -> None:
    trainer = Trainer()
    ref = put(trainer.history.append)
    variables = vars(trainer)
    assert len(variables) == 1
    del variables
    text = (
        "test_an_attribute_in_a_dict(): trainer (local) -> Trainer.history (attribute) -> list[0]"
    )
    assert told(ref) == [text]


def test_path_of_a_slot() -> None:
    root = Slotted()
    ref = put(lambda thing: setattr(root, "second", thing))
    # the lambda and the function share the variable
    assert told(ref) == ["test_path_of_a_slot(): root (local) -> Slotted.second (attribute)"]


def test_a_class_attribute() -> None:
    ref = put(Trainer.shared.append)
    assert told(ref) == [f"{HERE}.Trainer.shared (class attribute) -> list[0]"]


def test_path_of_a_closure() -> None:
    def make_step() -> Callable[[], None]:
        losses: list[Any] = []

        def step() -> None:
            losses.append(Thing())

        return step

    step = make_step()
    step()
    ref = weakref.ref(step.__closure__[0].cell_contents[0])  # type: ignore[index]
    assert told(ref) == ["test_path_of_a_closure.make_step(): losses (closure) -> list[0]"]


def test_a_closure_in_a_list_says_which() -> None:
    def hooked(thing: Any) -> None:
        kept.append(lambda: thing)

    ref = put(hooked)
    text = (
        "kept (global) -> list[0] -> test_a_closure_in_a_list_says_which.hooked(): thing (closure)"
    )
    assert told(ref) == [f"{HERE}.{text}"]


def test_path_of_default_arguments() -> None:
    def step(first: int, history: list[Any] = [], *, other: dict[str, Any] = {}) -> None:  # noqa: B006
        pass

    name = "test_path_of_default_arguments.step"
    ref = put(step.__defaults__[0].append)  # type: ignore[index]
    assert told(ref) == [f"{name}(history=...) (default) -> list[0]"]
    ref = put(lambda thing: step.__kwdefaults__["other"].update(k=thing))
    assert told(ref) == [f"{name}(other=...) (default) -> dict['k']"]
    ref = put(lambda thing: setattr(step, "history", thing))
    assert told(ref) == [f"{name}.history (function attribute)"]


def test_path_of_more_defaults_than_arguments() -> None:
    def step() -> None:
        pass

    ref = put(lambda thing: setattr(step, "__defaults__", (thing,)))
    name = "test_path_of_more_defaults_than_arguments.step"
    assert told(ref) == [f"{name}(?=...) (default)"]


def test_two_names_of_one_function_are_one_way() -> None:
    def step(history: list[Any] = []) -> None:  # noqa: B006
        pass

    again = step
    ref = put(again.__defaults__[0].append)  # type: ignore[index]
    name = "test_two_names_of_one_function_are_one_way"
    assert told(ref) == [f"{name}.step(history=...) (default) -> list[0]"]


def test_a_method_s_default() -> None:
    class Model:
        @staticmethod
        def step(history: list[Any] = []) -> None:  # noqa: B006
            pass

    ref = put(Model.step.__defaults__[0].append)  # type: ignore[index]
    name = "test_a_method_s_default.Model.step"
    assert told(ref) == [f"{name}(history=...) (default) -> list[0]"]


def test_a_local_of_another_thread() -> None:
    ready, done = threading.Event(), threading.Event()
    refs: list[Any] = []

    def work() -> None:
        batches = [Thing()]
        pair = (1, (2, Thing()))
        refs.extend((weakref.ref(batches[0]), weakref.ref(pair[1][1])))
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    name = "test_a_local_of_another_thread.work()"
    try:
        assert told(refs[0]) == [f"{name}: batches (local) -> list[0]"]
        assert told(refs[1]) == [f"{name}: pair (local) -> tuple[1] -> tuple[1]"]
    finally:
        done.set()
        thread.join()


def test_a_shared_variable_counts_once() -> None:
    history: list[Any] = []

    def step() -> None:
        history.append(Thing())

    step()
    ref = weakref.ref(history[0])
    assert told(ref) == ["test_a_shared_variable_counts_once(): history (local) -> list[0]"]


def test_a_suspended_generator() -> None:
    def batches() -> Iterator[Any]:
        batch = Thing()
        yield weakref.ref(batch)
        del batch

    one = batches()
    ref = next(one)
    name = "test_a_suspended_generator"
    assert told(ref) == [f"{name}(): one (local) -> {name}.batches(): batch (generator)"]


def test_a_running_generator_is_a_function() -> None:
    def batches() -> Iterator[Any]:
        batch = Thing()
        yield told(weakref.ref(batch))

    (texts,) = batches()
    assert texts == ["test_a_running_generator_is_a_function.batches(): batch (local)"]


def test_a_suspended_coroutine() -> None:
    @types.coroutine
    def pause() -> Iterator[None]:
        yield

    async def fetch() -> None:
        batch = Thing()
        refs.append(weakref.ref(batch))
        await pause()

    refs: list[Any] = []
    one = fetch()
    one.send(None)
    name = "test_a_suspended_coroutine"
    assert told(refs[0]) == [f"{name}(): one (local) -> {name}.fetch(): batch (coroutine)"]
    one.close()


def test_a_suspended_async_generator() -> None:
    async def batches() -> AsyncIterator[Any]:
        batch = Thing()
        yield weakref.ref(batch)
        del batch

    one = batches()
    try:
        one.__anext__().send(None)  # type: ignore[attr-defined]
    except StopIteration as stop:
        ref = stop.value
    name = "test_a_suspended_async_generator"
    assert told(ref) == [f"{name}(): one (local) -> {name}.batches(): batch (async generator)"]


def forward(refs: list[Any]) -> None:
    x = Thing()
    refs.append(weakref.ref(x))
    raise ValueError


def test_path_of_an_exception() -> None:
    refs: list[Any] = []
    try:
        forward(refs)
    except ValueError as error:
        Trainer.error = error
    text = f"exception kept in {HERE}.Trainer.error -> traceback -> forward(): x"
    assert told(refs[0]) == [text]
    kinds = [reference.kind for reference in found(refs[0])[0].references]
    assert kinds == ["exception", "traceback", "frame"]


def test_the_cause_of_an_exception() -> None:
    refs: list[Any] = []
    try:
        try:
            forward(refs)
        except ValueError as error:
            raise KeyError from error
    except KeyError as error:
        kept.append(error)
        kept[0].__traceback__ = None
        kept[0].__context__ = None
    (text,) = told(refs[0])
    text = text.removeprefix(f"{HERE}.kept (global) -> ")
    assert text == "exception kept in list[0] -> __cause__ -> traceback -> forward(): x"


def test_an_argument_of_an_exception() -> None:
    ref = put(lambda thing: kept.append(ValueError("no", thing)))
    text = "exception kept in list[0] -> ValueError.args (attribute) -> tuple[1]"
    assert told(ref) == [f"{HERE}.kept (global) -> {text}"]


def test_a_bounded_cache() -> None:
    @functools.lru_cache(maxsize=3)
    def embed(key: int) -> Any:
        return Thing()

    ref = weakref.ref(embed(1))
    embed(2)
    text = "test_a_bounded_cache.embed (lru_cache, maxsize=3)"
    assert told(ref) == [text]
    assert last(ref) == Reference("cache", text, "Thing", 2, 3)


def test_an_unbounded_cache() -> None:
    @functools.cache
    def embed(key: int) -> Any:
        return Thing()

    ref = weakref.ref(embed(1))
    text = "test_an_unbounded_cache.embed (lru_cache, maxsize=None)"
    assert told(ref) == [text]
    assert last(ref) == Reference("cache", text, "Thing", 1, None)


def test_a_cached_property() -> None:
    class Model:
        @functools.cached_property
        def table(self) -> Any:
            return Thing()

    model = Model()
    ref = weakref.ref(model.table)
    assert told(ref) == ["test_a_cached_property(): model (local) -> Model.table (attribute)"]


def test_path_of_queues() -> None:
    bounded: queue.Queue[Any] = queue.Queue(maxsize=4)
    bounded.put(None)
    ref = put(bounded.put)
    assert told(ref) == ["test_path_of_queues(): bounded (local) -> Queue[1]"]
    assert last(ref) == Reference("queue", "Queue[1]", "Thing", 2, 4)
    simple: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ref = put(simple.put)
    assert told(ref) == ["test_path_of_queues(): simple (local) -> SimpleQueue"]
    assert last(ref).length == 1


def test_path_of_futures() -> None:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    ref = put(future.set_result)
    assert told(ref) == ["test_path_of_futures(): future (local) -> Future._result (future)"]


def test_partials_and_bound_methods() -> None:
    called = functools.partial(print, Thing(), end=Thing())
    name = "test_partials_and_bound_methods()"
    ref = weakref.ref(called.args[0])
    assert told(ref) == [f"{name}: called (local) -> partial.args (attribute) -> tuple[0]"]
    ref = weakref.ref(called.keywords["end"])
    assert told(ref) == [f"{name}: called (local) -> partial.keywords (attribute) -> dict['end']"]
    trainer = Trainer()
    ref, method = weakref.ref(trainer), trainer.__init__  # type: ignore[misc]
    del trainer
    assert told(ref) == [f"{name}: method (local) -> Trainer.__init__ (bound method)"]
    del method


def test_path_of_containers() -> None:
    name = "test_path_of_containers(): root (local)"
    root: Any = collections.deque([1], maxlen=3)
    ref = put(root.append)
    assert told(ref) == [f"{name} -> deque[1]"]
    assert last(ref) == Reference("item", "deque[1]", "Thing", 2, 3)
    root = {}
    ref = put(lambda thing: root.update({("b", 1): thing}))
    assert told(ref) == [f"{name} -> dict[('b', 1)]"]
    root = {}
    ref = put(lambda thing: root.update({thing: 1}))
    assert told(ref) == [f"{name} -> dict{{key}}"]
    root = set()
    ref = put(root.add)
    assert told(ref) == [f"{name} -> set{{…}}"]
    root = collections.OrderedDict()
    ref = put(lambda thing: root.update(a=thing))
    assert told(ref) == [f"{name} -> OrderedDict['a']"]
    root = collections.defaultdict(list)
    ref = put(root["a"].append)
    assert told(ref) == [f"{name} -> defaultdict['a'] -> list[0]"]
    root = types.SimpleNamespace()
    ref = put(lambda thing: setattr(root, "a", thing))
    assert told(ref) == [f"{name} -> SimpleNamespace.a (attribute)"]
    root = (1, [])
    ref = put(root[1].append)
    assert told(ref) == [f"{name} -> tuple[1] -> list[0]"]


def test_iterators_and_views() -> None:
    things = [Thing()]
    ref = weakref.ref(things[0])
    root: Any = enumerate(things)
    del things
    name = "test_iterators_and_views(): root (local)"
    assert told(ref) == [f"{name} -> enumerate -> list_iterator -> list[0]"]
    root = {"a": Thing()}
    ref = weakref.ref(root["a"])
    root = root.values()
    assert told(ref) == [f"{name} -> dict_values -> dict['a']"]


def test_hooks_of_modules() -> None:
    class Linear:
        def __init__(self) -> None:
            self._forward_hooks: Any = collections.OrderedDict()

    class Net:
        def __init__(self) -> None:
            self._modules = {"fc1": Linear()}

    def register(thing: Any) -> None:
        def hook() -> Any:
            return thing

        net._modules["fc1"]._forward_hooks[7] = hook

    net = Net()
    ref = put(register)
    name = "test_hooks_of_modules"
    way = "Net.fc1 (attribute) -> fc1 forward hook"
    end = f"{name}.register(): thing (closure)"
    assert told(ref) == [f"{name}(): net (local) -> {way} -> {end}"]


def test_gc_is_as_it_was() -> None:
    ref = put(kept.append)
    told(ref)
    assert gc.isenabled()
    gc.disable()
    try:
        told(ref)
        assert not gc.isenabled()
    finally:
        gc.enable()
