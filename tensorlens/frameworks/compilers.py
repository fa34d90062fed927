"""Compiled code: tracing by compilers, figures of graphs, and wrapped functions."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol


class CompilerWatch(Protocol):
    """Result of :meth:`Adapter.watch_compiler`."""

    def renew(self) -> None:
        """Watch again, if the compiler was reset."""
        ...

    def stop(self) -> None:
        """Stop watching."""
        ...


class Compiler:
    """State of the compilers of all frameworks: whether they trace code rather than run it.

    Adapters assign the functions of their framework; the defaults mean that nothing is compiled.
    """

    def __init__(self) -> None:
        self.is_tracing: Callable[[], bool] = bool
        """Return whether code is traced and not run."""
        self.is_building: Callable[[], bool] = bool
        """Return whether code is run only to build a graph."""
        self.as_called: Callable[[Any], Any] = lambda function: function
        """Return the function that a wrapper calls in place of the wrapped one while a graph is
        built: the compiler of the caller may have to convert it."""
        self.when_run: Callable[[Callable[[], None]], None] = lambda act: None
        """Called while a graph is built: has a function called after each run of the graph, if
        :attr:`follow_runs` was called before."""
        self.follow_runs: Callable[[], Callable[[], None]] = lambda: lambda: None
        """Follow the runs of graphs; return a function that stops."""


compiler = Compiler()


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Bytes allocated by nodes, over all calls of their graphs."""

    hits: int
    """Calls in which they allocated anything."""
    allocated: int
    """The most allocated in one call."""
    peak: int
    """The most of it allocated at once."""
    net: int
    """Bytes of it left when a call ended, summed over the hits."""
    net_max: int
    """The largest of a single call."""
    net_first: int
    """That of the first call."""


@dataclass(frozen=True, slots=True)
class TracedFigures:
    """Figures of the graphs that have nodes of one function."""

    device: str
    calls: int
    """Number of calls of these graphs; a gradient function called on its own, as by a tape around
    a graph, belongs to the call before it."""
    lines: Mapping[int, NodeFigures]
    """Line number to the figures of nodes made by the line or by its callees."""
    backward: Mapping[int, NodeFigures]
    """Line number to the figures of the gradients of these nodes."""
    whole: NodeFigures
    """Figures of all nodes of these graphs, whoever made them."""
    growth: int
    """Growth of the device from the first call's start to the last one's end, in bytes."""
    compiler: Literal["XLA"] | None
    """Compiler of these graphs, if they run without nodes."""
    notes: tuple[str, ...]


class TracedCode(Protocol):
    """Follower of the graphs that have nodes of one function's lines."""

    def resume(self) -> None:
        """Start counting."""
        ...

    def pause(self) -> None:
        """Stop counting."""
        ...

    def figures(self) -> TracedFigures | None:
        """Return the figures; None if no graph with such nodes was called."""
        ...

    def clear(self) -> None:
        """Reset the figures."""
        ...


def wrapped(function: Any) -> Iterator[Any]:
    """Yield a function and all that it wraps: methods, partials, decorators."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = _inside(function)


def attributes(item: Any) -> dict[str, Any]:
    """Return an object's own ``__dict__``, without its ``__getattr__``."""
    try:
        found = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _inside(function: Any) -> Any:
    if isinstance(function, (types.MethodType, staticmethod, classmethod)):
        return function.__func__
    if isinstance(function, (functools.partial, functools.partialmethod)):
        return function.func
    if isinstance(function, property):
        return function.fget
    return attributes(function).get("__wrapped__")
