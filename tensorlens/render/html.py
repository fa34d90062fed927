"""Reports as HTML: a fragment for notebooks and a page of its own, both without any script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from tensorlens.render.figures import device_names, duration, size
from tensorlens.render.layout import Entry, FunctionLayout, device_header, devices_of, layouts
from tensorlens.render.source import printable

if TYPE_CHECKING:
    from tensorlens.records.lines import LineReport


class HtmlRenderer:
    """One self-contained page: no script, nothing loaded from elsewhere, light and dark."""

    extension = "html"

    def render(self, report: LineReport) -> str:
        """Return the page as text, to be written as UTF-8."""
        return _environment().get_template("page.html").render(report=report, body=fragment(report))


def fragment(report: LineReport) -> str:
    """Return the report as one ``<div>`` for a notebook cell.

    Every style is scoped to its class, and it stays readable where styles are taken away.
    """
    functions = layouts(report)
    return (
        _environment()
        .get_template("lines.html")
        .render(
            report=report,
            header=device_header(report),
            called=[(function, _Bars.of(function)) for function in functions if function.body],
            uncalled=[function for function in functions if not function.body],
            several=len(devices_of(report)) > 1,
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
        return _percent(entry.memory.peak or 0, highest)

    def net(self, entry: Entry) -> tuple[str, str]:
        """Return where the bar of a net starts and ends."""
        name = entry.devices[0]
        released, grown = self.releases[name], self.growths[name]
        net = entry.memory.net or 0
        ends = sorted((released, released + net))
        return _percent(ends[0], released + grown), _percent(ends[1], released + grown)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0%"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tensorlens.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": size,
        "duration": duration,
        "devices": device_names,
        "printable": printable,
    }
    return environment
