"""Memory of a training loop step by step: what all callbacks of trainers but Keras's share."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tensorlens import ranks
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.guards import guarded
from tensorlens.integrations.hooks import fail_safe
from tensorlens.leaks.report import LeakReport
from tensorlens.leaks.watch import LeakWatch
from tensorlens.lines.region import DeviceLevel, MeasuredRegion
from tensorlens.recording import oom
from tensorlens.recording.oom import may_be_out_of_memory
from tensorlens.recording.record import LiveRecording, record
from tensorlens.render import formats
from tensorlens.render.figures import counted
from tensorlens.tensors.reporter import MemReporter
from tensorlens.units import format_bytes

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Variable of torchrun: the file for a worker's error."""
_SUMMED_AT_ONCE = 16
"""Steps summed up together: after each single step, the code would not be in the processor's caches
any more."""


class StepMonitor:
    """Measures the steps of one training, as a callback reports their begin and end.

    Files are written into a folder of the run, each named by rank and process and never
    overwritten: ``oom.4711.txt``, ``leaks.rank1.4712.json``. No method raises.

    Args:
        folder: where files go; the trainer's own folder by default.
        roles_every: add the bytes of parameters, gradients, optimizer state and so on to the
            figures of every so many steps; 0 is never. It takes as long as a snapshot.
        record_steps: ``(i, j)`` records steps i to j - 1, counted from 0.
        leaks: watch for tensors that stay behind with each step.
        explain_oom: write a report where an allocation fails.
        show: print a line at the end, on rank 0.

    Raises:
        UsageError: a number is negative, or ``record_steps`` is no range.
    """

    def __init__(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        roles_every: int = 0,
        record_steps: tuple[int, int] | None = None,
        leaks: bool = False,
        explain_oom: bool = True,
        show: bool = False,
    ) -> None:
        if roles_every < 0:
            raise UsageError(f"roles_every={roles_every}: a number of steps, 0 for never")
        if record_steps is not None and not 0 <= record_steps[0] < record_steps[1]:
            raise UsageError(
                f"record_steps={record_steps}: the first step and the one after the last"
            )
        self.is_on = True
        self.leak_report: LeakReport | None = None
        """The verdict on the steps, when the training has ended."""
        self.files: list[Path] = []
        """Files written so far."""
        self._folder = None if folder is None else Path(folder)
        self._target = Path()
        self._roles_every = roles_every
        self._recorded_steps = range(*(record_steps or (0, 0)))
        self._explains_oom = explain_oom
        self._show = show
        self._region = MeasuredRegion()
        self._watch = LeakWatch() if leaks else None
        self._recording: LiveRecording | None = None
        self._roots: tuple[Any, ...] = ()
        self._steps = 0
        self._device = ""
        """Device of the figures."""
        self._reads: list[tuple[str, Sequence[int]]] = []
        """Ended phases of the running step, with the figures of all counters."""
        self._steps_read: list[list[tuple[str, Sequence[int]]]] = []
        """Such reads of steps not summed up yet."""
        self._highest = (-1, 0)
        """The peak of the run so far, and its step; -1 is unknown."""
        self._metrics: dict[str, float] = {}

    @fail_safe
    def begin(self, roots: Sequence[Any], folder: str | os.PathLike[str] | None = None) -> None:
        """Begin a training; ``roots`` are its model and optimizers."""
        self._target = self._folder or Path(folder or ".")
        self._metrics, self._steps_read = {}, []
        # a trainer that finds a batch size begins anew where memory ran out
        self._leave()
        self._roots = tuple(root for root in roots if root is not None)
        self._steps, self._highest = 0, (-1, 0)
        self._region.begin()
        if self._explains_oom:
            oom.reserve()
        if self._watch is not None:
            self._watch.restart()

    @fail_safe
    def step_begins(self) -> None:
        """Begin a step; a peak since the end of the last one does not count."""
        self._reads = []
        if self._steps in self._recorded_steps and self._recording is None:
            self._recording = record(*self._roots).start()
        self._region.figures()

    @fail_safe
    def phase_ends(self, name: str) -> None:
        """End a phase of the step, which began with the step or after the last phase."""
        self._reads.append((name, self._region.figures()))

    @fail_safe
    def step_ends(self) -> None:
        """End a step; :meth:`metrics` includes its figures."""
        figures = self._region.figures()
        if not figures:
            return
        self._reads.append(("", figures))
        self._steps_read.append(self._reads)
        self._reads = []
        self._steps += 1
        if self._roles_every and (self._steps - 1) % self._roles_every == 0:
            self._sum_up()
            self._add(self._by_role())
        if len(self._steps_read) >= _SUMMED_AT_ONCE:
            self._sum_up()
        if self._watch is not None:
            self._watch.step()
        if self._steps not in self._recorded_steps:
            self._save_recording()

    def metrics(self) -> dict[str, float]:
        """Return bytes by the name to log them under: the most of the steps since the last call."""
        self._sum_up()
        metrics, self._metrics = self._metrics, {}
        return metrics

    @fail_safe
    def end(self) -> None:
        """End the training."""
        self._sum_up()
        self._finish()
        rank = ranks.current_rank()
        if self._show and (rank is None or rank.number == 0) and self._steps:
            nbytes, step = self._highest
            place = f"{format_bytes(nbytes)} in step {step + 1} of {self._steps}"
            text = place if nbytes >= 0 else f"n/a in {counted(self._steps, 'step')}"
            # not behind the trainer's own bar
            tqdm.write(f"tensorlens: peak {text}", file=sys.stderr)

    @fail_safe
    def failed(self, error: BaseException, folder: str | os.PathLike[str] | None = None) -> None:
        """End a training or an evaluation by an exception; report it if memory ran out."""
        if folder is not None:
            self._target = self._folder or Path(folder)
        if self._explains_oom and may_be_out_of_memory(error):
            with oom.released():
                from tensorlens.recording.oom.annotation import explain

                found = explain(error)
                if found is not None:
                    self._save(found, "oom.txt")
                    beside = os.environ.get(_ERROR_FILE)
                    if beside:
                        self._save(found, "oom.txt", Path(beside).parent)
        self._finish()

    def _finish(self) -> None:
        """Write a recording and a leak report in progress, and release everything."""
        self._save_recording()
        if self._watch is not None and self._steps and self._region.thread is not None:
            self.leak_report = self._watch.stop()
            self._save(self.leak_report, "leaks.json")
        self._leave()

    def _leave(self) -> None:
        """Release the counters, an unsaved recording, and the models."""
        self._roots = ()
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.stop()
        if self._region.thread is not None:
            self._region.end()
            if self._explains_oom:
                oom.release()

    @fail_safe
    def _sum_up(self) -> None:
        """Add the reads of the last steps to the metrics."""
        steps, self._steps_read = self._steps_read, []
        for step, reads in enumerate(steps, self._steps - len(steps)):
            levels = [(phase, self._training_level(figures)) for phase, figures in reads if figures]
            last = levels[-1][1]
            self._device = last.device
            levels = [each for each in levels if each[1].device == last.device]
            peak = max(level.peak for _, level in levels)
            if peak > self._highest[0]:
                self._highest = peak, step
            self._add(
                {
                    "memory/current_allocated_mem": last.allocated,
                    "memory/peak_allocated_mem": peak,
                    "memory/current_reserved_mem": last.reserved,
                    "memory/peak_reserved_mem": max(level.reserved for _, level in levels),
                }
            )
            for phase, level in levels:
                if phase:
                    self._add({f"memory/peak_allocated_mem/{phase}": level.peak})

    def _add(self, metrics: Mapping[str, int]) -> None:
        for name, value in metrics.items():
            if value >= 0:
                self._metrics[name] = max(float(value), self._metrics.get(name, 0.0))

    def _training_level(self, figures: Sequence[int]) -> DeviceLevel:
        """Return the level of the training device."""
        host, *devices = self._region.levels(figures)
        # the accelerator that holds most; without one the host
        used = (each for each in devices if each.allocated > 0)
        return max(used, key=lambda each: each.allocated, default=host)

    def _by_role(self) -> dict[str, int]:
        totals = MemReporter(*self._roots).snapshot().tensors.role_totals()
        found = {
            f"memory/{role}_mem": size
            for (name, role), size in totals.items()
            if name == self._device
        }
        # the snapshot's own memory belongs to no step
        self._region.figures()
        return found

    def _save_recording(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.stop()
            self._save(recording, "recording.tlens")

    def _save(self, report: Any, name: str, folder: Path | None = None) -> None:
        target = folder or self._target
        with guarded(f"{name} was not written"):
            try:
                target.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TensorlensError(f"cannot make {target}: {error.strerror}") from None
            path = target / formats.tagged(name, ranks.tag())
            number = 1
            while path.exists():
                number += 1
                path = target / formats.tagged(name, f"{ranks.tag()}.{number}")
            self.files.append(formats.save(report, path))
