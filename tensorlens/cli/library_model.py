"""Finds the module of a library that defines the model of a program."""

from __future__ import annotations

import sys
from collections import Counter

from tensorlens.heap import instances
from tensorlens.heap.attributes import is_subtype
from tensorlens.user_code import FRAMEWORKS, is_foreign

_LAYERS = {
    ("torch.nn", "Module"): ("_parameters", "_modules"),
    ("keras", "Layer"): ("_trainable_variables", "_layers"),
}
"""The class of a framework's layers, and the attributes that hold a layer's weights and layers."""


def library_model_module() -> str | None:
    """Return the library module that most layers of the program are defined in, or None.

    Counted are live layers that hold weights or layers; where none is left, the model classes
    that the program's main module has imported. The frameworks' own layers do not count, nor do the
    program's: for a model of transformers it is ``transformers.models.bert.modeling_bert``.
    """
    live: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for (module, name), contents in _LAYERS.items():
        base = getattr(sys.modules.get(module), name, None)
        if not isinstance(base, type):
            continue
        for layer in instances(base):
            if any(getattr(layer, "__dict__", {}).get(each) for each in contents):
                live[type(layer).__module__] += 1
        for item in list(vars(sys.modules["__main__"]).values()):
            if is_subtype(type(item), type) and issubclass(item, base):
                named[item.__module__] += 1
    for count in (live, named):
        for name, _ in count.most_common():
            if _is_library(name):
                return name
    return None


def _is_library(name: str) -> bool:
    filename = getattr(sys.modules.get(name), "__file__", None)
    return bool(filename) and name.partition(".")[0] not in FRAMEWORKS and is_foreign(str(filename))
