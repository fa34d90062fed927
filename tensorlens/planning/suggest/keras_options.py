"""Changes to a compiled Keras model that are simulated: a policy, and blocks in graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorlens.planning.suggest.candidates import Candidate
from tensorlens.planning.suggest.lower_precision import (
    POLICY,
    POLICY_SETTINGS,
    is_worth_a_try,
    policy,
)
from tensorlens.planning.suggest.optimizer_slots import (
    is_left_to_simulation,
    replayed_sgd,
    simulated_sgd,
)
from tensorlens.planning.suggest.optimizers import SGD_SETTINGS
from tensorlens.planning.suggest.recomputing import RECOMPUTE, candidate, is_replayed
from tensorlens.planning.suggest.recorded_steps import Scene
from tensorlens.planning.suggest.result import SIMULATED
from tensorlens.planning.suggest.simulating import Simulation
from tensorlens.units import format_bytes

_BLOCKS, _SGD = "recompute blocks", "SGD"
_NO_KERAS = (
    "the steps have no optimizer of Keras, nor blocks of its layers: of others only what is kept"
    " too long, and buffers of tf.data, are looked at; compare() has options for sessions"
)
_NOT_COMPILED = (
    "could not be simulated: that takes the train step of a compiled Keras model, and this is a"
    " loop of one's own; compare() measures its options"
)


def simulated(scene: Scene, simulation: Simulation) -> Iterator[Candidate]:
    """Give the changes to a policy in bfloat16, and to blocks whose calls no tape recorded.

    Of a graph also that to plain SGD.
    """
    facts = scene.facts
    if facts is None or facts.is_whole:
        return
    if not facts.optimizers and not facts.blocks:
        simulation.notes.append(_NO_KERAS)
        return
    wanted: dict[str, Mapping[str, str]] = {}
    if is_left_to_simulation(scene):
        wanted[_SGD] = SGD_SETTINGS
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
    peaks = {name: scene.peak - saving for name, saving in found.items() if saving > 0}
    if _SGD in peaks:
        yield simulated_sgd(scene, peaks[_SGD])
    elif _SGD in wanted and _SGD not in found:
        yield from replayed_sgd(scene)
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
        f" in likely orders the peaks are {ranges}"
    )
