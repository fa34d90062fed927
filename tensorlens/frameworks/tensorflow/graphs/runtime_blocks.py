"""Descriptions of memory that only the runtime holds, by the node or thread that allocated it.

They use words of a Keras user: the function, the layer, the batch; not the internal names of
Keras's functions, of nodes that Grappler rewrote and of tf.data's threads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.frameworks.tensorflow.graphs.functions import is_of_dataset, plain_name
from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes, bare_name, plain_names
from tensorlens.records.families import AHEAD, HANDLE_OF_DATA, HANDLES_OF_DATA, KEPT
from tensorlens.records.logs.stacks import Frame
from tensorlens.roles import Role

BATCH = "batch of tf.data"
DATA = "data of tf.data"
"""An iterator's copies of the tensors that its dataset is made from."""
RUNNING = "made by a graph and not released so far"
HANDLE_NBYTES = 256
"""Bytes of the largest handle of a dataset or an iterator."""
_CONSTANTS_OF_DATA = "constants of tf.data"
_DATA_THREADS = "tf_data_"
_NEXT = "GetNext"
_DATA_OPERATION = re.compile(
    r"(?:^|/)[A-Za-z_]*(?:Dataset|Iterator)[A-Za-z0-9]*(?:_\d+)?(?:/_\d+)?$"
)
_FOLDED = re.compile(r"__cf__\d+|^ConstantFolding/|-folded(?:-\d+)?$")
_KERAS_STEPS = frozenset(
    (
        *("one_step_on_data", "one_step_on_data_distributed", "multi_step_on_data"),
        *("one_step_on_iterator", "multi_step_on_iterator"),
    )
)
"""Functions that Keras makes of a step, in 3.15 or in older releases
(keras/src/backend/tensorflow/trainer.py)."""
_KERAS_DATA = "/keras/src/trainers/data_adapters/"


@dataclass(frozen=True, slots=True)
class RuntimeBlock:
    """Description of a block; blocks with the same ``base`` are shown together."""

    base: str
    key: str | None
    role: Role
    note: str
    module: str | None = None


def describe_block(
    nodes: Nodes, node: str, function: str | None, nbytes: int, *, by_python: bool
) -> RuntimeBlock | None:
    """Describe a block; return None if only the operation that made it is known.

    Args:
        nodes: finds the origins of nodes.
        node: name of the node, or of the thread, that allocated the block.
        function: the function that was called then.
        nbytes: size of the block.
        by_python: whether the Python line that allocated it is known.
    """
    # a rewritten node whose block lasts is nearly always a folded constant
    is_rewritten = sum(1 for _ in plain_names(node)) > 1
    found = describe_data_or_constant(
        nodes, node, function, nbytes, by_python=by_python, is_folded=is_rewritten
    )
    if found is not None or function is None:
        return found
    origin = nodes.find(node, function)
    if origin is None:
        return None
    if origin.layer and origin.phase in ("forward", "backward"):
        role: Role = "activation" if origin.phase == "forward" else "other"
        text = f"{origin.layer}: {origin.op or node}"
        return RuntimeBlock(text, None, role, RUNNING, module=origin.layer)
    return RuntimeBlock(f"kept by {function_title(function)}", bare_name(node), "other", KEPT)


def describe_data_or_constant(
    nodes: Nodes, node: str, function: str | None, nbytes: int, *, by_python: bool, is_folded: bool
) -> RuntimeBlock | None:
    """Describe a block of tf.data or a constant; return None for any other.

    The arguments are those of :func:`describe_block`; ``is_folded`` tells that the node is a
    constant now, whatever it was before.
    """
    found = _describe_data(node, nbytes)
    if found is not None:
        return found
    if function is None and by_python and "/" not in node:
        # an operation that Python ran itself, known by its type
        return None
    functions = nodes.functions_with(node, function)
    if function is None:
        # only tf.data runs while no function is called
        functions = [each for each in functions if is_of_dataset(each[0])] or functions
    is_constant = is_folded or (bool(functions) and all(op == "Const" for _, op in functions))
    if functions and all(is_of_dataset(name) for name, _ in functions):
        if is_constant:
            return RuntimeBlock(_CONSTANTS_OF_DATA, bare_name(node), "input", KEPT)
        return RuntimeBlock(BATCH, None, "input", AHEAD)
    if not is_constant:
        return None
    name = function or (functions[0][0] if len(functions) == 1 else None)
    text = "a graph" if name is None else function_title(name)
    return RuntimeBlock(f"constants of {text}", bare_name(node), "other", KEPT)


def is_folded(node: str) -> bool:
    """Tell whether a node's name says that the runtime folded it into a constant."""
    return _FOLDED.search(node) is not None


def _describe_data(node: str, nbytes: int) -> RuntimeBlock | None:
    """Describe a block of tf.data's own threads and operations; return None for any other."""
    operation = _DATA_OPERATION.search(node)
    if node.startswith(_DATA_THREADS) or (operation and _NEXT in operation[0]):
        return RuntimeBlock(BATCH, None, "input", AHEAD)
    if operation is None:
        return None
    if nbytes <= HANDLE_NBYTES:
        return RuntimeBlock(HANDLES_OF_DATA, None, "other", HANDLE_OF_DATA)
    return RuntimeBlock(DATA, None, "input", AHEAD)


def function_title(name: str) -> str:
    """Return the Python name of a user's function, ``Keras step`` for one of Keras's."""
    plain = plain_name(name)
    return "Keras step" if plain in _KERAS_STEPS else plain


def is_keras_data(frames: Sequence[Frame]) -> bool:
    """Tell from a stack whether Keras's data adapters made a block."""
    return any(_KERAS_DATA in frame.filename.replace("\\", "/") for frame in frames)
