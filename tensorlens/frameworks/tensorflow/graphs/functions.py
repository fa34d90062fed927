"""The functions that TensorFlow's runtime knows, by name.

``tf.function``s, the bodies of their loops and branches, the functions of datasets and gradient
functions all are in the runtime's library under names of their own. It keeps their definitions
and the stack traces of their nodes, so that no Python object of them is looked for or kept alive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tensorflow.python.eager import context

from tensorlens.frameworks.tensorflow.graphs.bodies import (
    Body,
    LazyFrames,
    from_debug_info,
    from_definition,
)

_OF_EAGER_OPS = "__wrapped__"
_AROUND = re.compile(r"^__(?:inference|forward)_(.*?)_\d+$")
_BACKWARD = re.compile(r"^__inference___backward_(.*?)_\d+(?:_\d+)?$")


class Functions:
    """The functions of the runtime; what was read of one stays known when it is gone."""

    def __init__(self) -> None:
        self._bodies: dict[str, Body | None] = {}

    def names(self) -> frozenset[str]:
        """Return the names of those in the runtime now, as ``__inference_train_step_123``."""
        runtime = _runtime()
        if runtime is None:
            return frozenset()
        try:
            names = runtime.list_function_names()
        except Exception:  # of a TensorFlow that cannot say
            return frozenset()
        return frozenset(_text(name) for name in names if not _text(name).startswith(_OF_EAGER_OPS))

    def body(self, name: str) -> Body | None:
        """Return a function's body; None if there is no such function any more."""
        if name not in self._bodies:
            found = _read(name)
            if found is None:
                return None
            self._bodies[name] = found
        return self._bodies[name]

    def remember(self, name: str) -> None:
        """Read a function and all it calls now, as it may be gone later.

        TensorFlow needs about a tenth of a millisecond a node to tell its frames.
        """
        for body in self.called_by(name):
            body.frames.load()

    def catch_up(self) -> None:
        """Remember the functions of input pipelines made since the last call of this.

        They are small, and gone with their pipeline: those of ``fit`` when it returns.
        """
        for name in self.names() - self._bodies.keys():
            if is_of_dataset(name):
                self.remember(name)

    def called_by(self, name: str) -> Iterator[Body]:
        """Give a function's body, then those of what it calls, directly or not, each once."""
        seen, waiting = {name}, [name]
        while waiting:
            body = self.body(waiting.pop())
            if body is None:
                continue
            yield body
            called = {callee for node in body.nodes.values() for _, callee in node.calls}
            waiting += sorted(called - seen)
            seen |= called

    def known(self) -> frozenset[str]:
        """Return the names of those in the runtime and of those read before."""
        return self.names() | frozenset(self._bodies)

    def compiled(self, name: str) -> bool:
        """Tell whether XLA compiles a function or something that it calls."""
        return any(body.compiled for body in self.called_by(name))


def plain_name(name: str) -> str:
    """Return the name of the Python function: of ``__inference_train_step_123`` ``train_step``."""
    found = _BACKWARD.match(name) or _AROUND.match(name)
    return found[1] if found else name


def is_of_dataset(name: str) -> bool:
    """Tell whether a function is one that an input pipeline applies."""
    return name.startswith("__inference_Dataset_")


def _runtime() -> Any | None:
    """Return TensorFlow's eager context; None as long as the program has not started it."""
    runtime = context.context_safe()
    return runtime if runtime is not None and runtime._initialized else None


def _read(name: str) -> Body | None:
    runtime = _runtime()
    try:
        if runtime is None or not runtime.has_function(name):
            return None
        definition = runtime.get_function_def(name)
    except Exception:  # it died meanwhile
        return None
    frames = LazyFrames(lambda: from_debug_info(runtime.get_graph_debug_info(name)))
    return from_definition(definition, frames)


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
