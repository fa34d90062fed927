"""The option that sets how many batches workers make ahead of the step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from tensorlens.planning.torch.options.stage import CannotApply, Option, Stage, wrapped


class PrefetchFactor(Option):
    """``prefetch_factor`` of every DataLoader with workers, when an iterator over it is made."""

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        if stage.estimated:
            raise CannotApply(
                "what loaders hold ahead is not estimated: measure it, or ask inputs.plan()"
            )
        self._loaders = 0
        self._with_workers = 0

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """Set it while the step is made."""
        return self._setting()

    def stepping(self) -> contextlib.AbstractContextManager[Any]:
        """Set it in steps that go through a loader."""
        return self._setting()

    @contextlib.contextmanager
    def _setting(self) -> Iterator[None]:
        with wrapped(DataLoader, "__iter__", self._set):
            yield

    def _set(self, function: Any) -> Any:
        @functools.wraps(function)
        def __iter__(loader: Any) -> Any:
            self._loaders += 1
            if not loader.num_workers:
                return function(loader)
            self._with_workers += 1
            before = loader.prefetch_factor
            loader.prefetch_factor = self.value
            try:
                return function(loader)
            finally:
                loader.prefetch_factor = before

        return __iter__

    def finished(self) -> None:
        """Say so where no loader has workers."""
        if not self._loaders:
            raise CannotApply("prefetch_factor changes nothing: no DataLoader is iterated over")
        if not self._with_workers:
            raise CannotApply(
                "prefetch_factor changes nothing: no DataLoader has workers, which alone make"
                " batches ahead"
            )
