"""Names of a package that are imported when they are first used, as in SPEC 1 of Scientific Python.

A room's ``__init__.py`` attaches the names that tests import, so that tests do not depend on its
files. Rooms import each other's modules by their full names, so that tools see the dependencies.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def attach(package: str, names: Mapping[str, Sequence[str]]) -> None:
    """Give a package names of its modules, imported on first use.

    Args:
        package: ``__name__`` of the package's ``__init__.py``.
        names: module, relative to the package, to the names taken from it. Without names the
            module itself is attached, under the last part of its name.
    """
    homes = {
        name: (f"{package}.{module}", name if offered else None)
        for module, offered in names.items()
        for name in offered or (module.rpartition(".")[2],)
    }
    namespace = vars(sys.modules[package])

    def lookup(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, attribute = homes[name]
        module = importlib.import_module(home)
        value = module if attribute is None else getattr(module, attribute)
        namespace[name] = value
        return value

    namespace["__getattr__"] = lookup
    namespace["__dir__"] = lambda: sorted({*namespace, *homes})
