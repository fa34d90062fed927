"""The functions a profiler was given: their code, their names, their source as it was then."""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

from tensorlens.errors import ProfileError
from tensorlens.frameworks.registry import first_answer
from tensorlens.lines.tracing.accounts import Account, find_backward_passes


@dataclass(slots=True)
class ProfiledFunction:
    """A profiled function or block, its source and its account."""

    account: Account
    name: str
    qualname: str
    module: str
    first_line: int
    source: tuple[str, ...]
    """Lines without line ends, as read when it was added: the file may change later."""
    compiler: str | None = None
    """Compiler of its lines (``torch.compile``); None if they run as Python."""
    compiled_into: bool = False
    """Whether a compiler has read the decorated function into a larger graph."""
    wrapped: bool | None = None
    """Whether our wrapper calls it directly, so that its code need not be watched otherwise."""

    def __post_init__(self) -> None:
        self.account.backward_passes.update(find_backward_passes(self.source, self.first_line))

    def show_as(self, name: str, lines: Sequence[str]) -> None:
        """Replace the name and the source, which begins at line 1: for a notebook's cell."""
        self.name = self.qualname = name
        self.first_line, self.source = 1, tuple(lines)
        self.__post_init__()

    @property
    def filename(self) -> str:
        """The file of its code."""
        return self.account.code.co_filename

    @property
    def source_note(self) -> str | None:
        """Why ``source`` is empty; None if it is not."""
        return None if self.source else f"the source is not available ({self.filename})"

    @property
    def ran(self) -> bool:
        """Whether it was called, or a graph that it is part of."""
        return self.account.ran

    @property
    def was_read(self) -> bool:
        """Whether a compiler read it or it ran to build a graph."""
        return self.compiled_into or bool(self.account.traced)

    @property
    def is_cleared(self) -> bool:
        """Whether its figures were cleared and nothing ran since."""
        account = self.account
        fresh = self.ran or self.was_read or account.lines or account.failure
        return account.cleared and not fresh


def innermost(function: Any) -> Any:
    """Return the function under all wrappers made by ``functools.wraps``.

    Raises:
        ProfileError: the wrappers form a circle.
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
    for _ in range(10):  # for instance a wrapper of a method of a module
        attribute = forward_of(function)
        if attribute is not None:
            function = innermost(getattr(function, attribute))
        elif isinstance(function, MethodType):
            # torch.compile(module) wraps __call__, which all modules share
            owner = function.__self__
            is_call = function.__func__ is inspect.getattr_static(type(owner), "__call__", None)
            is_of_module = is_call and forward_of(owner) is not None
            function = innermost(owner if is_of_module else function.__func__)
    if isinstance(function, FunctionType):
        return function
    raise ProfileError(why_not(item))


def forward_of(item: Any) -> str | None:
    """Return the attribute to profile when ``item`` is a module instance, else None."""
    return first_answer(lambda each: each.forward_of(item))


def compiler_of(item: Any) -> str | None:
    """Return the name of the compiler of ``item``, or None."""
    return first_answer(lambda each: each.compiled_by(item))


def why_not(item: Any) -> str:
    """Return why ``item`` has no lines to profile, and what to do."""
    if isinstance(item, functools.partial):
        return why_not(item.func)
    name = _name(item)
    if isinstance(item, type):
        methods = [each for each, value in vars(item).items() if isinstance(value, FunctionType)]
        # the first in the source; __init__ and the like only if there is no other
        methods.sort(key=lambda each: (each != "forward", each.startswith("__")))
        example = f" (for example {name}.{methods[0]})" if methods else ""
        return f"cannot profile the class {name}: put @profile on its methods{example}"
    compiler = compiler_of(item)
    if compiler is not None:
        return (
            f"cannot profile {name}: {compiler} compiled its lines away; "
            "profile the function that calls it"
        )
    if isinstance(getattr(item, "__wrapped__", None), FunctionType):
        return f"cannot profile {name} through its wrapper: put @profile below the other decorator"
    if inspect.isroutine(item):
        return f"cannot profile {name}: it is built in and has no Python lines; profile its caller"
    kind = type(item).__qualname__
    hint = f", or {kind}.__call__" if callable(item) else ""
    return f"cannot profile an object of {kind}: give a function, a method or a module{hint}"


def build_entry(item: Any, function: FunctionType, account: Account) -> ProfiledFunction:
    """Return the entry of ``function``, with its source as it is now."""
    code = account.code
    return ProfiledFunction(
        account=account,
        name=function.__name__,
        qualname=function.__qualname__,
        module=function.__module__ or "",
        first_line=code.co_firstlineno,
        source=_source_of(code),
        compiler=compiler_of(item),
    )


def _source_of(code: CodeType) -> tuple[str, ...]:
    """Return the source lines of a code object, or none."""
    try:
        lines = linecache.getlines(code.co_filename) or inspect.findsource(code)[0]
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
    except Exception:  # whatever a loader, a notebook or a half-written file does
        block = []
    return tuple(line.rstrip("\r\n") for line in block)


def signature(function: ProfiledFunction) -> str:
    """Return the ``def`` line, for a function whose lines did not run."""
    return next(
        (line for line in function.source if line.lstrip().startswith(("def ", "async def "))),
        f"def {function.name}(...)",
    )


def _name(item: Any) -> str:
    name = getattr(item, "__qualname__", None)
    return name if isinstance(name, str) else type(item).__qualname__


Marker = Callable[[], bool]
"""A function that runs when a compiler reads its call, not when the compiled code runs."""


def compile_mark(entry: ProfiledFunction) -> Marker:
    """Return a function that sets ``compiled_into`` of ``entry``.

    ``torch.compile`` runs a function with ``_dynamo_marked_constant`` once, while it reads the
    code, and keeps its result (torch/_dynamo/decorators.py, assume_constant_result).
    """

    def mark() -> bool:
        entry.compiled_into = True
        return True

    mark._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return mark
