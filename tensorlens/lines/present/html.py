"""Line reports as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorlens.lines.present.layout import (
    GRAPH_COLUMNS,
    GRAPHS,
    Entry,
    FunctionLayout,
    device_header,
    devices_of,
    layouts,
)
from tensorlens.render.html.templates import environment, percent

if TYPE_CHECKING:
    from tensorlens.records.lines import LineReport


def line_fragment(report: LineReport) -> str:
    """Return the report as one ``<div>``."""
    functions = layouts(report)
    return (
        environment()
        .get_template("lines.html")
        .render(
            report=report,
            header=device_header(report),
            called=[(function, _Bars.of(function)) for function in functions if function.body],
            uncalled=[function for function in functions if not function.body],
            several=len(devices_of(report)) > 1,
            about_graphs=GRAPHS,
            of_graphs=GRAPH_COLUMNS,
        )
    )


@dataclass(frozen=True, slots=True)
class _Bars:
    """The lengths of a function's bars, in percent of their cells.

    A device's peaks are measured against its highest; its nets start from an axis that leaves
    room to the left for the largest release and to the right for the largest growth.
    """

    peaks: Mapping[str, int]
    growths: Mapping[str, int]
    releases: Mapping[str, int]

    @classmethod
    def of(cls, function: FunctionLayout) -> _Bars:
        peaks: dict[str, int] = {}
        growths: dict[str, int] = {}
        releases: dict[str, int] = {}
        for entry in function.entries:
            net = entry.memory.net or 0
            for name in entry.devices:
                peaks[name] = max(peaks.get(name, 0), entry.memory.peak or 0)
                growths[name] = max(growths.get(name, 0), net)
                releases[name] = max(releases.get(name, 0), -net)
        return cls(peaks, growths, releases)

    def peak(self, entry: Entry) -> str:
        """Return where the bar of a peak ends."""
        highest = self.peaks[entry.devices[0]]
        return percent(entry.memory.peak or 0, highest)

    def net(self, entry: Entry) -> tuple[str, str]:
        """Return where the bar of a net starts and ends."""
        name = entry.devices[0]
        released, grown = self.releases[name], self.growths[name]
        net = entry.memory.net or 0
        ends = sorted((released, released + net))
        return percent(ends[0], released + grown), percent(ends[1], released + grown)
