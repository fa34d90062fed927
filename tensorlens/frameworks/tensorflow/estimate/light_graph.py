"""A function's graph that takes less work to build; its operations are the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tensorflow.python.client import pywrap_tf_session as native
from tensorflow.python.eager import context
from tensorflow.python.framework import errors, ops, versions
from tensorflow.python.framework.func_graph import FuncGraph

from tensorlens.frameworks.tensorflow.estimate.shared_traces import SharedTraces

_FOLLOWED = "2.21."
"""Versions of TensorFlow that add operations as it is done here."""


class _Operations(ops.Graph):  # type: ignore[misc]
    """How operations are added, after what ``FuncGraph`` does of its own: they share stack traces.

    As ``Graph._create_op_internal`` of TensorFlow 2.21 does it, without a ``NodeDef`` in between,
    what is checked once more, and a lock that keeps sessions off.
    """

    traces: SharedTraces

    def _create_op_internal(
        self,
        op_type: str,
        inputs: Sequence[Any],
        dtypes: Any = None,
        input_types: Any = None,
        name: str | None = None,
        attrs: Mapping[str, Any] | None = None,
        op_def: Any = None,
        compute_device: bool = True,
    ) -> Any:
        self._check_not_finalized()
        name = name or op_type
        name = name[:-1] if name.endswith("/") else self.unique_name(name)
        before = self._control_dependencies_for_inputs({each.op for each in inputs})
        op_def = op_def or self.op_def_for_type(op_type)
        made = _added(self, op_def, name, inputs, before, attrs or {})
        native.TF_SetOpStackTrace(made, self.traces.of(sys._getframe(1)))
        operation = ops.Operation._from_c_op(made, self)
        operation._original_op = self._default_original_op
        operation._control_flow_post_processing(input_tensors=inputs)
        self._create_op_helper(operation, compute_device=compute_device)
        return operation


class LightGraph(FuncGraph, _Operations):  # type: ignore[misc]
    """What a graph is while it is built."""

    def as_default(self) -> AbstractContextManager[Any]:
        """Make it the default graph, unless it is."""
        if ops.get_default_graph() is self and not context.executing_eagerly():
            return nullcontext(self)
        entered: AbstractContextManager[Any] = super().as_default()
        return entered


@contextmanager
def built_lightly(graph: Any) -> Iterator[None]:
    """Let a graph be a :class:`LightGraph` while it is entered.

    Nothing is changed of graphs of another kind, or by a TensorFlow that may add operations
    otherwise.
    """
    if type(graph) is not FuncGraph or not versions.VERSION.startswith(_FOLLOWED):
        yield
        return
    graph.traces = SharedTraces()
    graph.__class__ = LightGraph
    try:
        yield
    finally:
        graph.__class__ = FuncGraph
        graph.traces.forget()


def _added(
    graph: Any,
    op_def: Any,
    name: str,
    inputs: Sequence[Any],
    before: Sequence[Any],
    attrs: Mapping[str, Any],
) -> Any:
    """Return the native operation that was added to a graph.

    Raises:
        ValueError: the operation cannot be given these inputs.
    """
    with graph._c_graph.get() as c_graph:
        described = native.TF_NewOperation(c_graph, op_def.name, name)
    for each in ops._reconstruct_sequence_inputs(op_def, inputs, attrs):
        if isinstance(each, list | tuple):
            native.TF_AddInputList(described, [one._as_tf_output() for one in each])
        else:
            native.TF_AddInput(described, each._as_tf_output())
    for each in before:
        native.TF_AddControlInput(described, each._c_op)
    for key, value in attrs.items():
        native.TF_SetAttrValueProto(described, key, value.SerializeToString())
    try:
        return native.TF_FinishOperation(described)
    except errors.InvalidArgumentError as error:
        raise ValueError(error.message) from None
