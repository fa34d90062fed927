"""Options of models: autocast, checkpoints, offload, compilation, layout, shards."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils import checkpoint as checkpoints

from tensorlens.frameworks.torch.census.names.naming import outermost
from tensorlens.heap import instances
from tensorlens.planning.patches import intercepted
from tensorlens.planning.trials import stage
from tensorlens.planning.trials.jobs import CannotApply
from tensorlens.planning.trials.stage import missing_blocks


class Stage(stage.Stage):
    """A program's models, for options, and the options' notes."""

    def models(self) -> list[torch.nn.Module]:
        """Return the outermost modules with parameters, oldest first.

        Every live module is found, and no code of modules runs.
        """
        found = outermost(instances(torch.nn.Module))
        return [module for module in found if _has_parameters(module)]

    def device_type(self) -> str:
        """Return the device type of the first parameter: ``cuda``, ``cpu``."""
        for model in self.models():
            for parameter in model.parameters():
                return str(parameter.device.type)
        raise CannotApply("no model: no nn.Module with parameters is alive after make_step()")


Option = stage.Option[Stage]
"""A setting of torch that is applied."""


def repeated_blocks(models: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the repeated blocks of models, the outermost of each place.

    A block is a module with children, and one of at least two of its class in a ``ModuleList``,
    ``Sequential`` or ``ModuleDict``.
    """
    lists = torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict
    return stage.repeated_blocks(
        models,
        lambda module: list(module.children()),
        lambda module: isinstance(module, lists),
    )


def cache_configs(models: Sequence[torch.nn.Module]) -> list[Any]:
    """Return the configurations of transformers' models with ``use_cache`` on.

    Each block of such a model fills a cache in forward, which must not be filled twice.
    """
    configs = [vars(module).get("config") for model in models for module in model.modules()]
    on = {id(each): each for each in configs if getattr(each, "use_cache", None) is True}
    return list(on.values())


def stepping_classes() -> list[type]:
    """Return the classes of optimizers that define ``step``."""
    classes: list[type] = torch.optim.Optimizer.__subclasses__()
    for kind in classes:
        # the list grows while it is read
        classes += kind.__subclasses__()
    return [kind for kind in dict.fromkeys(classes) if "step" in vars(kind)]


def _has_parameters(module: torch.nn.Module) -> bool:
    try:
        return next(module.parameters(), None) is not None
    except Exception:
        # not initialised
        return False


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Autocast(Option):
    """Autocast around forward and loss, as in torch's documentation.

    It is left while backward and optimizers run, which frees its cache of cast weights. There is no
    ``GradScaler``: with fp16 small gradients may become zero.
    """

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._context: Any = None
        self._device = ""

    def built(self) -> None:
        """Find the device once: the search takes longer than a small step."""
        self._device = self.stage.device_type()

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Enter autocast, and leave it while backward and optimizers run."""
        self._enter()
        try:
            places = [(torch.autograd, "backward"), (torch.autograd, "grad")]
            places += [(torch.Tensor, "backward"), *((each, "step") for each in stepping_classes())]
            with intercepted(self._outside, *places):
                yield
        finally:
            self._leave()

    def _enter(self) -> None:
        self._context = torch.autocast(self._device, dtype=_DTYPES[self.value])
        self._context.__enter__()

    def _leave(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)

    def _outside(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        if self._context is None:
            return function(*args, **kwargs)
        self._leave()
        try:
            inside = {name: self._inside(each) for name, each in kwargs.items()}
            return function(*map(self._inside, args), **inside)
        finally:
            self._enter()

    def _inside(self, given: Any) -> Any:
        """Wrap an optimizer's closure to run under autocast; return other arguments as they are."""
        if not isinstance(given, types.FunctionType | types.MethodType | functools.partial):
            return given

        def closure() -> Any:
            self._enter()
            try:
                return given()
            finally:
                self._leave()

        return closure


class Checkpoint(Option):
    """Repeated blocks keep their inputs alone, or with ``selective`` results of products as well.

    Each block's ``forward`` runs in ``torch.utils.checkpoint.checkpoint`` (``use_reentrant=False``)
    if gradients are on. ``use_cache`` of transformers' models is switched off: a block would add to
    its cache again in backward.
    """

    def built(self) -> None:
        """Replace the ``forward`` of each block."""
        models = self.stage.models()
        blocks = repeated_blocks(models)
        if not blocks:
            raise missing_blocks(
                "checkpoint",
                models,
                "no list of modules holds two or more blocks of one class that have modules inside",
            )
        configs = cache_configs(models)
        for config in configs:
            config.use_cache = False
        if configs:
            self.stage.notes.append("checkpoint: use_cache=False")
        for block in blocks:
            self._checkpoint(block)
        kinds = ", ".join(sorted({type(block).__name__ for block in blocks}))
        self.stage.notes.append(f"checkpoint: {len(blocks)} blocks ({kinds})")

    def _checkpoint(self, block: torch.nn.Module) -> None:
        forward = block.forward
        context = {"context_fn": _selective} if self.value == "selective" else {}

        @functools.wraps(forward)
        def checkpointed(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            return checkpoints.checkpoint(forward, *args, use_reentrant=False, **context, **kwargs)

        block.forward = checkpointed


class Offload(Option):
    """``torch.autograd.graph.save_on_cpu`` around the step, into pinned memory."""

    def built(self) -> None:
        """Refuse a model on the CPU."""
        if self.stage.device_type() == "cpu":
            raise CannotApply("offload: the tensors are on the CPU already, no accelerator is used")

    def stepping(self) -> AbstractContextManager[Any]:
        """Return the context in which saved tensors go to the host."""
        context: AbstractContextManager[Any] = torch.autograd.graph.save_on_cpu(pin_memory=True)
        return context


class Compile(Option):
    """``model.compile()`` of every model, before the first step."""

    def built(self) -> None:
        """Compile the models, which happens at their first call."""
        if self.stage.estimated:
            raise CannotApply("compile: an estimate runs the step as it is written; measure it")
        options = {} if self.value is True else {"mode": self.value}
        models = self.stage.models()
        if not models:
            raise CannotApply("compile: no nn.Module with parameters is alive after make_step()")
        for model in models:
            model.compile(**options)


class ChannelsLast(Option):
    """Four-dimensional parameters and inputs of every model in ``channels_last``."""

    def built(self) -> None:
        """Convert the parameters, and inputs by a hook."""
        found = False
        for model in self.stage.models():
            if any(parameter.dim() == 4 for parameter in model.parameters()):
                found = True
                model.to(memory_format=torch.channels_last)
                model.register_forward_pre_hook(_in_channels_last)
        if not found:
            raise CannotApply("channels_last: no model has a parameter of four dimensions")


class Shards(Option):
    """``fully_shard`` of every repeated block and of the model, before an optimizer is made.

    For estimates alone: the figures are of one of ``value`` processes, with its own batch.
    """

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._sharded = False
        if not stage.estimated:
            raise CannotApply(f"shards={value} needs {value} processes: it can only be estimated")

    def building(self) -> AbstractContextManager[None]:
        """Shard the models when the first optimizer is made, which gets the shards."""
        return intercepted(self._with_shards, (torch.optim.Optimizer, "__init__"))

    def _with_shards(self, init: Any, optimizer: Any, params: Any, *args: Any, **kw: Any) -> None:
        init(optimizer, self._exchanged(list(params)), *args, **kw)

    def built(self) -> None:
        """Shard the models if no optimizer was made."""
        self._shard()

    def _exchanged(self, params: list[Any]) -> list[Any]:
        """Return parameters or groups with shards in place of whole parameters."""
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
        if not torch.distributed.is_available():
            raise CannotApply("shards need a torch with distributed")
        from torch.distributed.fsdp import fully_shard

        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group()
        models = self.stage.models()
        if not models:
            raise CannotApply("shards: no nn.Module with parameters is alive")
        for block in repeated_blocks(models):
            fully_shard(block)
        for model in models:
            fully_shard(model)


def _in_channels_last(module: Any, args: Any) -> Any:
    return tuple(
        each.contiguous(memory_format=torch.channels_last)
        if isinstance(each, torch.Tensor) and each.dim() == 4
        else each
        for each in args
    )


def _selective() -> Any:
    return checkpoints.create_selective_checkpoint_contexts(_policy)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Save results of matrix products, convolutions and attention; recompute the rest."""
    policy = checkpoints.CheckpointPolicy
    packet = getattr(operator, "overloadpacket", operator)
    name = getattr(packet, "__name__", "")
    return policy.MUST_SAVE if name in _PRODUCTS else policy.PREFER_RECOMPUTE


_PRODUCTS = {
    *("mm", "addmm", "bmm", "baddbmm", "convolution", "_convolution"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention"),
}
