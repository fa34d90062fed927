"""Changes to a compiled Keras model that are simulated: a policy, and blocks in graphs."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.records.suggestions import SIMULATED
from tensorlens.suggesting.candidates import Candidate
from tensorlens.suggesting.lower_precision import POLICY, POLICY_SETTINGS, is_worth_a_try, policy
from tensorlens.suggesting.recomputing import RECOMPUTE, candidate, is_replayed
from tensorlens.suggesting.scene import Scene
from tensorlens.suggesting.simulating import Simulation
from tensorlens.units import format_bytes

_BLOCKS = "recompute blocks"
_NO_KERAS = (
    "the steps have no optimizer of Keras, nor blocks of its layers: of others only what is kept"
    " too long, and buffers of tf.data, are looked at; compare() has options for sessions"
)
_NOT_COMPILED = (
    "could not be simulated: that takes the train step of a compiled Keras model, and this is a"
    " loop of one's own; compare() measures its options"
)


def simulated(scene: Scene, simulation: Simulation) -> Iterator[Candidate]:
    """Give the changes to a policy in bfloat16, and to blocks whose calls no tape recorded."""
    facts = scene.facts
    if facts is None or facts.is_whole:
        return
    if not facts.optimizers and not facts.blocks:
        simulation.notes.append(_NO_KERAS)
        return
    wanted: dict[str, dict[str, str]] = {}
    if is_worth_a_try(scene):
        wanted[POLICY] = POLICY_SETTINGS
    if facts.blocks and not facts.recomputes and not is_replayed(scene):
        wanted[_BLOCKS] = RECOMPUTE
    if not wanted:
        return
    if not facts.is_compiled:
        simulation.notes.append(f"{' and '.join(wanted)} {_NOT_COMPILED}")
        return
    found = simulation.savings(wanted)
    savings = {name: saving for name, saving in found.items() if saving > 0}
    peaks = {name: scene.peak - saving for name, saving in savings.items()}
    if facts.is_graph:
        # the recording is of one order of the graph, and its peak not the one that was simulated
        peaks = {name: simulation.peaks[name].point for name in savings}
    if POLICY in peaks:
        yield policy(peaks[POLICY])
    if _BLOCKS in peaks:
        yield candidate(facts.blocks, peaks[_BLOCKS], SIMULATED, "their forward runs twice")
    if found and facts.is_graph:
        simulation.notes.append(_in_a_graph(simulation))


def _in_a_graph(simulation: Simulation) -> str:
    ranges = ", ".join(
        f"{name} {format_bytes(found.low)} to {format_bytes(found.high)}"
        for name, found in simulation.peaks.items()
    )
    return (
        "the step runs as a graph, and what of its operations comes first is decided as it runs:"
        f" in likely orders the peaks are {ranges}; verify=True tells what they are here"
    )
