"""The roles of tensors."""

from __future__ import annotations

from typing import Literal, get_args

Role = Literal["parameter", "buffer", "gradient", "optimizer", "activation", "input", "other"]

ROLES: tuple[Role, ...] = get_args(Role)
"""Roles of tensors, in the order in which one storage with several is counted."""

BLOCK_ROLES = (*ROLES, "temporary")
"""Roles of a recording's blocks; scratch memory of operators is ``temporary``."""
