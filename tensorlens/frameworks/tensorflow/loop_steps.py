"""A loop's memory after each step: the blocks left, who holds them, functions traced anew."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import tensor
from tensorflow.python.util import tf_decorator

from tensorlens.frameworks.advice import TENSORFLOW
from tensorlens.frameworks.base import StepFigures
from tensorlens.frameworks.host.loop_steps import HostSteps
from tensorlens.frameworks.survivors import GraphRoot, Holder, Holdings, Retained, Survivor
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.census.named_rows import NamedRows
from tensorlens.frameworks.tensorflow.census.rows import CensusRows, Heap, look
from tensorlens.frameworks.tensorflow.counters import device_counter, used_devices
from tensorlens.frameworks.tensorflow.cpu import watch
from tensorlens.heap import live_objects, select
from tensorlens.heap.paths import reference_paths
from tensorlens.heap.untracked_arrays import arrays_in, shown
from tensorlens.interpreter import paused_collector
from tensorlens.records.references import Reference
from tensorlens.roles import ROLES
from tensorlens.user_code import is_foreign


class TensorflowSteps(HostSteps):
    """Follows a loop from its making until it is closed; costs next to nothing while a step runs.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """

    def __init__(self) -> None:
        self._unwatch = watch()
        super().__init__(cpu.cpu_counter(), cpu.allocator(), cpu.fallback_reason())
        self._traces = Traces()

    def figures(self) -> StepFigures:
        """Return what is allocated now."""
        return self._figures({device: device_counter(device) for device in used_devices()})

    def notes(self) -> list[str]:
        """Return lines for the report on what could not be followed."""
        notes = super().notes() + self._traces.notes(self._stride * (len(self._begun) - 1))
        used = ", ".join(used_devices())
        if used:
            notes.append(
                f"{used}: only the sums are followed: TensorFlow does not tell of single blocks"
            )
        return notes

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Look once for what keeps the blocks at these addresses alive."""
        return TensorflowHoldings(addresses)

    def close(self) -> None:
        """Follow no longer."""
        self._unwatch()


_FEWEST = 3
"""Steps below which nothing is said."""
_TENSOR = " tensor ("
_LONGEST = 40
"""Letters of an argument that are shown."""


class Traces:
    """How often each ``tf.function`` was traced, from the making of this on."""

    def __init__(self) -> None:
        self._before = {
            id(function): (weakref.ref(function), count) for function, count in _counts()
        }

    def notes(self, steps: int) -> list[str]:
        """Return a line for each function that was traced about once a step.

        Args:
            steps: how many there were; what is traced now and then is no growth.
        """
        if steps < _FEWEST:
            return []
        notes: list[str] = []
        made: dict[str, int] = {}
        for function, count in _counts():
            known, before = self._before.get(id(function), (None, 0))
            is_new = known is None or known() is not function
            if is_new and not _is_librarys(function):
                made[_name(function)] = made.get(_name(function), 0) + 1
            traced = count if is_new else count - before
            if traced >= steps - 1:
                notes.append(_traced_again(function, traced, steps))
        notes += [
            f"{name} is made anew: {count} of it are there after {steps} steps, each with its "
            "graph: make the tf.function once, outside of the loop"
            for name, count in made.items()
            if count >= steps - 1 and count > 1
        ]
        return notes


def _traced_again(function: Any, traced: int, steps: int) -> str:
    text = f"{_name(function)} was traced {traced} times in {steps} steps"
    try:
        changed = _changed(function)
    except Exception:
        # what TensorFlow does not promise to show
        changed = None
    if changed is None:
        return (
            f"{text}, and each trace keeps its graph and what it captured: give it tensors in "
            "place of Python values, or an input_signature, or reduce_retracing=True"
        )
    name, before, after = changed
    is_shape = _TENSOR in before and _TENSOR in after
    remedy = (
        "give an input_signature with None for that dimension, or reduce_retracing=True"
        if is_shape
        else f"give {name} as a tensor, or leave it out of the arguments"
    )
    return (
        f"{text}, for {name} was {_short(before)} and then {_short(after)}, and each trace keeps "
        f"its graph and what it captured: {remedy}"
    )


def _changed(function: Any) -> tuple[str, str, str] | None:
    """Return the argument that told the last two traces apart, and what it was in each."""
    traces = [each.function_type for each in function._list_all_concrete_functions()]
    if len(traces) < 2:
        return None
    before, after = (dict(_arguments(each.parameters)) for each in traces[-2:])
    apart = [name for name, text in after.items() if before.get(name, text) != text]
    return (apart[0], before[apart[0]], after[apart[0]]) if len(apart) == 1 else None


def _arguments(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, parameter in parameters.items():
        kind = parameter.type_constraint
        if issubclass(type(kind), tensor.TensorSpec):
            yield name, f"a {kind.dtype.name} tensor {kind.shape}"
        else:
            yield name, repr(kind.value) if type(kind).__name__ == "Literal" else str(kind)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _counts() -> list[tuple[Any, int]]:
    (functions, *_) = select(live_objects(), (polymorphic_function.Function,))
    return [(function, function.experimental_get_tracing_count()) for function in functions]


def _is_librarys(function: Any) -> bool:
    """Tell whether a library's code makes it: a model's own step, of which each model has one."""
    code = _code(function)
    return code is None or is_foreign(code.co_filename)


def _code(function: Any) -> Any:
    inner: Any = getattr(function, "python_function", None)
    return getattr(inspect.unwrap(tf_decorator.unwrap(inner)[1]), "__code__", None)


def _name(function: Any) -> str:
    code = _code(function)
    if code is None:
        return str(getattr(function, "_name", "a tf.function"))
    filename = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{code.co_qualname} ({filename}:{code.co_firstlineno})"


_UNKNOWN = "unknown"


class TensorflowHoldings:
    """Result of one look; only :attr:`survivors` refers to the program's objects.

    A tensor's memory is kept by the tensors and variables in Python that show it, by arrays that
    share it, and by tapes, graphs and kernels that Python does not see into.
    """

    def __init__(self, addresses: Sequence[int]) -> None:
        """Look for what keeps the blocks at ``addresses`` alive."""
        with paused_collector():
            look = _HeapView(addresses)
            self.survivors = [*map(look.survivor, addresses)]
            """One for each address, in order."""
            held = {id(each.item): each.item for one in self.survivors for each in one.holders}
            self._hung = {key: look.hung(item) for key, item in held.items()}
            self._handles = look.handle_sizes

    def root(self, item: Any) -> GraphRoot:
        """Return what is known of a variable that holds survivors.

        Raises:
            KeyError: it holds none.
        """
        return self._hung[id(item)]

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Retained:
        """Return the handles of variables, which live and die with them."""
        known = (self._handles.get(id(root)) for root in roots)
        blocks = tuple((*each, "other") for each in known if each is not None)
        return Retained(sum(size for _, size, _ in blocks), len(blocks), (), blocks)


class _HeapView:
    """The heap as it is now: to be dropped at once."""

    def __init__(self, addresses: Sequence[int]) -> None:
        heap = look()
        try:
            self._rows = CensusRows(heap)
            self._names = NamedRows(heap, self._rows, ()).names
            self._sizes = cpu.block_sizes(addresses)
            arrays = arrays_in([*self._sizes.items()], heap.objects)
            self._arrays = {address: _outermost(each) for address, each in arrays.items()}
            self._at: dict[int, list[int]] = {}
            for number, row in enumerate(self._rows.all):
                if row.fact.address in self._sizes:
                    self._at.setdefault(row.fact.address, []).append(number)
            self._value_of = dict(self._rows.handles)
            self._find_holders(heap)
            self._find_unheld(heap)
        finally:
            # among all objects is this one
            heap.objects.clear()

    def _find_holders(self, heap: Heap) -> None:
        """Find the objects that a person knows rows by: variables rather than their handles."""
        wanted = {row for rows in self._at.values() for row in rows}
        wanted.update(self._value_of[row] for row in tuple(wanted) if row in self._value_of)
        self._holders: dict[int, Any] = {}
        for item in (*heap.keras_variables, *heap.variables, *heap.tensors):
            row = self._rows.of.get(id(item), -1)
            if row in wanted:
                self._holders.setdefault(row, item)
        rows = self._rows.all
        self.handle_sizes = {
            id(self._holders[value]): (
                rows[handle].fact.address,
                rows[handle].fact.buffer_nbytes,
            )
            for handle, value in self._value_of.items()
            if value in self._holders and rows[handle].fact.address in self._sizes
        }
        """``id()`` of a variable to address and bytes of its handle, of those asked for."""

    def survivor(self, address: int) -> Survivor:
        """Return what is known of the block at an address."""
        rows, size = self._at.get(address, []), self._sizes[address]
        arrays = self._arrays.get(address, ())
        if not rows:
            bytes_shown = shown(arrays) if arrays else 0
            return Survivor(address, size, arrays=arrays, shown=bytes_shown, words=TENSORFLOW)
        all_rows = self._rows.all
        row = all_rows[min(rows, key=lambda row: (ROLES.index(all_rows[row].role), row))]
        # a handle is kept by its variable, which is held by others
        above = (self._holders.get(self._value_of.get(each, -1)) for each in rows)
        handle = (Reference("attribute", "its handle", "Tensor"),)
        return Survivor(
            address=address,
            size=size or row.fact.buffer_nbytes,
            tensors=tuple(
                self._holders[each]
                for each in rows
                if each in self._holders and each not in self._unheld
            ),
            arrays=arrays,
            holders=tuple(Holder(each, handle) for each in above if each is not None),
            role=row.role,
            name="" if row.name < 0 else self._names[row.name],
            dtype=row.fact.dtype,
            shape=row.fact.shape,
            shown=min(row.fact.nbytes, size) if size else row.fact.nbytes,
            words=TENSORFLOW,
        )

    def hung(self, item: Any) -> GraphRoot:
        """Return what is known of a variable that is a holder."""
        row = self._rows.all[self._rows.of[id(item)]]
        fact, name = row.fact, "" if row.name < 0 else self._names[row.name]
        sizes = fact.nbytes, fact.buffer_nbytes
        return GraphRoot(fact.address, name, fact.dtype, fact.shape, *sizes, None)

    def _find_unheld(self, heap: Heap) -> None:
        """Find the tensors that Python has no path to but an array that shows them."""
        self._unheld: set[int] = set()
        rows = self._rows.all
        asked = [row for row in self._holders if self._arrays.get(rows[row].fact.address)]
        if not asked:
            return
        items = [self._holders[row] for row in asked]
        own = (heap.objects, heap.tensors, heap.variables, heap.keras_variables, self._holders)
        paths = reference_paths(items, skip={*map(id, own)})
        for row, several in zip(asked, paths, strict=True):
            if all(path.references[0].kind == _UNKNOWN for path in several):
                self._unheld.add(row)


def _outermost(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return arrays without those that TensorFlow makes for a ``memoryview`` of a tensor."""
    base = sys.modules["numpy"].ndarray.base.__get__
    views = (each for each in map(base, arrays) if type(each) is memoryview)
    inner = {id(view.obj) for view in views}
    return tuple(array for array in arrays if id(array) not in inner)
