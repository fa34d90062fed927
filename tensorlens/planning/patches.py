"""Temporary replacements of attributes and classes, and changes of modules once imported."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any
from unittest import mock

from tensorlens.frameworks.registry import when_imported


def patched(owner: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    """Return a context in which an attribute of a class or module is replaced or added."""
    return mock.patch.object(owner, name, value, create=True)


@contextlib.contextmanager
def intercepted(call: Callable[..., Any], *places: tuple[Any, str]) -> Iterator[None]:
    """Call ``call`` in place of functions, given by owner and name, in this context.

    Its arguments are the function and those of the call. Functions keep their signature: Keras
    reads it with ``getfullargspec``, which follows no wrapper.
    """

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        # a builtin, or a function around one, may have none
        with contextlib.suppress(ValueError, TypeError):
            replacement.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return replacement

    with contextlib.ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(patched(owner, name, make(getattr(owner, name))))
        yield


Make = Callable[[type, dict[str, Any]], Any]


@contextlib.contextmanager
def exchanging(kind: type, make: Make) -> Iterator[None]:
    """Let ``make`` make the instances of a class and its subclasses in this context.

    Args:
        kind: the class.
        make: called with the class and the arguments by name; returns an initialised instance of
            any class. Instances that it makes itself are not replaced.
    """
    is_inside = False

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_inside
        is_copy = not args and not kwargs and not _takes_nothing(cls)
        if is_inside or is_copy:
            return object.__new__(cls)
        is_inside = True
        try:
            made = make(cls, given(cls, args, kwargs))
        finally:
            is_inside = False
        if isinstance(made, cls):
            _initialised_once(made)
        return made

    kind.__new__ = new  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        # without ``__new__`` the class would refuse arguments from now on (object_new of CPython)
        kind.__new__ = _plain  # type: ignore[method-assign,assignment]


def given(cls: type, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a class by name."""
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    bound = signature.bind(None, *args, **kwargs)
    found = dict(bound.arguments)
    found.pop(next(iter(signature.parameters)), None)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found.update(found.pop(parameter.name, {}))
    return found


def accepted(kind: type, found: dict[str, Any], kept: tuple[str, ...]) -> dict[str, Any]:
    """Return those of the ``kept`` arguments that a class takes."""
    takes = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    return {name: found[name] for name in kept if name in found and name in takes}


def _takes_nothing(cls: type) -> bool:
    """Tell whether an instance can be made without arguments."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    loose = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return all(each.default is not each.empty or each.kind in loose for each in parameters)


def _plain(cls: type, *args: Any, **kwargs: Any) -> Any:
    return object.__new__(cls)


def _initialised_once(made: Any) -> None:
    """Skip the next call of an instance's ``__init__``, which Python makes after ``__new__``."""
    kind = type(made)
    init = kind.__init__

    @functools.wraps(init)
    def skipping(instance: Any, *args: Any, **kwargs: Any) -> None:
        if instance is made:
            kind.__init__ = init
            return
        init(instance, *args, **kwargs)

    kind.__init__ = skipping


@contextlib.contextmanager
def on_import(changes: dict[str, Callable[[ModuleType], None]]) -> Iterator[None]:
    """Call functions with modules once these are imported, at once if they already are.

    Args:
        changes: module name to the function.
    """

    def changed(name: str) -> None:
        changes[name](sys.modules[name])

    with contextlib.ExitStack() as stack:
        for name in changes:
            stack.callback(when_imported(name, functools.partial(changed, name)))
        yield
