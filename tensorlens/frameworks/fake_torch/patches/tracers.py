"""Libraries that act otherwise on fake tensors, as when a compiler traces them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tensorlens.frameworks.fake_torch.patches.imports import on_import
from tensorlens.frameworks.fake_torch.patches.replaced_attributes import patched

_QUESTIONS = {"transformers.utils.import_utils": "is_fake_tensor"}
"""Module to its function that tells whether a tensor is fake: transformers builds a mask then that
it leaves out where the values show that nothing is masked."""


@contextlib.contextmanager
def not_tracing() -> Iterator[None]:
    """Let such libraries take fake tensors for real ones, whose values they look at."""
    with contextlib.ExitStack() as stack:

        def change(module: ModuleType) -> None:
            name = _QUESTIONS[module.__name__]
            if hasattr(module, name):
                stack.enter_context(patched(module, name, _no))

        stack.enter_context(on_import(dict.fromkeys(_QUESTIONS, change)))
        yield


def _no(tensor: Any) -> bool:
    return False
