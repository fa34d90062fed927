"""Configurations of layers with another policy of dtypes."""

from __future__ import annotations

from typing import Any


def with_dtype(configuration: Any, policy: str) -> Any:
    """Return a configuration in which each layer has this policy, ``"mixed_float16"`` say."""
    if isinstance(configuration, dict):
        if configuration.get("class_name") in ("DTypePolicy", "Policy"):
            inner = configuration.get("config")
            if isinstance(inner, dict):
                return {**configuration, "config": {**inner, "name": policy}}
        return {key: with_dtype(each, policy) for key, each in configuration.items()}
    if isinstance(configuration, list):
        return [with_dtype(each, policy) for each in configuration]
    if isinstance(configuration, tuple):
        return tuple(with_dtype(each, policy) for each in configuration)
    return configuration
