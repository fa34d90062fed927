"""Names of a package that are imported when they are first used, as in SPEC 1 of Scientific Python.

A room's ``__init__.py`` attaches what the room offers to whoever stands outside: the tests do not
know its files, so that a file may move. Rooms of this package name each other's modules, so that
tools see who needs what.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def attach(package: str, names: Mapping[str, Sequence[str]]) -> None:
    """Let a package have names of its modules, each imported when it is first asked for.

    Args:
        package: the package's name, ``__name__`` of its ``__init__.py``.
        names: module, relative to the package, to what is offered of it. With no names it is the
            module itself, under the last part of its name.
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
