"""Recordings in the formats of other viewers, and in the one that reads back equal."""

from __future__ import annotations

from importlib import import_module

from tensorlens.recording import tlens
from tensorlens.recording.recordings import Recording

_WRITERS = {
    "folded": "tensorlens.recording.export.viewers:folded",
    "perfetto.json": "tensorlens.recording.export.viewers:trace_events",
    "pickle": "tensorlens.recording.export.memory_viz:memory_viz",
    "speedscope.json": "tensorlens.recording.export.viewers:speedscope",
    "trace.json": "tensorlens.recording.export.viewers:trace_events",
}


def exported(recording: Recording, ending: str) -> str | bytes:
    """Return the content of a file with an ending of :data:`tensorlens.render.OF_RECORDINGS`."""
    if ending in ("tlens", "tlens.gz"):
        return tlens.write(recording, compressed=ending == "tlens.gz")
    module, _, name = _WRITERS[ending].partition(":")
    content: str | bytes = getattr(import_module(module), name)(recording)
    return content
