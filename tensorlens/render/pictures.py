"""A timeline as a picture, in units that are stretched to whatever room it has, and its colours."""

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


WIDTH, HEIGHT = 100_000, 1000
"""Units of the picture."""


@dataclass(frozen=True, slots=True)
class Area:
    """One role's bytes on top of those of the roles before it."""

    role: str
    colour: str
    path: str
    """From the picture's floor up to the sum: later areas are drawn over it."""


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a place of the picture, in percent of its width or height."""

    text: str
    at: str


@dataclass(frozen=True, slots=True)
class Band:
    """A phase, below the picture: where it begins and how wide it is, in the picture's units."""

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
    """A line's path; empty where it is not known."""
    grid: tuple[Label, ...]
    ticks: tuple[Label, ...]
    marks: tuple[int, ...]
    """Where the marks are, in the picture's units; none where they are too many."""
    mark_labels: tuple[Label, ...]
    bands: tuple[Band, ...]
    peak_x: str
    peak_y: str
    dropped: str
    """Note on the time before the picture; empty where there is none."""
    dropped_peak: Label | None
    """How high it was there, where that is higher than anything in the picture."""
    begin: int
    """Nanoseconds or number of the event at the left edge, see ``by_time``."""
    span: int
    """Nanoseconds or events from the left edge to the right one."""
    xs: tuple[int, ...]
    """Where each point of the timeline is, in the picture's units."""
    by_time: bool
    """Whether the picture goes by time; else by event."""
    is_live: bool = False
    """Whether a script lets one choose an instant."""

    @property
    def phases(self) -> dict[str, str]:
        """The phases that occur, and their colours."""
        found = {band.phase for band in self.bands}
        return {phase: colour for phase, colour in PHASE_COLOURS.items() if phase in found}
