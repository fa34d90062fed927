"""Pickles functions for another process; tensors that they refer to are sent as shapes.

Objects that the other process can import are pickled by name, others by value.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from tensorlens.errors import UsageError
from tensorlens.guards import one_line


def pack(function: Callable[..., Any], *, with_data: bool = False) -> bytes:
    """Pickle a function for :func:`unpack`, without importing torch.

    Tensors that it refers to are sent without their values, unless ``with_data``.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    # the program may have registered it itself
    by_value = (
        module is not None
        and module.__name__ not in ("__main__", *cloudpickle.list_registry_pickle_by_value())
        and not _is_importable(module)
    )
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    stream = io.BytesIO()
    try:
        (_Pickler if with_data else _ShapePickler)(stream).dump(function)
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise UsageError(
            f"{name} cannot go to a process of its own: {one_line(error)}; "
            'build everything inside of it, or give it as "module:function"'
        ) from None
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return stream.getvalue()


def unpack(parcel: bytes) -> Callable[..., Any]:
    """Return a packed function; under a fake tensor mode its tensors are fake."""
    function: Callable[..., Any] = cloudpickle.loads(parcel)
    return function


def _is_importable(module: ModuleType) -> bool:
    try:
        found = importlib.util.find_spec(module.__name__)
    except (ImportError, ValueError, AttributeError):
        return False
    file = getattr(module, "__file__", None)
    if found is None or found.origin is None or file is None:
        return found is not None
    return Path(found.origin).resolve() == Path(file).resolve()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps the file names of code, which cloudpickle drops from 3.1.3 on."""

    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, CodeType):
            _, arguments = self.dispatch_table[CodeType](item)
            return _code, (item.co_filename, arguments)
        return super().reducer_override(item)


def _code(filename: str, arguments: tuple[Any, ...]) -> CodeType:
    return CodeType(*arguments).replace(co_filename=filename)


class _ShapePickler(_Pickler):
    """Pickles tensors as their shapes."""

    def reducer_override(self, item: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(item, torch.Tensor) or item.layout != torch.strided:
            return super().reducer_override(item)
        return without_data(item), ()


def without_data(tensor: Any) -> partial[Any]:
    """Return a partial that makes a tensor like this one; its ``keywords`` have the device."""
    options = {name: getattr(tensor, name) for name in ("dtype", "device", "requires_grad")}
    is_parameter = isinstance(tensor, sys.modules["torch"].nn.Parameter)
    return partial(empty_tensor, is_parameter, tuple(tensor.shape), tensor.stride(), **options)


def empty_tensor(is_parameter: bool, *shape: Any, requires_grad: bool, **options: Any) -> Any:
    """Return an uninitialised tensor, as described by :func:`without_data`."""
    import torch

    tensor = torch.empty_strided(*shape, **options)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
