"""Values that a program reads from tensors without data.

A value that follows from the program alone is exact. Any other is assumed, with one warning for
each line: numbers are 1, comparisons hold, nothing is infinite or not a number, and a selection by
a condition takes every element.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tensorlens.planning.patches import patched
from tensorlens.planning.torch.operators import (
    accumulation,
    cuda_kernels,
    data_sizes,
    losses,
    recurrent,
)
from tensorlens.planning.torch.operators.constants import (
    MAX_ELEMENTS,
    attached,
    compute,
    constant_of,
)
from tensorlens.planning.torch.operators.value_rules import rules
from tensorlens.planning.trace import caution

_MAX_READS = 100
"""Reads of a value by one line after which the answer changes, to end a loop that waits for it."""

_MAX_READS_OF_TORCH = 3
"""The same for lines of torch itself: ``trunc_normal_`` draws until every value is in range."""

_aten = torch.ops.aten


@contextlib.contextmanager
def value_patches() -> Iterator[None]:
    """Give fake tensors values, exact or assumed, while entered."""
    answers = ValueAnswers()
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(FakeTensorMode, "dispatch", answers.dispatch))
        for name, method in _methods(answers.scalar).items():
            stack.enter_context(patched(FakeTensor, name, method))
        stack.enter_context(losses.loss_patches())
        yield


class ValueAnswers:
    """Wraps ``FakeTensorMode.dispatch``: asks handlers first, and keeps known values."""

    def __init__(self) -> None:
        self._reads: Counter[tuple[int, int]] = Counter()
        """Reads of assumed values, by code object and instruction."""
        original, value_rules = FakeTensorMode.dispatch, rules()
        answers: dict[Any, Callable[..., Any]] = {
            _aten._local_scalar_dense.default: lambda mode, func, x: self.scalar(x),
            _aten.item.default: lambda mode, func, x: self.scalar(x),
            _aten.equal.default: _equal,
            _aten.allclose.default: _compare,
            _aten.is_nonzero.default: lambda mode, func, x: bool(self.scalar(x)),
            **data_sizes.ANSWERS,
            **losses.ANSWERS,
            **recurrent.ANSWERS,
            **cuda_kernels.ANSWERS,
            **accumulation.ANSWERS,
        }
        # it writes a flag, which keeps its value: nothing is infinite
        finite_check = _aten._amp_foreach_non_finite_check_and_unscale_.default

        def dispatch(
            mode: Any, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            answer = answers.get(func)
            if answer is not None:
                result = answer(mode, func, *args, **kwargs)
                if result is not NotImplemented:
                    return result
            result = original(mode, func, types, args, kwargs)
            if result is NotImplemented or func is finite_check:
                return result
            rule = value_rules.get(func)
            first: Any = args[0] if args else None
            if rule is None and type(first) is FakeTensor and attached(first) is None:
                if first.constant is None:
                    # most operators: no values of an argument, so none of the result
                    return result
            compute(func, args, kwargs, result)
            if rule is not None:
                rule.apply(result, args, kwargs)
            return result

        self.dispatch = dispatch

    def scalar(self, tensor: Any) -> Any:
        """Return the value of a tensor of one element."""
        if tensor.numel() != 1:
            raise RuntimeError(
                f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar"
            )
        constant = constant_of(tensor)
        if constant is not None:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                value = constant.tensor.item()
            if not constant.state.assumed:
                return value
        else:
            value = _assumed_value(tensor.dtype)
        frame = _program_frame(sys._getframe(1))
        is_torch = frame.f_code.co_filename.startswith(_TORCH)
        if self._is_waiting_loop(frame, _MAX_READS_OF_TORCH if is_torch else _MAX_READS):
            value = type(value)(not value)
        # torch's own checks need no warning
        if not (tensor.dtype is torch.bool and is_torch):
            _warn_of_value(value, tensor.dtype)
        return value

    def _is_waiting_loop(self, frame: FrameType, limit: int) -> bool:
        """Tell whether a line has read a value so often that it seems to wait for another one."""
        key = id(frame.f_code), frame.f_lasti
        self._reads[key] += 1
        if self._reads[key] <= limit:
            return False
        self._reads[key] = 0
        return True


def _warn_of_value(value: Any, dtype: Any) -> None:
    if dtype is torch.bool:
        what = f"whether something holds, which depends on data: it was taken as {value}"
    elif dtype.is_floating_point or dtype.is_complex:
        what = "the value of a tensor, which depends on data: it was given 1.0 or the like"
    else:
        what = "a whole number that depends on data: it was given a likely one"
    caution(f"the program asks for {what}; what it decides by it may take more or less memory")


def _equal(mode: Any, func: Any, one: Any, other: Any) -> bool:
    if one is other or one.shape != other.shape:
        return one is other
    return _compare(mode, func, one, other)


def _compare(mode: Any, func: Any, one: Any, other: Any, *args: Any, **kwargs: Any) -> bool:
    mine, theirs = constant_of(one), constant_of(other)
    if mine is not None and theirs is not None:
        with torch._C._DisableTorchDispatch():
            return bool(func(mine.tensor, theirs.tensor, *args, **kwargs))
    caution("two tensors are compared, which depends on data: they were taken as equal")
    return True


def _assumed_value(dtype: Any) -> Any:
    if dtype.is_complex:
        return 1 + 0j
    if dtype.is_floating_point:
        return 1.0
    return True if dtype is torch.bool else 1


_TORCH = str(Path(torch.__file__).parent) + os.sep
_BETWEEN = (
    str(Path(__file__).parents[2]) + os.sep,
    *(_TORCH + name for name in ("_subclasses", "_dynamo", "utils", "_ops", "_compile", "_tensor")),
)
"""Folders and files whose frames lie between the line that reads a value and the answer."""


def _program_frame(frame: FrameType) -> FrameType:
    """Return the frame that reads a value: the program's, or one of torch's own code."""
    while frame.f_code.co_filename.startswith(_BETWEEN) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _methods(scalar: Callable[[Any], Any]) -> dict[str, Any]:
    """Return methods of fake tensors by name; ``scalar`` returns the value of one element."""

    def tolist(tensor: Any) -> Any:
        if tensor.dim() == 0:
            return scalar(tensor)
        constant = constant_of(tensor)
        if constant is None or constant.state.assumed:
            _warn_of_values(tensor)
        if constant is not None:
            with torch._C._DisableTorchDispatch():
                return constant.tensor.tolist()
        return _nested(tensor.shape, _assumed_value(tensor.dtype))

    def numpy(tensor: Any, *, force: bool = False) -> Any:
        if tensor.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. "
                "Use tensor.detach().numpy() instead."
            )
        constant = constant_of(tensor)
        with torch._C._DisableTorchDispatch():
            if constant is not None:
                if constant.state.assumed:
                    _warn_of_values(tensor)
                return constant.tensor.detach().clone().numpy()
            _warn_of_values(tensor)
            make = torch.ones if tensor.numel() <= MAX_ELEMENTS else torch.zeros
            return make(tensor.shape, dtype=tensor.dtype, device="cpu").numpy()

    def format_value(tensor: Any, form: str) -> str:
        if form and tensor.dim() == 0:
            return format(scalar(tensor), form)
        return object.__format__(tensor, form)

    def data_ptr(tensor: Any) -> int:
        # one number for each storage: programs recognize shared weights by it
        offset = tensor.storage_offset() * tensor.element_size()
        return int(tensor.untyped_storage()._cdata + offset)

    return {"tolist": tolist, "numpy": numpy, "__format__": format_value, "data_ptr": data_ptr}


def _warn_of_values(tensor: Any) -> None:
    caution(
        f"the program asks for the {tensor.numel():,} values of a tensor, which depend on data: "
        "it was given made-up ones; what it decides by them may take more or less memory"
    )


def _nested(shape: Any, value: Any) -> Any:
    """Return nested lists of this shape that hold one value."""
    if len(shape) == 1:
        return [value] * shape[0]
    return [_nested(shape[1:], value) for _ in range(shape[0])]
