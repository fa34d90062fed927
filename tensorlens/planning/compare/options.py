"""Checks the options that a user gives."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.planning.trace import Framework
from tensorlens.planning.trials.jobs import OPTIONS, Catalogue, Variant, catalogue
from tensorlens.planning.trials.pickling import pack

OptionLike = Mapping[str, Any] | Callable[..., Any] | None

_FUNCTION, _ARGUMENTS = "function", "arguments"


@dataclass(frozen=True, slots=True)
class Option:
    """One checked option, which can be pickled."""

    name: str
    variant: Variant
    settings: tuple[str, ...]
    """Texts for the record: ``optimizer=adam``."""


def checked_options(
    given: Mapping[str, OptionLike],
    *,
    framework: Framework,
    arguments: Mapping[str, Any],
    with_data: bool,
) -> tuple[Option, ...]:
    """Return the checked options."""
    if framework not in OPTIONS:
        raise UsageError(f"framework={framework!r}: there is {', '.join(OPTIONS)}")
    if not isinstance(given, Mapping) or not given:
        raise UsageError(
            'options: give a mapping of names to options: {"baseline": {}, "adam": {"optimizer":'
            ' "adam"}}'
        )
    known = catalogue(framework)
    return tuple(_option(name, each, known, arguments, with_data) for name, each in given.items())


def parse_option(
    words: Sequence[str], known: Catalogue, parameters: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the option with the settings ``optimizer=adam``, ``fused=True`` and so on.

    Args:
        words: settings as typed.
        known: built-in settings; any other name is an argument of ``make_step``.
        parameters: parameters of ``make_step``; None if unknown.

    Raises:
        UsageError: one is not ``NAME=VALUE``, or neither a setting nor an argument.
    """
    found: dict[str, Any] = {}
    for each in words:
        name, value = name_and_value(each, "optimizer=adam")
        if name not in known and name not in (parameters or ()):
            near = did_you_mean(name, [*known, *(parameters or ())])
            if near or parameters is not None:
                raise UsageError(f"{each}: {name!r} is no setting and no argument{near}")
        target = found if name in known else found.setdefault(_ARGUMENTS, {})
        target[name] = value
    return found


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a question with the most similar known name; empty if none is similar."""
    found = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return f"; did you mean {found[0]!r}?" if found else ""


def name_and_value(text: str, example: str) -> tuple[str, Any]:
    """Split ``fused=True`` into its name and value.

    The value is a Python literal, else a text; ``true``, ``false`` and ``none`` are accepted.

    Raises:
        UsageError: it is not ``NAME=VALUE``.
    """
    name, separator, value = map(str.strip, text.partition("="))
    if not separator or not name.isidentifier():
        raise UsageError(f"{text!r}: give NAME=VALUE, as in {example}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name, {"true": True, "false": False, "none": None}.get(value.lower(), value)


def _option(
    name: Any, given: OptionLike, known: Catalogue, arguments: Mapping[str, Any], with_data: bool
) -> Option:
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"the name of an option is a text, not {name!r}")
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        if not callable(given):
            raise UsageError(
                f"option {name!r} is a {type(given).__name__}: give a dict of settings, or a"
                " function that is called with make_step and returns the step"
            )
        given = {_FUNCTION: given}
    settings = {key: value for key, value in given.items() if key in known}
    own = given.get(_ARGUMENTS, {})
    if not isinstance(own, Mapping) or not all(isinstance(key, str) for key in own):
        raise UsageError(f"option {name!r}: arguments= takes a dict of make_step's arguments")
    names = [*known, _FUNCTION, _ARGUMENTS]
    for key in given:
        if key not in names:
            near = did_you_mean(str(key), names) or f"; there are {', '.join(names)}"
            raise UsageError(f"option {name!r}: there is no setting {key!r}{near}")
    for key, value in settings.items():
        if not known[key].check(value):
            raise UsageError(f"option {name!r}: {key}={value!r}: it takes {known[key].takes}")
    function = given.get(_FUNCTION)
    if function is not None and not callable(function):
        raise UsageError(f"option {name!r}: function= takes a function, not {function!r}")
    parcel = None if function is None else pack(function, with_data=with_data)
    shown = tuple(f"{name}={value}" for each in (settings, own) for name, value in each.items())
    if function is not None:
        shown += (f"{getattr(function, '__name__', type(function).__name__)}()",)
    # in the catalogue's order, in which they are applied
    ordered = {key: settings[key] for key in known if key in settings}
    return Option(name, Variant(ordered, {**arguments, **own}, parcel), shown)
