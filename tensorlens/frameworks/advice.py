"""The calls of each framework that advice tells a person to write."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """The calls of one framework."""

    number: str | None
    """Code that makes a number of the tensor ``{}``; None if the advice is for graphs alone."""
    copy: str
    """Code that copies a view's part, so that the rest is freed."""
    concatenation: str
    unseen: str | None
    """Possible holders of memory that nothing in Python holds."""
    gradients: str
    """Code that frees gradients."""
    activations: str
    """Changes that reduce memory kept for backward."""
    model: str | None = None
    """Advice if the runtime keeps compiled models."""


TORCH = Words(
    number=None,
    copy="a .clone()",
    concatenation="torch.cat",
    unseen=None,
    gradients="zero_grad(set_to_none=True) before the forward pass, unless they add up",
    activations=(
        "a smaller batch, torch.utils.checkpoint, autocast; torch.no_grad() where no backward "
        "follows"
    ),
)
TENSORFLOW = Words(
    number="float({})",
    # tf.identity() shares the memory
    copy=".numpy(), a copy,",
    concatenation="tf.concat",
    unseen="TensorFlow's runtime: a graph's constants, a queue, a table, buffers of a dataset",
    gradients="del the list of them before the next forward pass, unless they add up",
    activations=(
        "a smaller batch, keras.remat() or tf.recompute_grad(), the mixed_float16 or "
        "mixed_bfloat16 policy; no GradientTape where no gradients follow"
    ),
    model=(
        "make the model once, before the loop, and set its weights anew: the functions that were "
        "compiled for it keep its variables, also after clear_session() and gc.collect(); or make "
        "each model in a process of its own"
    ),
)
