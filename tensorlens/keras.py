"""``tensorlens.keras``: callbacks for Keras, which is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["MemoryCallback"]

if TYPE_CHECKING:
    from tensorlens.integrations.keras import MemoryCallback


def __getattr__(name: str) -> Any:
    if name != "MemoryCallback":
        raise AttributeError(f"module 'tensorlens.keras' has no attribute {name!r}")
    from tensorlens.integrations.keras import MemoryCallback

    globals()[name] = MemoryCallback
    return MemoryCallback


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
