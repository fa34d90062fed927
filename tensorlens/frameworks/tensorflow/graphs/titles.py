"""Names of the runtime's memory, by the node or the thread that allocated it.

A name says what a person who writes Keras knows: the function, the layer, the batch; not what
Keras's functions, the nodes that Grappler rewrote and the threads of tf.data are called inside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.frameworks.tensorflow.graphs.functions import is_of_dataset, plain_name
from tensorlens.frameworks.tensorflow.graphs.node_names import bare_name, plain_names
from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes
from tensorlens.records.families import AHEAD, HANDLE_OF_DATA, HANDLES_OF_DATA, KEPT
from tensorlens.records.logs.stacks import Frame
from tensorlens.roles import Role

BATCH = "batch of tf.data"
DATA = "data of tf.data"
"""An iterator's copies of the tensors that its dataset is made from."""
RUNNING = "made by a graph and not released so far"
_CONSTANTS_OF_DATA = "constants of tf.data"
_THREADS = "tf_data_"
_NEXT = "GetNext"
_ITSELF = re.compile(r"(?:^|/)[A-Za-z_]*(?:Dataset|Iterator)[A-Za-z0-9]*(?:_\d+)?(?:/_\d+)?$")
_FOLDED = re.compile(r"__cf__\d+|^ConstantFolding/|-folded(?:-\d+)?$")
HANDLE_NBYTES = 256
"""Bytes of the largest thing that tf.data knows a dataset or an iterator by."""
_ACTIVATIONS = ("forward", "backward")
_OF_KERAS = frozenset(
    (
        *("one_step_on_data", "one_step_on_data_distributed", "multi_step_on_data"),
        *("one_step_on_iterator", "multi_step_on_iterator"),
    )
)
"""Functions that Keras makes of a step: in 3.15 as in older releases
(keras/src/backend/tensorflow/trainer.py)."""
_KERAS_DATA = "/keras/src/trainers/data_adapters/"


@dataclass(frozen=True, slots=True)
class Title:
    """Title of a block. Names below a ``base`` are told together."""

    base: str
    key: str | None
    role: Role
    note: str
    module: str | None = None


def title(
    nodes: Nodes, node: str, function: str | None, nbytes: int, *, by_python: bool
) -> Title | None:
    """Return what a block is; None where no more is known than the operation that made it.

    Args:
        nodes: where nodes come from.
        node: what allocated the block: the node's name, or the thread's.
        function: the function that was called then.
        nbytes: how large it is.
        by_python: whether a line of Python is known for it.
    """
    # what lasts and was rewritten is nearly always a constant that was folded
    is_rewritten = sum(1 for _ in plain_names(node)) > 1
    beside = title_beside(
        nodes, node, function, nbytes, by_python=by_python, is_folded=is_rewritten
    )
    if beside is not None or function is None:
        return beside
    origin = nodes.find(node, function)
    if origin is None:
        return None
    if origin.layer and origin.phase in _ACTIVATIONS:
        role: Role = "activation" if origin.phase == "forward" else "other"
        text = f"{origin.layer}: {origin.op or node}"
        return Title(text, None, role, RUNNING, module=origin.layer)
    return Title(f"kept by {function_title(function)}", bare_name(node), "other", KEPT)


def title_beside(
    nodes: Nodes, node: str, function: str | None, nbytes: int, *, by_python: bool, is_folded: bool
) -> Title | None:
    """Return what a block is that is of no node of a step: a constant, or of tf.data; else None.

    The arguments are those of :func:`title`, and whether the node is taken for a constant whatever
    it was.
    """
    of_data = _title_of_data(node, nbytes)
    if of_data is not None:
        return of_data
    if function is None and by_python and "/" not in node:
        # an operation that Python has run itself, known by its type
        return None
    functions = nodes.functions_with(node, function)
    if function is None:
        # what runs while no function is called is tf.data's
        functions = [each for each in functions if is_of_dataset(each[0])] or functions
    is_constant = is_folded or (bool(functions) and all(op == "Const" for _, op in functions))
    if functions and all(is_of_dataset(name) for name, _ in functions):
        if is_constant:
            return Title(_CONSTANTS_OF_DATA, bare_name(node), "input", KEPT)
        return Title(BATCH, None, "input", AHEAD)
    if not is_constant:
        return None
    base = function or (functions[0][0] if len(functions) == 1 else None)
    text = "a graph" if base is None else function_title(base)
    return Title(f"constants of {text}", bare_name(node), "other", KEPT)


def is_folded(node: str) -> bool:
    """Tell whether a node's name says that the runtime has computed it once and for all."""
    return _FOLDED.search(node) is not None


def _title_of_data(node: str, nbytes: int) -> Title | None:
    """Return what a block is that tf.data's own threads and operations made; else None."""
    if node.startswith(_THREADS):
        return Title(BATCH, None, "input", AHEAD)
    found = _ITSELF.search(node)
    if found is None:
        return None
    if _NEXT in found[0]:
        return Title(BATCH, None, "input", AHEAD)
    if nbytes <= HANDLE_NBYTES:
        return Title(HANDLES_OF_DATA, None, "other", HANDLE_OF_DATA)
    return Title(DATA, None, "input", AHEAD)


def function_title(name: str) -> str:
    """Return a function's name: a user's own as in Python, ``Keras step`` for Keras's."""
    plain = plain_name(name)
    return "Keras step" if plain in _OF_KERAS else plain


def is_keras_data(frames: Sequence[Frame]) -> bool:
    """Tell from a stack whether Keras's data adapters made a block."""
    return any(_KERAS_DATA in frame.filename.replace("\\", "/") for frame in frames)
