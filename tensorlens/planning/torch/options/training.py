"""Options of the training loop: optimizers, gradients, prefetched batches."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from tensorlens.guards import one_line
from tensorlens.planning.patches import accepted, exchanging, intercepted
from tensorlens.planning.torch.options.models import Option, Stage, stepping_classes
from tensorlens.planning.trials.jobs import CannotApply
from tensorlens.planning.trials.stage import Step
from tensorlens.planning.trials.step_runner import loss_of

_KEPT = ("lr", "betas", "eps", "weight_decay", "momentum")
"""Arguments that the other optimizer gets too, if it takes them."""
_IMPLEMENTATIONS = ("fused", "foreach")


class Optimizers(Option):
    """The class and arguments of every optimizer that the program makes.

    ``value`` has ``optimizer``, ``fused``, ``foreach``, or some of them. Parameters and groups
    stay, and so do lr, betas, eps, weight_decay and momentum if the class takes them.
    """

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._kind = _optimizer_class(value.get("optimizer"), stage)
        self._extra = {name: value[name] for name in _IMPLEMENTATIONS if name in value}

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Replace the optimizers that are made."""
        with exchanging(torch.optim.Optimizer, self._replacement):
            yield
        if not self.use_count:
            raise CannotApply("make_step() makes no optimizer of torch: there is none to change")

    def _replacement(self, cls: type, given: dict[str, Any]) -> Any:
        kind = self._kind or cls
        wanted = _arguments(kind, given, self._extra, same=kind is cls)
        made: Any = object.__new__(kind)
        _initialise(made, given, wanted)
        self.count_use()
        return made


def _optimizer_class(name: str | None, stage: Stage) -> type | None:
    if name != "adam8bit":
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        return None if name is None else kinds[name]
    if importlib.util.find_spec("bitsandbytes") is None:
        raise CannotApply("adam8bit needs bitsandbytes, which is not installed")
    if stage.estimated:
        raise CannotApply("adam8bit runs kernels of bitsandbytes: it can only be measured")
    import bitsandbytes

    found: type = bitsandbytes.optim.Adam8bit
    return found


def _arguments(kind: type, given: dict[str, Any], extra: dict[str, Any], same: bool) -> Any:
    """Return the arguments of the class to make, without its parameters."""
    takes = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    for name in extra:
        if name not in takes:
            raise CannotApply(f"{kind.__name__} takes no {name}")
    wanted = accepted(kind, given, tuple(given) if same else _KEPT)
    wanted.pop("params", None)
    return {**wanted, **extra}


def _initialise(made: Any, given: dict[str, Any], wanted: dict[str, Any]) -> None:
    params = given.get("params")
    if params is None:
        # an optimizer of the program's own may call its first argument otherwise
        params = next(iter(given.values()))
    try:
        type(made).__init__(made, params, **wanted)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        refused = next((name for name in _IMPLEMENTATIONS if wanted.get(name)), None)
        if refused is None:
            raise
        raise CannotApply(f"{refused}: torch refuses it here: {one_line(error, 200)}") from None


class SetToNone(Option):
    """``set_to_none`` of ``zero_grad()`` of optimizers and modules."""

    unused = "set_to_none changes nothing: the step calls no zero_grad()"

    def stepping(self) -> contextlib.AbstractContextManager[None]:
        """Replace ``zero_grad`` of both classes."""
        owners = torch.optim.Optimizer, torch.nn.Module
        return intercepted(self._with_value, *((owner, "zero_grad") for owner in owners))

    def _with_value(self, zero_grad: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
        self.count_use()
        return zero_grad(owner, set_to_none=self.value)


class Accumulate(Option):
    """The step in parts: the optimizer steps once, with the mean of their gradients.

    ``make_step`` is called with a part of the batch.
    """

    unused = "accumulate changes nothing: the step calls no optimizer"

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        if stage.batch is None:
            raise CannotApply("accumulate needs a batch: give one, and a make_step(batch)")
        if stage.batch % value:
            raise CannotApply(f"a batch of {stage.batch} is not {value} equal parts")
        self._part = 0
        self._stepped = False
        stage.batch //= value

    def around(self, step: Step) -> Step:
        """Return a step that runs all parts and returns the mean of their losses."""

        def in_parts() -> Any:
            values = []
            steps = ((kind, "step") for kind in stepping_classes())
            owners = torch.optim.Optimizer, torch.nn.Module
            with (
                intercepted(self._zero_grad, *((owner, "zero_grad") for owner in owners)),
                intercepted(self._step, *steps),
            ):
                for part in range(self.value):
                    self._part, self._stepped = part, False
                    result = step()
                    values.append(None if self.stage.estimated else loss_of(result))
            known = [value for value in values if value is not None]
            return sum(known) / len(known) if len(known) == len(values) else None

        return in_parts

    def _zero_grad(self, zero_grad: Any, *args: Any, **kwargs: Any) -> Any:
        """Call it in the first part before the optimizer steps, in the last part after that."""
        is_first = self._part == 0 and not self._stepped
        is_last = self._part == self.value - 1 and self._stepped
        return zero_grad(*args, **kwargs) if is_first or is_last else None

    def _step(self, step: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Let the optimizer step in the last part alone, with the mean of gradients."""
        if any(map(callable, (*args, *kwargs.values()))):
            raise CannotApply(
                "accumulate: the optimizer is given a closure, which runs forward itself"
            )
        self._stepped = True
        self.count_use()
        if self._part < self.value - 1:
            return None
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(self.value)
        return step(optimizer, *args, **kwargs)


class PrefetchFactor(Option):
    """``prefetch_factor`` of every DataLoader with workers, set when it is iterated over."""

    unused = "prefetch_factor changes nothing: no DataLoader is iterated over"

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        if stage.estimated:
            raise CannotApply(
                "what loaders hold ahead is not estimated: measure it, or ask inputs.plan()"
            )
        self._with_workers = 0

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """Set it while the step is made, and in steps."""
        return intercepted(self._set, (DataLoader, "__iter__"))

    stepping = building

    def _set(self, function: Any, loader: Any) -> Any:
        self.count_use()
        if not loader.num_workers:
            return function(loader)
        self._with_workers += 1
        before = loader.prefetch_factor
        loader.prefetch_factor = self.value
        try:
            return function(loader)
        finally:
            loader.prefetch_factor = before

    def finished(self) -> None:
        """Refuse if no loader has workers."""
        super().finished()
        if not self._with_workers:
            raise CannotApply(
                "prefetch_factor changes nothing: no DataLoader has workers, which alone make"
                " batches ahead"
            )
