"""An object that has what it is given."""

from __future__ import annotations

from typing import Any


class StandIn:
    """Stands in for a module or an object of a CUDA build; compared and hashed by identity."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        # only reached for what was not given
        raise AttributeError(f"{name} cannot be had from a card that is not there")
