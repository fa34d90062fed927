"""Compiled code: when a compiler reads it, what its graphs take, and what wraps functions."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol


class CompilerWatch(Protocol):
    """Result of :meth:`Adapter.watch_compiler`, to be closed."""

    def renew(self) -> None:
        """Begin again where the compiler was reset."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class Compiler:
    """Tells profiled code that a compiler is reading it rather than running it.

    Adapters put the answers of their framework here; until then nothing is compiled.
    """

    def __init__(self) -> None:
        self.is_tracing: Callable[[], bool] = bool
        """Whether code is read and not run."""
        self.is_building: Callable[[], bool] = bool
        """Whether code is run to build a graph and to do nothing else; the same holds for it."""
        self.as_called: Callable[[Any], Any] = lambda function: function
        """Asked by a wrapper while a graph is built, for the function to call in place of the one
        inside it: what compiles the caller may have meant to convert it."""
        self.when_run: Callable[[Callable[[], None]], None] = lambda act: None
        """Asked while a graph is built: calls what it is given whenever the graph has run, where
        :attr:`follow_runs` was called before."""
        self.follow_runs: Callable[[], Callable[[], None]] = lambda: lambda: None
        """Follows the runs of graphs until what it returns is called."""


compiler = Compiler()


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Bytes that nodes were handed, over all calls of their graphs."""

    hits: int
    """Calls in which they were handed anything."""
    allocated: int
    """The most that was handed out in one call."""
    peak: int
    """The most of it that was there at once."""
    net: int
    """Bytes of it still there when a call ended, summed over the hits."""
    net_max: int
    """The largest of a single call."""
    net_first: int
    """That of the first call."""


@dataclass(frozen=True, slots=True)
class TracedFigures:
    """Figures of the graphs that have nodes of one function."""

    device: str
    calls: int
    """How often such a graph was called; a gradient function that is called by itself, as a tape
    around a graph does, is part of the call before it."""
    lines: Mapping[int, NodeFigures]
    """Line number to what the nodes were handed that it made, itself or by what it called."""
    backward: Mapping[int, NodeFigures]
    """Line number to what the gradients of these nodes took."""
    whole: NodeFigures
    """The same of all nodes of these graphs, whoever made them."""
    growth: int
    """By how much the device grew from the first call's start to the last one's end."""
    compiler: Literal["XLA"] | None
    """Compiler of these graphs, which have no nodes when they run."""
    notes: tuple[str, ...]


class TracedCode(Protocol):
    """Follows the graphs that have nodes of one function's lines."""

    def resume(self) -> None:
        """Count from now on."""
        ...

    def pause(self) -> None:
        """Count no more."""
        ...

    def figures(self) -> TracedFigures | None:
        """Return what was counted; None where no graph with such nodes was called."""
        ...

    def clear(self) -> None:
        """Forget what was counted."""
        ...


def wrapped(function: Any) -> Iterator[Any]:
    """Give a function and, one by one, what it wraps: methods, partials, decorators."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = _inside(function)


def attributes(item: Any) -> dict[str, Any]:
    """Return what an object itself holds, without asking its ``__getattr__``."""
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
