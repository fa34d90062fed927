"""FSDP2: each process holds its share of parameters, gradients and optimizer state."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from tensorlens.planning.torch.options.stage import (
    CannotApply,
    Option,
    Stage,
    repeated_blocks,
)


class Shards(Option):
    """``fully_shard`` of every repeated block and of the model, before an optimizer is made.

    It is only estimated: the figures are of one process of so many, with its own batch.
    """

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._sharded = False
        if not stage.estimated:
            raise CannotApply(f"shards={value} needs {value} processes: it can only be estimated")

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Shard when the first optimizer is made, and give it the shards."""
        kind = torch.optim.Optimizer
        init = kind.__init__

        @functools.wraps(init)
        def with_shards(optimizer: Any, params: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, self._exchanged(list(params)), *args, **kwargs)

        kind.__init__ = with_shards
        try:
            yield
        finally:
            kind.__init__ = init

    def built(self) -> None:
        """Shard where no optimizer was made."""
        self._shard()

    def _exchanged(self, params: list[Any]) -> list[Any]:
        """Return parameters or groups, with shards in the place of whole parameters."""
        places = {
            id(parameter): (module, name)
            for model in self.stage.models()
            for module in model.modules()
            for name, parameter in module.named_parameters(recurse=False)
        }
        self._shard()

        def shard(item: Any) -> Any:
            place = places.get(id(item))
            return item if place is None else getattr(*place)

        found: list[Any] = []
        for item in params:
            if isinstance(item, dict):
                own = item["params"]
                listed = [own] if isinstance(own, torch.Tensor) else list(own)
                found.append({**item, "params": [shard(each) for each in listed]})
            elif isinstance(item, tuple):
                found.append((item[0], shard(item[1])))
            else:
                found.append(shard(item))
        return found

    def _shard(self) -> None:
        if self._sharded:
            return
        self._sharded = True
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:
            raise CannotApply("shards need FSDP2: torch 2.6 or later, with distributed") from None
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group()
        models = self.stage.models()
        if not models:
            raise CannotApply("shards: no nn.Module with parameters is alive")
        for block in repeated_blocks(models):
            fully_shard(block)
        for model in models:
            fully_shard(model)
