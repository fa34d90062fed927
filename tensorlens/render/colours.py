"""The colours of roles and phases, which read on light and on dark ground."""

from __future__ import annotations

ROLE_COLOURS = {
    "parameter": "#4e79c5",
    "buffer": "#7fa7c9",
    "gradient": "#b07aa1",
    "optimizer": "#3d9970",
    "activation": "#de8b2c",
    "input": "#c9b458",
    "other": "#8c8c8c",
    "temporary": "#c56a5c",
    # parts of an estimate's peak
    "gradient of activations": "#d3a4c4",
    "workspace": "#a0522d",
    "remainder": "#a8a8a8",
}

STACKED = (
    *("parameter", "buffer", "optimizer", "gradient"),
    *("activation", "input", "other", "temporary"),
)
"""The roles as a timeline stacks them: what stays at the bottom."""

# none of them is a role's: both stand in one legend
PHASE_COLOURS = {
    "forward": "#2fa8b8",
    "backward": "#7d5bd0",
    "optimizer": "#8a5a2b",
    "other": "none",
}


def role_colour(role: str) -> str:
    """Return the colour of a role; one that is unknown has that of ``other``."""
    return ROLE_COLOURS.get(role, ROLE_COLOURS["other"])
