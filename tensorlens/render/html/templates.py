"""The templates of all HTML, and the filter for texts of the program."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from tensorlens.render.source import printable


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
    return found


def markup(template: str, **values: object) -> str:
    """Return what a template makes of values."""
    return environment().get_template(template).render(**values)
