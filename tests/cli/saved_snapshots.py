"""Snapshots in files, for the verbs that read them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "records"))

from snapshot_builder import T, snapshot_of

BEFORE = snapshot_of([T("net.weight", (1024,), "parameter"), T("old", (256,))])
AFTER = snapshot_of(
    [T("net.weight", (1024,), "parameter"), *(T(f"history[{n}]", (256,)) for n in range(3))]
)


def write(folder: Path, **snapshots) -> None:
    for name, snapshot in snapshots.items():
        (folder / f"{name}.json").write_text(snapshot.to_json(), "utf-8")
