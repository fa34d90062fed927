"""What grappler made of the graphs that a step runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session
from tensorflow.python.eager import context

from tensorlens.frameworks.trials.stage import wrapped

_RECOMPUTED, _TRIGGER = "Recomputed/", "RecomputeTrigger/"
_SWAPPED = ("swap_out_", "swap_in_")
_SCHEDULED = "TemporaryVariable"
"""What an AddN is made into, so that it need not hold all that it adds up at once."""


class Rewritten:
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
