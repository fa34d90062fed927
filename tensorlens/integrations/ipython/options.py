"""Options of a magic, followed by a statement that is kept as typed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.magic import line_cell_magic, needs_local_scope
from IPython.core.magic_arguments import magic_arguments

_Method = TypeVar("_Method", bound=Callable[..., Any])
_VALUE = re.compile(r""""([^"]*)"|'([^']*)'|(\S+)""")


def magic(*options: Callable[[Any], Any]) -> Callable[[_Method], _Method]:
    """Return a decorator that makes a method a line and cell magic with these options."""

    def decorate(method: Any) -> Any:
        method = needs_local_scope(line_cell_magic(method))
        for option in reversed(options):
            method = option(method)
        return magic_arguments()(method)

    return decorate


def parsed(method: Any, line: str) -> tuple[Any, str]:
    """Return the options, and the statement unchanged.

    argparse would take words of a statement that begin with a dash for options.
    """
    parser = method.parser
    # nargs is None for an option with one value
    with_value = {
        flag for action in parser._actions if action.nargs is None for flag in action.option_strings
    }
    options: list[str] = []
    rest = line.strip()
    while rest.startswith("-"):
        word, _, rest = rest.partition(" ")
        rest = rest.lstrip()
        if word == "--":
            break
        options.append(word)
        if word in with_value and (match := _VALUE.match(rest)):
            options.append(match[1] or match[2] or match[3])
            rest = rest[match.end() :].lstrip()
    return parser.parse_args(options), rest
