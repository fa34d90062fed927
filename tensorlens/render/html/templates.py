"""The templates of all HTML, and the filter for texts of the program."""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tensorlens.render.source import printable

_JOINTS = {
    "name": (
        re.compile(r"(?<=[./:])(?=[A-Za-z_\[])"),
        re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=_)(?=\w{3})"),
    ),
    "line": (re.compile(r"(?<=[/\\ ])(?=.)"), re.compile(r"(?<=_)(?=\w{3})|(?<=\.)(?=[a-z_]+$)")),
}
"""Where names and places in files may be broken, and where long parts of them."""
_LONG = 18
_WHOLE = Markup('<span class="tl-whole">{}</span>')


@cache
def environment() -> Environment:
    """Return jinja2 as the templates need it: everything is escaped."""
    found = Environment(
        loader=PackageLoader("tensorlens.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["printable"] = printable
    found.filters["breakable"] = breakable
    return found


def breakable(text: str, kind: Literal["name", "line"]) -> Markup:
    """Return a text that a page breaks where its parts meet, and nowhere in ``[0-3]``."""
    joint, inside = _JOINTS[kind]
    pieces = (
        inside.split(part) if len(part) > _LONG else [part] for part in joint.split(printable(text))
    )
    parts = itertools.chain.from_iterable(pieces)
    return Markup("<wbr>").join(_WHOLE.format(part) if "-" in part else part for part in parts)


def markup(template: str, **values: object) -> str:
    """Return what a template makes of values."""
    return environment().get_template(template).render(**values)
