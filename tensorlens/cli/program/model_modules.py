"""The library module that a program's model is defined in."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from tensorlens.heap import instances
from tensorlens.user_code import FRAMEWORKS, is_foreign

_BASES = (
    ("torch.nn", "Module", ("_parameters", "_modules")),
    ("keras", "Layer", ("_trainable_variables", "_layers")),
)
"""The class of a framework's layers, and the attributes that hold a layer's weights and layers."""


def library_model_module() -> str | None:
    """Return the library module that most layers of the program are defined in, or None.

    Counted are live layers that hold weights or layers; where none is left, the model classes
    that the program's main module has imported. The frameworks' own layers do not count, nor do the
    program's: for a model of transformers it is ``transformers.models.bert.modeling_bert``.
    """
    live = Counter(filter(_is_library, _modules_of_layers()))
    named = Counter(filter(_is_library, _modules_of_main()))
    return next((name for count in (live, named) for name, _ in count.most_common(1)), None)


def _bases() -> Iterator[tuple[type, tuple[str, ...]]]:
    for module, name, contents in _BASES:
        base = getattr(sys.modules.get(module), name, None)
        if isinstance(base, type):
            yield base, contents


def _modules_of_layers() -> Iterator[str]:
    for base, contents in _bases():
        for layer in instances(base):
            if any(getattr(layer, "__dict__", {}).get(name) for name in contents):
                yield str(type(layer).__module__)


def _modules_of_main() -> Iterator[str]:
    kinds = tuple(base for base, _ in _bases())
    for item in list(vars(sys.modules["__main__"]).values()):
        if isinstance(item, type) and issubclass(item, kinds):
            yield str(item.__module__)


def _is_library(name: str) -> bool:
    filename = getattr(sys.modules.get(name), "__file__", None)
    return bool(filename) and name.partition(".")[0] not in FRAMEWORKS and is_foreign(str(filename))
