"""Replies to one client. What costs is on as long as the client is there."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorlens import ranks, render
from tensorlens.errors import TensorlensError
from tensorlens.guards import reason
from tensorlens.lines.device_levels import DeviceLevels
from tensorlens.live.lines import LiveLines
from tensorlens.live.protocol import (
    VERSION,
    Ask,
    JobLevels,
    RoleTotal,
    Sort,
    TensorTotal,
    TensorTotals,
)
from tensorlens.live.steps import StepCounter
from tensorlens.render.source import printable
from tensorlens.render.view import View
from tensorlens.tensors.present.inventory import inventories
from tensorlens.tensors.reporter import MemReporter

_ROWS = 40
_BY_TYPE = re.compile("<(?!lambda>)")


class Session:
    """Answers one client.

    Args:
        steps: of this process; None where they are not counted.
    """

    def __init__(self, steps: StepCounter | None) -> None:
        self._steps = steps
        self._levels = DeviceLevels()
        self._measures: tuple[MemReporter, LiveLines] | None = None
        """While a reporter lives, the lines that allocate are noted."""

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a request, which is an ``error`` where there is no other."""
        try:
            found = self._answer(Ask(request["ask"]), request)
        except Exception as error:
            return {"version": VERSION, "error": reason(error)}
        return {"version": VERSION, **found}

    def close(self) -> None:
        """Measure no more."""
        self._levels.close()
        if self._measures is not None:
            self._measures[1].close()

    def _answer(self, ask: Ask, request: Mapping[str, Any]) -> dict[str, Any]:
        # what cannot be measured is the answer to the first request
        self._measures = self._measures or (MemReporter(), LiveLines())
        reporter, lines = self._measures
        match ask:
            case Ask.LEVELS:
                return asdict(self._job_levels())
            case Ask.LINES:
                return asdict(lines.totals(Sort(request["sort"])))
            case Ask.TENSORS:
                return asdict(_tensors(reporter))
            case Ask.SNAPSHOT:
                path = _checked(request["file"])
                return {"text": f"wrote {render.save(reporter.snapshot(), path)}"}
            case Ask.RECORD:
                return {"text": self._record(int(request["steps"]), _checked(request["file"]))}

    def _job_levels(self) -> JobLevels:
        steps = self._steps
        recording = None if steps is None else steps.recording
        return JobLevels(
            command=printable(shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]])),
            rank=str(ranks.current_rank() or ""),
            steps=None if steps is None else steps.count,
            devices=tuple(self._levels.read()),
            notes=tuple(self._levels.notes()),
            recording="" if steps is None else steps.state(),
            is_recording=recording is not None and recording.is_on,
        )

    def _record(self, steps: int, path: Path) -> str:
        if self._steps is None:
            raise TensorlensError(
                "steps are counted only in a job that was started with TENSORLENS_LIVE=1"
            )
        self._steps.record(steps, path)
        return self._steps.state()


def _tensors(reporter: MemReporter) -> TensorTotals:
    """Take a census."""
    start = time.perf_counter()
    snapshot = reporter.snapshot()
    taken = time.perf_counter() - start
    devices = [each for each in inventories(snapshot, View(top=_ROWS)) if each.is_memory]
    rows = [
        TensorTotal(
            # what only a library's function holds is called after that: <cell>, <tuple>
            name="" if _BY_TYPE.match(row.name) else printable(row.name),
            count=row.count,
            role=row.first.role,
            device=each.device,
            shape=row.shape,
            nbytes=row.after,
        )
        for each in devices
        for row in each.rows
    ]
    rows.sort(key=lambda row: -row.nbytes)
    return TensorTotals(
        seconds=taken,
        count=sum(each.count for each in devices),
        roles=tuple(
            RoleTotal(each.device, role, nbytes)
            for each in devices
            for role, _, nbytes in each.roles
        ),
        rows=tuple(rows[:_ROWS]),
        notes=snapshot.notes,
    )


def _checked(file: str) -> Path:
    """Return a path that a report can be written to, so that no work is done for nothing.

    Raises:
        TensorlensError: its ending is not known, it exists, or its folder cannot be written to.
    """
    path = Path(file)
    render.renderer_for(path)
    if os.path.lexists(path):
        raise TensorlensError(f"cannot write {path}: it exists")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise TensorlensError(f"cannot write {path}: its folder cannot be written to")
    return path
