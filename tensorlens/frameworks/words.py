"""How a framework's users write what advice tells them to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """The calls of one framework."""

    number: str | None
    """Makes a number of a tensor called ``{}``; None where that is told of graphs alone."""
    copy: str
    """What to keep of a view so that the rest is freed."""
    concatenation: str
    tape: str | None
    """What to do with what recorded operations for gradients; None where tensors do that."""
    unseen: str | None
    """What may hold memory that nothing in Python holds."""


TORCH = Words(number=None, copy="a .clone()", concatenation="torch.cat", tape=None, unseen=None)
TENSORFLOW = Words(
    number="float({})",
    # tf.identity() shares the memory
    copy=".numpy(), a copy,",
    concatenation="tf.concat",
    tape=(
        "keep the gradients and not the GradientTape: what it recorded lives as long as it does, "
        "with persistent=True after gradient() too"
    ),
    unseen="TensorFlow's runtime: a graph's constants, a queue, a table, buffers of a dataset",
)
