"""Changes to a compiled Keras model that are simulated: a policy, and blocks in graphs."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.records.suggestions import SIMULATED
from tensorlens.suggesting.candidates import Candidate
from tensorlens.suggesting.lower_precision import POLICY, POLICY_SETTINGS, is_worth_a_try, policy
from tensorlens.suggesting.recomputing import RECOMPUTE, candidate, is_replayed
from tensorlens.suggesting.scene import Scene
from tensorlens.suggesting.simulating import Simulation

_BLOCKS = "recompute of blocks"
_IN_GRAPHS = (
    "the step runs as a graph: of what is ready at the same time it is decided as it runs what"
    " comes first, and the peak varies with that; verify=True tells what it comes to here"
)


def simulated(scene: Scene, simulation: Simulation) -> Iterator[Candidate]:
    """Give the changes to a policy in bfloat16, and to blocks whose calls no tape recorded."""
    facts = scene.facts
    if facts is None or facts.is_whole:
        return
    wanted: dict[str, dict[str, str]] = {}
    if is_worth_a_try(scene):
        wanted[POLICY] = POLICY_SETTINGS
    if facts.blocks and not facts.recomputes and not is_replayed(scene):
        wanted[_BLOCKS] = RECOMPUTE
    if not wanted:
        return
    savings = simulation.savings(wanted)
    if POLICY in savings:
        yield policy(scene, savings[POLICY])
    if _BLOCKS in savings:
        peak = scene.peak - savings[_BLOCKS]
        yield candidate(facts.blocks, peak, SIMULATED, "their forward runs twice")
    if savings and not any(context.node for context in scene.log.contexts):
        simulation.notes.append(_IN_GRAPHS)
