"""Grappler's memory optimizer, in v1 sessions and in functions.

A function's graph is rewritten as the context's ``ConfigProto`` says, for which TensorFlow 2 has
no public name; a session's as its own one does (tensorflow/core/grappler/optimizers,
``meta_optimizer.cc`` and ``memory_optimizer.cc``, 2.21).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.client import session
from tensorflow.python.eager import context

from tensorlens.planning.patches import wrapped
from tensorlens.planning.tensorflow.options.stage import CannotApply, Option, Stage

_RECOMPUTED, _TRIGGER = "Recomputed/", "RecomputeTrigger/"
_SWAPPED = ("swap_out_", "swap_in_")
_SCHEDULED = "TemporaryVariable"
"""Operation that an AddN is made into, so that it need not hold all its terms at once."""


class RewrittenGraphs:
    """The optimized graphs of one step, counted."""

    def __init__(self) -> None:
        self.graphs = 0
        self._is_over = False
        self._nodes = self._recomputed = self._swapped = self._scheduled = 0

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Count the graphs of sessions and functions that run meanwhile, the first time."""
        if self._is_over:
            yield
            return
        self._is_over = True
        made = context.context()
        made.enable_graph_collection()
        try:
            with wrapped(session.BaseSession, "run", self._asking):
                yield
        finally:
            found = made.export_run_metadata()
            made.disable_graph_collection()
        for each in [] if found is None else found.function_graphs:
            for graph in each.partition_graphs:
                self._count(graph)

    def told(self) -> str:
        """Return what was rewritten, in words."""
        parts = [
            f"{number} {what}"
            for number, what in (
                (self._recomputed, "recomputed"),
                (self._swapped, "for swapping"),
                (self._scheduled, "of sums scheduled anew"),
            )
            if number
        ]
        if not parts:
            return f"nothing is rewritten: none of {self._nodes} nodes swaps, or is computed again"
        return f"of {self._nodes} nodes {', '.join(parts)}"

    def _asking(self, run: Any) -> Any:
        @functools.wraps(run)
        def asking(
            of: Any,
            fetches: Any,
            feed_dict: Any = None,
            options: Any = None,
            run_metadata: Any = None,
        ) -> Any:
            own = config_pb2.RunOptions()
            if options is not None:
                own.CopyFrom(options)
            own.output_partition_graphs = True
            told = config_pb2.RunMetadata() if run_metadata is None else run_metadata
            result = run(of, fetches, feed_dict, own, told)
            for graph in told.partition_graphs:
                self._count(graph)
            return result

        return asking

    def _count(self, graph: Any) -> None:
        self.graphs += 1
        bodies = [graph.node, *(each.node_def for each in graph.library.function)]
        for node in (node for nodes in bodies for node in nodes):
            self._nodes += 1
            self._recomputed += _RECOMPUTED in node.name and _TRIGGER not in node.name
            self._swapped += any(mark in node.name for mark in _SWAPPED)
            self._scheduled += node.op == _SCHEDULED


_OFF = ("NO_MEM_OPT",)
_SWAPS = "SWAPPING_HEURISTICS"
_RECOMPUTES = ("RECOMPUTATION_HEURISTICS", "HEURISTICS")
_GRADIENTS = "gradient_tape/"
"""Scope in front of whose nodes candidates for recomputation are looked for. By default it is
``gradients/``, as v1 graphs have it; a tape's nodes are in this one."""


class MemoryOptimization(Option):
    """``RewriterConfig.memory_optimization`` of every session and every function."""

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value.upper(), stage)
        self._rewritten = RewrittenGraphs()
        if stage.estimated:
            raise CannotApply(
                "memory_optimization: an estimate does not rewrite the graph as it runs here;"
                " measure it"
            )
        if self.value == _SWAPS and not tf.config.list_physical_devices("GPU"):
            raise CannotApply(
                f"memory_optimization={self.value} swaps between a GPU and the host, and there is"
                " no GPU"
            )

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Set it for functions, and for sessions that are made."""
        self._set(_options_of_context(), _GRADIENTS)
        with wrapped(session.BaseSession, "__init__", self._with_setting):
            yield

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Keep what the first step's graphs were made into."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(wrapped(session.BaseSession, "__init__", self._with_setting))
            stack.enter_context(self._rewritten.collecting())
            yield

    def finished(self) -> None:
        """Say what it changed.

        Raises:
            CannotApply: no graph was run.
        """
        if not self._rewritten.graphs:
            raise CannotApply(
                "memory_optimization changes nothing: the step runs no session and no tf.function"
            )
        if self.value not in _OFF:
            self.stage.notes.append(f"memory_optimization: {self._rewritten.told()}")

    def _set(self, options: Any, scope: str) -> None:
        kinds = rewriter_config_pb2.RewriterConfig.MemOptType
        options.memory_optimization = kinds.Value(self.value)
        if scope and self.value in _RECOMPUTES:
            options.memory_optimizer_target_node_name_scope = scope

    def _with_setting(self, init: Any) -> Any:
        @functools.wraps(init)
        def __init__(made: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
            own = config_pb2.ConfigProto()
            own.CopyFrom(context.context().config if config is None else config)
            options = own.graph_options.rewrite_options
            if options.memory_optimizer_target_node_name_scope == _GRADIENTS:
                options.ClearField("memory_optimizer_target_node_name_scope")
            self._set(options, "")
            init(made, target, graph, own)

        return __init__


def _options_of_context() -> Any:
    made = context.context()
    if made._config is None:
        made._config = config_pb2.ConfigProto()
    return made._config.graph_options.rewrite_options
