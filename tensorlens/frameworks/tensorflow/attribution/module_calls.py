"""Names the Keras layer that a frame calls, and the paths of layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tensorlens.frameworks.base import Root
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.allocator_log import NativeRecorder
from tensorlens.frameworks.host.naming import ModulePath
from tensorlens.frameworks.import_hooks import when_imported
from tensorlens.heap import instances

_LAYERS = "keras.src.layers.layer"


class TensorflowRecorder(NativeRecorder):
    """Records spans of what TensorFlow's tapped allocator hands out; spans may overlap."""

    def __init__(self, allocator: NativeAllocator) -> None:
        super().__init__(allocator)
        self._knows_modules: bool | None = None

    def tell_modules(self) -> None:
        """Let the native part read which layer a frame calls, after a trial, once there is Keras.

        All layers are called by one method, ``Layer.__call__``.
        """
        if self._knows_modules is None:
            probe = _Probe(self._library.tl_trial)
            self._library.tl_module_call(id(_Probe.call.__code__))
            self._knows_modules = self.reads_modules(probe.call, probe)
            self._library.tl_module_call(None)
            if self._knows_modules:
                # a recording may begin first: Keras is imported when its first attribute is read
                when_imported(_LAYERS, self._read_layers)

    def _read_layers(self) -> None:
        call = _call_of_layers()
        self._library.tl_module_call(None if call is None else id(call))


class _Probe:
    """An object whose method is called as a layer is."""

    def __init__(self, allocate: Any) -> None:
        self._allocate = allocate

    def call(self, *arguments: Any, **options: Any) -> None:
        self._allocate()


def _call_of_layers() -> Any:
    """Return the code of ``Layer.__call__`` below its decorators; None without Keras."""
    function: Any = vars(_layer() or object).get("__call__")
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def _layer() -> Any:
    return getattr(sys.modules.get(_LAYERS), "Layer", None)


def module_paths(roots: Sequence[Root] = ()) -> ModulePath:
    """Return what gives the path of a layer that lives now, by its address and type's name."""
    layer = _layer()
    paths: dict[int, tuple[str, str]] = {}
    if layer is not None:
        for item in instances(layer):
            paths[id(item)] = type(item).__name__, _path(item)

    def path(address: int, kind: str) -> str | None:
        known = paths.get(address)
        return known[1] if known is not None and known[0] == kind and known[1] else None

    return path


def _path(layer: Any) -> str:
    """Return the layer's path, its name where it was not built inside of a model."""
    try:
        attributes = object.__getattribute__(layer, "__dict__")
    except AttributeError:
        return ""
    for name in ("_path", "_name", "name"):
        found = attributes.get(name)
        if isinstance(found, str) and found:
            return found
    return ""
