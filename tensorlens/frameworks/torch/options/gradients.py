"""Gradients: freed or zeroed between steps, and added up over parts of a batch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from tensorlens.frameworks.torch.options.stage import (
    CannotApply,
    Option,
    Stage,
    Step,
    stepping_classes,
    wrapped,
)


class SetToNone(Option):
    """``zero_grad()`` of optimizers and modules, with ``set_to_none`` as it is wanted."""

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._calls = 0

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Exchange ``zero_grad`` of both classes."""
        with (
            wrapped(torch.optim.Optimizer, "zero_grad", self._forced),
            wrapped(torch.nn.Module, "zero_grad", self._forced),
        ):
            yield

    def _forced(self, function: Any) -> Any:
        @functools.wraps(function)
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            return function(owner, set_to_none=self.value)

        return zero_grad

    def finished(self) -> None:
        """Say so where nothing called it."""
        if not self._calls:
            raise CannotApply("set_to_none changes nothing: the step calls no zero_grad()")


class Accumulate(Option):
    """The step run in parts: the optimizer steps once, with the mean of their gradients.

    ``make_step`` is called with a part of the batch.
    """

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        if stage.batch is None:
            raise CannotApply("accumulate needs a batch: compare(..., batch=32), make_step(batch)")
        if stage.batch % value:
            raise CannotApply(f"a batch of {stage.batch} is not {value} equal parts")
        self._part = 0
        self._stepped = False
        self._optimizer_steps = 0
        stage.batch //= value

    def around(self, step: Step) -> Step:
        """Run it as many times as there are parts, and return the mean of what it returns."""

        def in_parts() -> Any:
            values = []
            with (
                wrapped(torch.optim.Optimizer, "zero_grad", self._only_once),
                _optimizer_steps(self),
            ):
                for part in range(self.value):
                    self._part, self._stepped = part, False
                    values.append(_number(step()))
            known = [value for value in values if value is not None]
            return sum(known) / len(known) if len(known) == len(values) else None

        return in_parts

    def _only_once(self, function: Any) -> Any:
        @functools.wraps(function)
        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            is_first = self._part == 0 and not self._stepped
            is_last = self._part == self.value - 1 and self._stepped
            return function(optimizer, *args, **kwargs) if is_first or is_last else None

        return zero_grad

    def may_step(self, optimizer: Any) -> bool:
        """Tell whether the optimizer is to step now, with its gradients made their mean."""
        self._stepped = True
        self._optimizer_steps += 1
        if self._part < self.value - 1:
            return False
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(self.value)
        return True

    def finished(self) -> None:
        """Say so where no optimizer stepped: nothing was accumulated."""
        if not self._optimizer_steps:
            raise CannotApply("accumulate changes nothing: the step calls no optimizer")


@contextlib.contextmanager
def _optimizer_steps(option: Accumulate) -> Iterator[None]:
    """Let every class of optimizers ask before it steps."""

    def asking(function: Any) -> Any:
        @functools.wraps(function)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return function(optimizer, *args, **kwargs) if option.may_step(optimizer) else None

        return step

    with contextlib.ExitStack() as stack:
        for kind in stepping_classes():
            stack.enter_context(wrapped(kind, "step", asking))
        yield


def _number(value: Any) -> float | None:
    from tensorlens.frameworks.torch.options.losses import loss_of

    return loss_of(value)
