"""Steps that compute in bfloat16: by torch's autocast, or by a policy of Keras."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.planning.suggest.candidates import Candidate
from tensorlens.planning.suggest.recorded_steps import Scene
from tensorlens.planning.suggest.result import SIMULATED
from tensorlens.planning.suggest.simulating import Simulation

AUTOCAST = "autocast in bf16"
POLICY = "mixed_bfloat16"
POLICY_SETTINGS = {"policy": POLICY}
_WORTH = 0.01
"""Of the peak: halves of activations that are less are not looked into."""
_COST = "8 bits of precision in place of 24: the loss differs a little"


def autocast(scene: Scene, simulation: Simulation) -> Iterator[Candidate]:
    """Give the change to autocast in bfloat16, where the step computes in single precision."""
    if scene.facts is None or scene.facts.is_whole or not is_worth_a_try(scene):
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
            f'with torch.autocast("{scene.device.partition(":")[0]}", dtype=torch.bfloat16):\n'
            "    ..."
        ),
        peak=scene.peak - saving,
        cost=_COST,
        settings=settings,
        how=SIMULATED,
    )


def policy(peak: int) -> Candidate:
    """Return the change to Keras's policy of that name."""
    return Candidate(
        kind="bf16",
        change=POLICY,
        what="what layers compute, in half the bytes; weights stay in single precision",
        code=f'# before the model is made\nkeras.config.set_dtype_policy("{POLICY}")',
        peak=peak,
        cost=_COST,
        settings=POLICY_SETTINGS,
        how=SIMULATED,
    )


def is_worth_a_try(scene: Scene) -> bool:
    """Tell whether halves of the activations at the peak are a part of it that counts."""
    if scene.facts is None or scene.facts.is_lower:
        return False
    there = [row for row in scene.allocations() if scene.resident(row, scene.peak_row)]
    activations = scene.nbytes(row for row in there if scene.role(row) == "activation")
    return activations / 2 >= _WORTH * scene.peak
