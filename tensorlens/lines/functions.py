"""The functions a profiler was given: their code, their names, their source as it was then."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from tensorlens.errors import ProfileError
from tensorlens.frameworks.base import frameworks
from tensorlens.lines.accounting import Account


@dataclass(slots=True)
class ProfiledFunction:
    """A function whose lines are accounted for."""

    account: Account
    name: str
    qualname: str
    module: str
    filename: str
    first_line: int
    source: tuple[str, ...]
    """Its lines without line ends, read when it was added: the file may change while it runs."""
    source_note: str | None
    """Why ``source`` is empty."""
    compiler: str | None = None
    """What compiles its lines away (``torch.compile``)."""
    compiled_into: bool = False
    """A compiler has read the decorated function into a larger graph."""


def innermost(function: Any) -> Any:
    """Return the function whose lines a person means: under every ``functools.wraps``.

    Raises:
        ProfileError: the wrappers refer to each other in a circle.
    """
    try:
        return inspect.unwrap(function)
    except ValueError:
        raise ProfileError(
            f"cannot profile {_name(function)}: its __wrapped__ is a circle"
        ) from None


def python_function(item: Any) -> FunctionType:
    """Return the Python function inside ``item``.

    Raises:
        ProfileError: there is none; the text says what to profile instead.
    """
    function = innermost(item)
    if isinstance(function, MethodType):
        function = innermost(function.__func__)
    if isinstance(function, FunctionType):
        return function
    raise ProfileError(why_not(item))


def why_not(item: Any) -> str:
    """Return the line that tells why ``item`` has no lines to profile, and what to do."""
    name = _name(item)
    if isinstance(item, type):
        return (
            f"cannot profile the class {name}: put @profile on its methods "
            f"(for example {name}.forward)"
        )
    if isinstance(item, BuiltinFunctionType) or inspect.isroutine(item):
        return f"cannot profile {name}: it is built in and has no Python lines; profile its caller"
    if callable(item):
        return (
            f"cannot profile {name}: a {type(item).__name__} object has no Python lines of its "
            "own; profile the function that calls it"
        )
    return f"cannot profile a {type(item).__name__}: give a function, a method or a module"


def describe(item: Any, function: FunctionType, account: Account) -> ProfiledFunction:
    """Return the entry of ``function``, with its source as it is now."""
    code = function.__code__
    source, note = source_of(code)
    compiled = next((by for f in frameworks() if (by := f.compiled_by(item)) is not None), None)
    return ProfiledFunction(
        account=account,
        name=function.__name__,
        qualname=function.__qualname__,
        module=function.__module__ or "",
        filename=code.co_filename,
        first_line=code.co_firstlineno,
        source=source,
        source_note=note,
        compiler=compiled,
    )


def source_of(code: CodeType) -> tuple[tuple[str, ...], str | None]:
    """Return the source lines of a code object, or none and the reason."""
    try:
        lines = linecache.getlines(code.co_filename) or inspect.findsource(code)[0]
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
    except Exception:  # whatever a loader, a notebook or a half-written file does
        block = []
    if not block:
        return (), f"the source is not available ({code.co_filename})"
    return tuple(line.rstrip("\r\n") for line in block), None


def _name(item: Any) -> str:
    for attribute in ("__qualname__", "__name__"):
        name = getattr(item, attribute, None)
        if isinstance(name, str):
            return name
    return type(item).__name__


Marker = Callable[[], bool]
"""Runs when a compiler reads the call, not when the compiled code runs."""


def compile_marker(entry: ProfiledFunction) -> Marker:
    """Return what notes that ``entry`` was compiled into a larger graph.

    ``torch.compile`` runs a function that carries this mark once, while it reads the code, and
    keeps its answer as a constant (torch/_dynamo/decorators.py, assume_constant_result).
    """

    def mark() -> bool:
        entry.compiled_into = True
        return True

    mark._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return mark
