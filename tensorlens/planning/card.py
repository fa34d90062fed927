"""Graphics cards: what a program can ask of one, and what its memory depends on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """One model of card."""

    name: str
    """As ``torch.cuda.get_device_name`` gives it."""
    capability: tuple[int, int]
    """Compute capability: (9, 0)."""
    multiprocessors: int
    memory: int
    """Bytes that ``torch.cuda.get_device_properties`` gives as its total memory."""
    is_nominal: bool = False
    """Whether the memory is what the data sheet names, as no reading of a card is known."""
    is_assumed: bool = False
    """Whether it stands for a card that nobody named."""


H100 = Card("NVIDIA H100 80GB HBM3", (9, 0), 132, 85_029_158_912)
"""SXM5, 80 GB."""
