"""Reads gradient tapes: the operation that made a tensor, and the layer it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.eager.tape import Tape

from tensorlens.frameworks.tensorflow.census.rows import CensusRow
from tensorlens.frameworks.tensorflow.census.tensor_reader import PLAIN, Reader
from tensorlens.records.names import common_path

Path = tuple[str, ...]

_TRANSPARENT = frozenset(("ReadVariableOp", "Cast", "Identity", "Transpose", "Reshape"))
"""Operations between a variable and its use."""
_TRAINABLE = ("float", "bfloat", "complex")


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that a tape recorded."""

    number: int
    type: str
    inputs: tuple[int, ...]
    """The numbers of the tensors given to it."""


@dataclass(frozen=True, slots=True)
class TapeUse:
    """Use for which a tape keeps a tensor."""

    operation: Operation
    path: Path | None
    """Of the layer that the operation belongs to, as far as variables tell."""
    argument: int | None
    """Which of the operation's inputs it is; None for what it made."""

    @property
    def text(self) -> str:
        """The name: ``sequential/dense: MatMul``, ``loss: Square.input[0]``."""
        made = self.operation.type
        what = made if self.argument is None else f"{made}.input[{self.argument}]"
        return what if not self.path else f"{'/'.join(self.path)}: {what}"


class Tapes:
    """The uses of tensors by all tapes that live."""

    def __init__(self, tapes: Sequence[Any], reader: Reader) -> None:
        """``tapes`` are those of the heap; what of them cannot be read is not there."""
        self._recorded = [reader.tape(tape) for tape in tapes]
        self.uses: dict[int, TapeUse] = {}
        """Number of a tensor to what it is kept for: what made it, else its first use."""

    def find_uses(self, layers: Mapping[int, str]) -> None:
        """Tell the uses; ``layers`` gives the path of the layer that has a variable.

        A variable is known by its handle's number.
        """
        for recorded, made_by in self._recorded:
            operations = {number: Operation(number, *rest) for number, *rest in recorded}
            order = [operations[number] for number in sorted(operations)]
            made = {tensor: number for tensor, number in made_by if number in operations}
            paths = _paths(order, made, operations, layers)
            for tensor, number in made.items():
                self.uses.setdefault(tensor, TapeUse(operations[number], paths.get(number), None))
            for operation in order:
                for argument, tensor in enumerate(operation.inputs):
                    use = TapeUse(operation, paths.get(operation.number), argument)
                    self.uses.setdefault(tensor, use)


def readable(
    tapes: Sequence[Any], tensors: Sequence[Any], rows: Sequence[CensusRow], reader: Reader
) -> list[Any]:
    """Return TensorFlow's own objects of the tapes, where they can be read."""
    kind = Tape
    # of a derived class the attribute may be anything
    exact = [tape for tape in tapes if type(tape) is kind]
    found = [inner for tape in exact if (inner := getattr(tape, "_tape", None)) is not None]
    return found if found and _knows(tensors, rows, reader) else []


_known: bool | None = None


def _knows(tensors: Sequence[Any], rows: Sequence[CensusRow], reader: Reader) -> bool:
    """Tell whether tapes look as expected, tried once on one that watches one tensor."""
    global _known
    if _known is None:
        floats = {
            row.number
            for row in rows
            if row.fact.kind == PLAIN and row.fact.dtype.startswith(_TRAINABLE)
        }
        probe = next((each for each in tensors if each._id in floats), None)
        if probe is None:
            return False
        _known = _try(probe, reader)
    return _known


def _try(probe: Any, reader: Reader) -> bool:
    try:
        from tensorflow.python import pywrap_tfe

        tape = pywrap_tfe.TFE_Py_TapeSetNew(True, False)
    except Exception:
        return False
    try:
        pywrap_tfe.TFE_Py_TapeWatch(tape, probe)
        return reader.knows_tapes(tape, probe._id)
    except Exception:
        return False
    finally:
        pywrap_tfe.TFE_Py_TapeSetRemove(tape)


def _paths(
    order: Sequence[Operation],
    made: Mapping[int, int],
    operations: Mapping[int, Operation],
    layers: Mapping[int, str],
) -> dict[int, Path]:
    """Return the layer of each operation, by its number.

    One that uses a variable belongs to the layer that has it. Any other was made between the one
    before it and the one after it: in the innermost layer that has both. Of what comes before the
    first and after the last of them, such as the loss, nothing is known.
    """
    own: dict[int, Path] = {}
    for operation in order:
        path = _own(operation, made, operations, layers, 0)
        if path is not None:
            own[operation.number] = path
    paths: dict[int, Path] = {}
    after: dict[int, Path | None] = {}
    following: Path | None = None
    for operation in reversed(order):
        after[operation.number] = following
        following = own.get(operation.number, following)
    before: Path | None = None
    for operation in order:
        mine, last = own.get(operation.number), after[operation.number]
        if mine is not None:
            before = paths[operation.number] = mine
        elif before is not None and last is not None:
            paths[operation.number] = common_path(before, last)
    return paths


def _own(
    operation: Operation,
    made: Mapping[int, int],
    operations: Mapping[int, Operation],
    layers: Mapping[int, str],
    depth: int,
) -> Path | None:
    own: Path | None = None
    for tensor in operation.inputs:
        path: Path | None = None
        if tensor in layers:
            path = tuple(layers[tensor].split("/"))
        elif tensor in made and depth < 3 and operations[made[tensor]].type in _TRANSPARENT:
            path = _own(operations[made[tensor]], made, operations, layers, depth + 1)
        if path is not None:
            own = path if own is None else common_path(own, path)
    return own
