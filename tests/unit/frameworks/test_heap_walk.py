"""What modules and optimizers hold, walked natively and in Python: the same, to the last node."""

import dataclasses
import gc
import random
import sys
import weakref
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tensorlens.frameworks.heap import walk
from tensorlens.frameworks.heap.fallback import dict_of
from tensorlens.frameworks.heap.native import native
from tensorlens.records.names import INDEX, Names

ran: list[str] = []


def _trap(name: str) -> Any:
    def trap(self: Any, *arguments: Any) -> Any:
        ran.append(name)
        raise RuntimeError(name)

    return trap


class Tensor:
    pass


class Parameter(Tensor):
    __eq__ = __hash__ = __getattr__ = _trap("tensor")  # type: ignore[assignment]


class Plain(Tensor):
    """A tensor that can be the key of a dict."""


class Module:
    def __init__(self) -> None:
        self._parameters: dict[Any, Any] = {}
        self._buffers: dict[Any, Any] = {}
        self._modules: dict[Any, Any] = {}
        # as a torch module's, the dict is made
        vars(self)


class HostileModule(Module):
    __getattr__ = __eq__ = __hash__ = __len__ = __iter__ = _trap("module")  # type: ignore
    __dict__ = property(_trap("__dict__"))  # type: ignore[assignment]
    __class__ = property(_trap("__class__"))  # type: ignore[assignment]


class HostileDict(OrderedDict):  # type: ignore[type-arg]
    items = keys = values = __iter__ = __len__ = __getitem__ = _trap("dict")  # type: ignore


class HostileText(str):
    __str__ = __repr__ = __len__ = _trap("text")  # type: ignore[assignment]
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        ran.append("text")
        return False


class Slotted(Module):
    """A module without a dict, as one that is made in C may be."""

    __slots__ = ()

    def __new__(cls) -> Any:
        return object.__new__(_Bare)


class _Bare:
    __slots__ = ()


def read(module: Any) -> walk.Registries | None:
    content = dict_of(module)
    if not isinstance(content, dict):
        return None
    found = {key: item for key, item in content.items() if type(key) is str}

    def entries(name: str) -> Any:
        registry = found.get(name)
        return list(dict.items(registry)) if isinstance(registry, dict) else []

    return entries("_parameters"), entries("_buffers"), entries("_modules")


KINDS = walk.Kinds(Module, Tensor, read)


@pytest.fixture(params=["native", "python"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "native" and native() is None:
        pytest.skip("no compiler")
    if request.param == "python":
        monkeypatch.setattr(walk, "native", lambda: None)
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []


def model() -> Module:
    root, layer, norm = Module(), Module(), Module()
    shared = Tensor()
    root._modules.update(layer=layer, gap=None, norm=norm, again=layer)
    root._parameters.update(scale=Parameter(), none=None, shared=shared)
    layer._parameters.update(weight=Parameter(), bias=shared)
    norm._buffers.update(mean=Tensor(), count=3)
    return root


def names_of(roots: list[Any], texts: list[str]) -> list[tuple[str, bool]]:
    """Return the name of each tensor that is met, and whether it is a buffer, in order."""
    names = Names()
    prefixes = array("i", map(names.text, texts))
    parts = list(walk.walk_registries(roots, prefixes, names, KINDS))
    assert sum(part.done for part in parts) == len(roots)
    return [
        (names[node], bool(buffer))
        for part in parts
        for node, buffer in zip(part.nodes, part.buffers, strict=True)
    ]


MODEL = [
    ("scale", False),
    ("shared", False),
    ("layer.weight", False),
    ("layer.bias", False),
    ("norm.mean", True),
    ("again.weight", False),
    ("again.bias", False),
]


@pytest.mark.usefixtures("engine")
class TestRegistries:
    def test_in_the_order_of_named_parameters(self) -> None:
        assert names_of([model()], [""]) == MODEL

    def test_several_roots(self) -> None:
        found = names_of([model(), Module(), model()], ["", "Empty", "Model"])
        assert found == MODEL + [(f"Model.{name}", buffer) for name, buffer in MODEL]

    def test_no_roots(self) -> None:
        assert names_of([], []) == []

    def test_one_inside_itself(self) -> None:
        root = model()
        root._modules["layer"]._modules["up"] = root
        assert names_of([root], [""]) == MODEL

    def test_modules_have_their_first_path(self) -> None:
        root, names = model(), Names()
        prefix = names.text("")
        (part,) = walk.walk_registries([root], array("i", [prefix]), names, KINDS)
        layer, norm = root._modules["layer"], root._modules["norm"]
        assert [*part.modules] == [id(root), id(layer), id(norm)]
        assert [names[path] for path in part.paths] == ["", "layer", "norm"]

    def test_at_most_so_many_places(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(walk, "MOST_PLACES", 2)
        assert names_of([model()], [""]) == MODEL[:4]

    def test_paths_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(walk, "MOST_PLACES", 1000)
        inside = [Module() for _ in range(12)]
        for module in inside:
            module._modules.update((str(index), other) for index, other in enumerate(inside))
        inside[5]._parameters["weight"] = Tensor()
        assert names_of([inside[5]], [""])[0] == ("weight", False)

    def test_keys_that_are_no_texts(self) -> None:
        root = model()
        root._parameters[3] = root._parameters[HostileText("odd")] = Tensor()
        root._modules[None] = root._modules[HostileText("odd")] = Module()
        assert names_of([root], [""]) == MODEL

    def test_registries_of_other_kinds(self) -> None:
        root = model()
        root._parameters, root._modules = HostileDict(root._parameters), HostileDict()
        root._buffers = None  # type: ignore[assignment]
        assert names_of([root], [""]) == MODEL[:2]

    def test_no_registries(self) -> None:
        root = model()
        del root._modules, root._buffers
        assert names_of([root], [""]) == MODEL[:2]
        assert names_of([object.__new__(Module)], [""]) == []

    def test_keys_of_an_unpickled_module(self) -> None:
        root = model()
        content = {"".join(list(key)): item for key, item in vars(root).items()}
        root.__dict__ = content
        assert all(key is not sys.intern(key) for key in content)
        assert names_of([root], [""]) == MODEL

    def test_keys_that_run_code(self) -> None:
        root = model()
        vars(root)[HostileText("_modules")] = 1
        ran.clear()
        assert names_of([root], [""]) == MODEL

    def test_hostile_modules(self) -> None:
        root, hostile = model(), object.__new__(HostileModule)
        content = dict_of(hostile)
        content.update(_parameters={"weight": Parameter()}, _buffers=3, _modules=7)
        root._modules["odd"] = hostile
        assert names_of([root], [""]) == [*MODEL, ("odd.weight", False)]

    def test_what_is_no_module(self) -> None:
        roots = [model(), model(), model()]
        for child in (3, Slotted(), Module, sys, object()):
            roots[1]._modules["odd"] = child
            expected = [(f"{at}.{name}", flag) for at in "abc" for name, flag in MODEL]
            assert names_of(roots, ["a", "b", "c"]) == expected

    def test_roots(self) -> None:
        root, other = model(), Module()
        other._modules["other"] = other
        modules = [root, *filter(None, root._modules.values()), other]
        assert walk.roots_among(modules, KINDS) == [root, other]
        assert walk.roots_among([], KINDS) == []

    def test_roots_of_what_must_be_read_in_python(self) -> None:
        root, layer = model(), model()
        root._modules["odd"] = layer
        root._parameters = 3  # type: ignore[assignment]
        assert walk.roots_among([layer, root], KINDS) == [root]

    def test_nothing_is_kept(self) -> None:
        root = model()
        seen = [weakref.ref(item) for item in (root, root._modules["layer"])]
        counts = [sys.getrefcount(item) for item in vars(root).values()]
        names_of([root], [""])
        assert counts == [sys.getrefcount(item) for item in vars(root).values()]
        del root
        gc.collect()
        assert [ref() for ref in seen] == [None, None]


@pytest.mark.skipif(native() is None, reason="no compiler")
def test_unpickled_modules_are_read_natively() -> None:
    root = model()
    root.__dict__ = {"".join(list(key)): item for key, item in vars(root).items()}
    names, reader = Names(), native()
    assert reader is not None
    prefixes = array("i", [names.text("")])
    assert walk._registries_natively(reader, [root], prefixes, 0, names, KINDS).done == 1


def random_model(source: random.Random) -> Module:
    modules = [Module() for _ in range(source.randint(1, 12))]
    tensors = [Tensor() for _ in range(8)]
    keys = ["weight", "bias", "0", "1", "", 3, None, HostileText("odd"), "".join(["we", "ight"])]
    for module in modules:
        if source.random() < 0.2:
            module._parameters = OrderedDict()
        for registry in (module._parameters, module._buffers):
            for _ in range(source.randint(0, 3)):
                registry[source.choice(keys)] = source.choice([*tensors, None, 4])
        for _ in range(source.randint(0, 2)):
            module._modules[source.choice(keys)] = source.choice([*modules, None])
    return modules[0]


@pytest.mark.skipif(native() is None, reason="no compiler")
class TestAlike:
    @pytest.mark.parametrize("seed", range(60))
    def test_registries(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(walk, "MOST_PLACES", 300)
        root, names = random_model(random.Random(seed)), Names()
        prefix, reader = names.text("root"), native()
        assert reader is not None
        one = walk._registries_natively(reader, [root], array("i", [prefix]), 0, names, KINDS)
        other = walk.registries_in_python(root, prefix, names, KINDS)
        self._compare(one, other)

    @pytest.mark.parametrize("seed", range(60))
    def test_state(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        source, columns = random.Random(seed), []
        for reader in (native(), None):
            monkeypatch.setattr(walk, "native", lambda reader=reader: reader)
            source.seed(seed)
            parameters = [Plain() for _ in range(6)]
            names, given = some_names(parameters)
            values: list[Any] = [Tensor(), 3, 0.5, None, "text", True]
            state = {
                parameter: {key: source.choice(values) for key in ("step", "slot", "other")}
                for parameter in parameters[: source.randint(0, 6)]
            }
            groups = [{"params": parameters[:5]}]
            found = walk.walk_state(groups, state, names.text("Adam"), names, given, Tensor)
            assert found is not None
            columns.append((found.nodes, found.parents, found.kinds, found.values, names.texts))
        assert columns[0] == columns[1]

    @pytest.mark.parametrize("seed", range(20))
    def test_assign(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        source = random.Random(seed)
        rows = array("i", (source.randint(-1, 9) for _ in range(source.randint(0, 30))))
        results = []
        for reader in (native(), None):
            monkeypatch.setattr(walk, "native", lambda reader=reader: reader)
            nodes, roles = array("i", range(len(rows))), array("b", [2] * len(rows))
            columns = array("i", [-1] * 9 + [5]), array("b", [6] * 10)
            results.append(([*walk.assign(rows, nodes, roles, columns)], columns))
        assert results[0] == results[1]

    @staticmethod
    def _compare(one: walk.Walk, other: walk.Walk) -> None:
        for column in dataclasses.fields(walk.Walk):
            found, expected = getattr(one, column.name), getattr(other, column.name)
            if column.name in ("tensors", "keys"):
                found, expected = [*map(id, found)], [*map(id, expected)]
            assert found == expected, column.name


def some_names(parameters: list[Any]) -> tuple[Names, walk.Given]:
    """Name all parameters but the last: ``layer.0``, ``rest[1]``, ..."""
    names, given = Names(), walk.Given()
    empty, rest = names.text(""), names.text("rest")
    layer = names.attribute(empty, "layer")
    for index, parameter in enumerate(parameters[:-1]):
        given.addresses.append(id(parameter))
        is_attribute = index % 2 == 0
        node = names.attribute(layer, str(index)) if is_attribute else names.index(rest, index)
        given.nodes.append(node)
    return names, given


def state_names(groups: Any, state: Any, parameters: list[Any]) -> list[str] | None:
    names, given = some_names(parameters)
    before = len(names)
    found = walk.walk_state(groups, state, names.text("Adam"), names, given, Tensor)
    if found is None:
        assert len(names) == before + 1
        return None
    return [names[node] for node in found.nodes]


@pytest.mark.usefixtures("engine")
class TestState:
    def test_names_go_on_from_the_parameters(self) -> None:
        one, two, three, unknown = parameters = [Plain() for _ in range(4)]
        state: Any = defaultdict(dict)
        state[one] = {"step": Tensor(), "count": 3, "square": Tensor()}
        state[two] = {"momentum": Tensor(), "none": None}
        state[three] = OrderedDict(square=Tensor())
        state[unknown] = {"square": Tensor()}
        groups = [{"lr": 0.1, "params": [one, two]}, {"params": [three]}]
        assert state_names(groups, state, parameters) == [
            "Adam.layer.0.step",
            "Adam.layer.0.square",
            "Adam.rest[1].momentum",
            "Adam.layer.2.square",
            "Adam.square",
        ]

    def test_an_index_stays_one(self) -> None:
        parameters = [Plain() for _ in range(3)]
        names, given = some_names(parameters)
        state = {parameters[1]: {"slot": Tensor()}}
        found = walk.walk_state([], state, names.text("Adam"), names, given, Tensor)
        assert found is not None
        parent = names.parents[found.nodes[0]]
        assert (names.kinds[parent], names.values[parent]) == (INDEX, 1)

    def test_a_name_that_begins_with_a_text(self) -> None:
        parameter, names = Plain(), Names()
        given = walk.Given(array("Q", [id(parameter)]), array("i", [names.text("tensor")]))
        state = {parameter: {"slot": Tensor()}}
        found = walk.walk_state([], state, names.text("Adam"), names, given, Tensor)
        assert found is not None
        assert names[found.nodes[0]] == "Adam.tensor.slot"

    def test_the_first_name_counts(self) -> None:
        parameter, names = Plain(), Names()
        nodes = array("i", [names.text("one"), names.text("two")])
        given = walk.Given(array("Q", [id(parameter)] * 2), nodes)
        state = {parameter: {"slot": Tensor()}}
        found = walk.walk_state([], state, names.text("Adam"), names, given, Tensor)
        assert found is not None
        assert names[found.nodes[0]] == "Adam.one.slot"

    @pytest.mark.parametrize(
        "slots",
        [
            {"nested": {}},
            {"list": []},
            {3: Tensor()},
            {"no name": Tensor()},
            {HostileText("odd"): Tensor()},
            [],
            None,
        ],
    )
    def test_unusual_state(self, slots: Any) -> None:
        parameters = [Plain(), Plain()]
        assert state_names([], {parameters[0]: slots}, parameters) is None

    def test_unusual_keys(self) -> None:
        assert state_names([], {"key": {}}, [Plain()]) is None
        assert state_names([], None, [Plain()]) is None

    def test_unusual_groups(self) -> None:
        known, unknown = parameters = [Plain(), Plain()]
        for groups in (None, [None], [{}], [{"params": (known,)}], [{"params": [unknown]}]):
            assert state_names(groups, {}, parameters) is None
        groups = [{HostileText("params"): 1, "params": [known]}]
        ran.clear()
        assert state_names(groups, {}, parameters) == []
