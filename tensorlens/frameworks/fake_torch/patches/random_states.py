"""The states of the CPU's random numbers, which no dispatched operator hands out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from tensorlens.frameworks.fake_torch.patches.replaced_attributes import patched


@contextlib.contextmanager
def random_states() -> Iterator[None]:
    """Count each state while it is there: ``torch.utils.checkpoint`` keeps one for every call."""
    original = torch.random.get_rng_state

    def get_rng_state() -> Any:
        state = original()
        # what is counted goes when the state does, which is real: it may be given to a generator
        state._counted = torch.empty(len(state), dtype=torch.uint8, device="cpu")
        return state

    with (
        patched(torch.random, "get_rng_state", get_rng_state),
        patched(torch, "get_rng_state", get_rng_state),
    ):
        yield
