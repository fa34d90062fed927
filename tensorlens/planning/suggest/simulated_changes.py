"""Changes that a recording cannot tell: the step with them, on tensors without data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.planning.compare.outcomes import Estimation, option_request, run_estimate
from tensorlens.planning.estimate.cards import device_spec
from tensorlens.planning.estimate.result import Range
from tensorlens.planning.estimate.target import MakeStep, program
from tensorlens.planning.processes import Runner, shared_runner
from tensorlens.planning.suggest.checkpoints import (
    RECOMPUTE,
    is_replayed,
    recompute_candidate,
)
from tensorlens.planning.suggest.recorded_steps import Candidate, RecordedSteps
from tensorlens.planning.suggest.result import Method
from tensorlens.planning.suggest.state import (
    SGD_SETTINGS,
    has_momentum,
    plain_sgd,
    slot_bytes,
    without_state,
)
from tensorlens.planning.trials.jobs import Choice, Reason, Trouble
from tensorlens.units import format_bytes

AS_IT_IS = "as it is"


_NOT_THE_SAME = (
    "a block does not compute the same twice: look for a cache (use_cache=True), random numbers of"
    " its own, or what depends on how often it was called"
)


def explained(why: str) -> str:
    """Return why a change fails, with what is known of errors of that kind."""
    return f"{why}; {_NOT_THE_SAME}" if "CheckpointError" in why else why


@dataclass
class Simulation:
    """Runs of a program on tensors without data."""

    make_step: MakeStep
    framework: str
    device: str
    batch: int | None
    arguments: Mapping[str, Any]
    steps: int
    notes: list[str] = field(default_factory=list)
    """Why a change could not be tried."""
    peaks: dict[str, Range] = field(default_factory=dict)
    """Change to the bounds of its peak."""
    _before: int | Trouble | None = None
    """The peak of the program as it is."""

    def refuses(self, change: str) -> bool:
        """Tell whether the program could be simulated as it is, and not with a change."""
        return isinstance(self._before, int) and change not in self.peaks

    def savings(self, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """Return what changes save, by name; those that cannot be simulated are noted."""
        with shared_runner() as runner:
            if self._before is None:
                self._before = self._peak(AS_IT_IS, {}, runner)
            before = self._before
            if isinstance(before, Trouble):
                self.notes.append(f"{' and '.join(changes)} could not be simulated: {before.text}")
                return {}
            found = {}
            for name, settings in changes.items():
                after = self._peak(name, settings, runner)
                if isinstance(after, Trouble):
                    self.notes.append(f"{name} could not be simulated: {explained(after.text)}")
                else:
                    found[name] = before - after
        return found

    def _peak(self, name: str, settings: Mapping[str, Any], runner: Runner) -> int | Trouble:
        try:
            request = option_request(
                program(self.make_step),
                Choice(settings, self.arguments),
                self.framework,
                device_spec(self.device),
                steps=self.steps,
                batch=self.batch,
            )
        except UsageError as error:
            return Trouble(Reason.FAILED, str(error))
        found = run_estimate(Estimation(name, request), runner)
        if isinstance(found, Trouble):
            return found
        self.peaks[name] = found.peaks
        return found.peaks.point


AUTOCAST = "autocast in bf16"
_WORTH = 0.01
"""Of the peak: halves of activations that are less are not looked into."""
_COST = "8 bits of precision in place of 24: the loss differs a little"


def autocast(record: RecordedSteps, simulation: Simulation) -> Iterator[Candidate]:
    """Give the change to autocast in bfloat16, where the step computes in single precision."""
    if record.facts is None or record.facts.is_whole or not _computes_in_float32(record):
        return
    settings = {"autocast": "bf16"}
    saving = simulation.savings({AUTOCAST: settings}).get(AUTOCAST)
    if saving is None:
        return
    yield Candidate(
        kind="bf16",
        change=AUTOCAST,
        what="activations and weights in forward, in half the bytes",
        code=(
            "# around the calls of the model and of the loss, not of backward()\n"
            f'with torch.autocast("{record.device.partition(":")[0]}", dtype=torch.bfloat16):\n'
            "    ..."
        ),
        peak=record.peak - saving,
        cost=_COST,
        settings=settings,
        how=Method.SIMULATED,
    )


def _computes_in_float32(record: RecordedSteps) -> bool:
    """Tell whether halves of the activations at the peak are a part of it that counts."""
    if record.facts is None or record.facts.has_low_precision:
        return False
    activations = sum(
        record.log.size[row]
        for row in record.allocations()
        if row <= record.peak_row < record.end(row) and record.role(row) == "activation"
    )
    return activations / 2 >= _WORTH * record.peak


_NO_KERAS = (
    "the steps have no optimizer of Keras, nor blocks of its layers: of others only what is kept"
    " too long is looked at; compare() has options for sessions"
)
_NOT_COMPILED = (
    "could not be simulated: that takes the train step of a compiled Keras model, and this is a"
    " loop of one's own; compare() measures its options"
)
_BLOCKS, _SGD, _POLICY = "recompute blocks", "SGD", "mixed_bfloat16"
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    _SGD: SGD_SETTINGS,
    _POLICY: {"policy": _POLICY},
    _BLOCKS: RECOMPUTE,
}


def keras_changes(record: RecordedSteps, simulation: Simulation) -> Iterator[Candidate]:
    """Give the changes to plain SGD, to a policy in bfloat16, and to blocks computed again.

    They need the train step of a compiled Keras model. SGD is simulated in a graph, whose
    recording is of one order of the operations: without slots there may be another.
    """
    facts = record.facts
    if facts is None or facts.is_whole:
        yield from without_state(record)
        return
    if not facts.optimizers and not facts.blocks:
        simulation.notes.append(_NO_KERAS)
        return
    wanted = [_POLICY] if _computes_in_float32(record) else []
    wanted += [_BLOCKS] if facts.blocks and not facts.recomputes and not is_replayed(record) else []
    found: Mapping[str, int] = {}
    if facts.is_compiled:
        if facts.is_graph and slot_bytes(record) and not has_momentum(record):
            wanted.append(_SGD)
        found = simulation.savings({name: _SETTINGS[name] for name in wanted}) if wanted else {}
    elif wanted:
        simulation.notes.append(f"{' and '.join(wanted)} {_NOT_COMPILED}")
    if _SGD not in found:
        yield from without_state(record)
    for name, saving in found.items():
        if saving > 0:
            yield _keras_change(record, name, record.peak - saving)
    if found and facts.is_graph:
        simulation.notes.append(_in_a_graph(simulation))


def _keras_change(record: RecordedSteps, name: str, peak: int) -> Candidate:
    if name == _SGD:
        return plain_sgd(record, peak, Method.SIMULATED)
    if name == _POLICY:
        return Candidate(
            kind="bf16",
            change=_POLICY,
            what="what layers compute, in half the bytes; weights stay in single precision",
            code=f'# before the model is made\nkeras.config.set_dtype_policy("{_POLICY}")',
            peak=peak,
            cost=_COST,
            settings=dict(_SETTINGS[_POLICY]),
            how=Method.SIMULATED,
        )
    blocks = () if record.facts is None else record.facts.blocks
    return recompute_candidate(blocks, peak, Method.SIMULATED, "their forward runs twice")


def _in_a_graph(simulation: Simulation) -> str:
    ranges = ", ".join(
        f"{name} {format_bytes(found.low)} to {format_bytes(found.high)}"
        for name, found in simulation.peaks.items()
    )
    return (
        "the step runs as a graph, and what of its operations comes first is decided as it runs:"
        f" in likely orders the peaks are {ranges}"
    )
