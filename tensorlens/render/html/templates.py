"""The templates of all HTML, and the filters they are written with."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from tensorlens.render.figures import counted, device_names, duration, size
from tensorlens.render.source import place, printable


def percent(part: int, whole: int) -> str:
    """Return a share as CSS has it; ``0%`` of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "0%"


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
    found.filters |= {
        "size": size,
        "duration": duration,
        "devices": device_names,
        "printable": printable,
        "percent": percent,
        "counted": counted,
        "place": lambda line: place(line, function=True),
        "default_zero": lambda count: max(count or 0, 0),
    }
    return found


def markup(template: str, **values: object) -> str:
    """Return what a template makes of values."""
    return environment().get_template(template).render(**values)
