"""What tensors are for."""

from __future__ import annotations

ROLES = ("parameter", "buffer", "gradient", "optimizer", "activation", "input", "other")
"""What a tensor is for, in the order in which one storage with several is counted."""

BLOCK_ROLES = (*ROLES, "temporary")
"""The roles of a recording's blocks: what an operator took for itself is temporary."""
