"""Predicts changes by running the program with them on tensors without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tensorlens.planning.compare.result import Comparison
from tensorlens.planning.suggest.optimizers import has_momentum, plain_sgd, slot_bytes
from tensorlens.planning.suggest.recomputation import recompute_suggestion
from tensorlens.planning.suggest.recorded_steps import TENSORFLOW, RecordedSteps
from tensorlens.planning.suggest.result import Method, Suggestion

Run = Callable[..., Comparison]
""":func:`tensorlens.compare` of the program: takes the options, and more."""

AS_IT_IS = "as it is"
_MIN_HALF = 0.01
"""Half of the activations, relative to the peak, below which bf16 is not tried."""
_PRECISION_COST = "8 bits of precision in place of 24: the loss differs a little"
_NO_KERAS = (
    "the steps have no optimizer of Keras, nor blocks of its layers: of others only what is kept"
    " too long is looked at; compare() has options for sessions"
)
_NOT_COMPILED = (
    "could not be simulated: that takes the train step of a compiled Keras model, and this is a"
    " loop of one's own; compare() measures its options"
)
_ONE_ORDER = (
    "the step runs as a graph, and what of its operations comes first is decided as it runs:"
    " simulated is one likely order"
)


def failure_text(why: str) -> str:
    """Return why a change fails, with advice if the error is a known one."""
    if "CheckpointError" not in why:
        return why
    return (
        f"{why}; a block does not compute the same twice: look for a cache (use_cache=True), random"
        " numbers of its own, or what depends on how often it was called"
    )


def simulated(
    recorded: RecordedSteps, replayed: Sequence[Suggestion], run: Run
) -> tuple[Sequence[Suggestion], Sequence[str]]:
    """Return the changes, simulated instead of replayed if the program can be simulated.

    Changes that fail in the simulation are left out. The notes name what could not be simulated.
    """
    facts, notes = recorded.facts, list[str]()
    if facts.is_whole:
        return replayed, notes
    wanted = [*_to_simulate(recorded, replayed)]
    names = " and ".join(each.change for each in wanted)
    if recorded.framework == TENSORFLOW and not facts.optimizers and not facts.blocks:
        notes.append(_NO_KERAS)
    elif recorded.framework == TENSORFLOW and not facts.is_compiled and wanted:
        return replayed, [f"{names} {_NOT_COMPILED}"]
    if not wanted:
        return replayed, notes
    options = {AS_IT_IS: {}, **{each.change: each.option for each in wanted}}
    comparison = run(options, how="estimated", device=recorded.device, baseline=AS_IT_IS)
    before = comparison[AS_IT_IS]
    if before.peak_allocated is None:
        return replayed, [f"{names} could not be simulated: {before.why}"]
    kinds = {each.kind for each in wanted}
    changes = [each for each in replayed if each.kind not in kinds]
    for each in wanted:
        outcome, saving = comparison[each.change], comparison.saved(each.change)
        if saving is None:
            notes.append(f"{each.change} could not be simulated: {failure_text(outcome.why)}")
            continue
        changes.append(
            replace(
                each,
                predicted_peak=recorded.peak - saving,
                predicted_saving=saving,
                how=Method.SIMULATED,
            )
        )
    return changes, [*notes, _ONE_ORDER] if facts.is_graph else notes


def _to_simulate(recorded: RecordedSteps, replayed: Sequence[Suggestion]) -> Iterator[Suggestion]:
    """Yield the changes to simulate, without their peaks."""
    facts = recorded.facts
    checkpoints = [each for each in replayed if each.kind == "checkpoint"]
    if recorded.framework == TENSORFLOW:
        if _computes_in_float32(recorded):
            yield _POLICY
        if facts.blocks and not facts.recomputes and not checkpoints:
            yield recompute_suggestion(recorded, facts.blocks)
        # a graph is recorded in one order of its operations; without slots the order differs
        if facts.is_graph and slot_bytes(recorded) and not has_momentum(recorded):
            yield plain_sgd(recorded, 0)
        return
    # a second forward may do more than a recording shows, such as fill a cache
    yield from (each for each in checkpoints if each.predicted_saving > 0)
    if _computes_in_float32(recorded):
        yield _autocast(recorded.device.partition(":")[0])
    if facts.sets_to_none is False:
        yield _SET_TO_NONE


_SET_TO_NONE = Suggestion(
    kind="set_to_none",
    change="set gradients to None",
    what="gradients that stay while forward runs",
    code="optimizer.zero_grad(set_to_none=True)",
    cost="none; a parameter that backward does not reach then has no gradient instead of 0",
    settings=("set_to_none=True",),
)
_POLICY = Suggestion(
    kind="bf16",
    change="mixed_bfloat16",
    what="what layers compute, in half the bytes; weights stay in single precision",
    code='# before the model is made\nkeras.config.set_dtype_policy("mixed_bfloat16")',
    cost=_PRECISION_COST,
    settings=("policy=mixed_bfloat16",),
)


def _autocast(device: str) -> Suggestion:
    return Suggestion(
        kind="bf16",
        change="autocast in bf16",
        what="activations and weights in forward, in half the bytes",
        code=(
            "# around the calls of the model and of the loss, not of backward()\n"
            f'with torch.autocast("{device}", dtype=torch.bfloat16):\n'
            "    ..."
        ),
        cost=_PRECISION_COST,
        settings=("autocast=bf16",),
    )


def _computes_in_float32(recorded: RecordedSteps) -> bool:
    """Tell whether no low precision is used, and half of the peak's activations is notable."""
    if recorded.facts.has_low_precision:
        return False
    activations = sum(
        recorded.log.size[row]
        for row in recorded.allocations()
        if row <= recorded.peak_row < recorded.end(row) and recorded.role(row) == "activation"
    )
    return activations / 2 >= _MIN_HALF * recorded.peak
