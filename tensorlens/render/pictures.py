"""A timeline as a picture, in units that a page stretches to its width, and its colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
"""The roles in the order that a timeline stacks them: lasting memory at the bottom."""

# no colour of a role: one legend has both
PHASE_COLOURS = {
    "forward": "#2fa8b8",
    "backward": "#7d5bd0",
    "optimizer": "#8a5a2b",
    "other": "none",
}


def role_colour(role: str) -> str:
    """Return the colour of a role; that of ``other`` if the role is unknown."""
    return ROLE_COLOURS.get(role, ROLE_COLOURS["other"])


WIDTH, HEIGHT = 100_000, 1000
"""Units of the picture."""


@dataclass(frozen=True, slots=True)
class Area:
    """One role's bytes on top of those of the roles before it."""

    role: str
    colour: str
    path: str
    """SVG path from the bottom up to the sum; earlier roles are drawn over it."""


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a place of the picture, in percent of its width or height."""

    text: str
    at: str


@dataclass(frozen=True, slots=True)
class Band:
    """A phase below the picture: its start and width, in the picture's units."""

    phase: str
    colour: str
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class Picture:
    """Bytes over time, stacked by role; pages draw it, text leaves it out."""

    width: ClassVar[int] = WIDTH
    height: ClassVar[int] = HEIGHT

    label: str
    """Description in words."""
    areas: tuple[Area, ...]
    reserved: str
    """SVG path of the reserved bytes; empty if unknown."""
    grid: tuple[Label, ...]
    ticks: tuple[Label, ...]
    marks: tuple[int, ...]
    """Positions of the marks, in the picture's units; none if they are too many."""
    mark_labels: tuple[Label, ...]
    bands: tuple[Band, ...]
    peak_x: str
    peak_y: str
    dropped: str
    """Note on dropped events before the picture; empty if there are none."""
    dropped_peak: Label | None
    """Peak of the dropped events, if it is higher than the picture's."""
    begin: int
    """Nanoseconds or number of the event at the left edge, see ``by_time``."""
    span: int
    """Nanoseconds or events from the left edge to the right one."""
    xs: tuple[int, ...]
    """Position of each point of the timeline, in the picture's units."""
    by_time: bool
    """Whether the axis is time; else it is the number of the event."""
    is_live: bool = False
    """Whether a script lets the reader choose an instant."""

    @property
    def phases(self) -> dict[str, str]:
        """The phases that occur, and their colours."""
        shown = {band.phase for band in self.bands}
        return {phase: colour for phase, colour in PHASE_COLOURS.items() if phase in shown}
