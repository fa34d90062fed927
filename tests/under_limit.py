"""The largest batch under ``setrlimit``, looked for and then tried once more."""

from dataclasses import replace

import tensorlens
from tensorlens.frameworks.trials.trial import OUT_OF_MEMORY, Measured, Trial, Trouble
from tensorlens.planning.compare.launching import Launcher
from tensorlens.planning.compare.options import checked
from tensorlens.planning.estimate.target import program, search_path

CAPACITY = 64 << 20
_HIGHEST = 17


def largest_batch(make_step, framework, lowest):
    """Return the batch that ``compare()`` finds: it runs under the limit, one more does not.

    Args:
        make_step: makes a step for a batch.
        framework: whose.
        lowest: the smallest batch that is tried.
    """
    given = {"lowest": lowest, "highest": _HIGHEST, "repeats": 1, "warmup": 0, "steps": 1}
    found = tensorlens.compare(make_step, {"only": {}}, capacity=CAPACITY, **given)
    batch = found["only"].largest_batch
    (option,) = checked({"only": {}}, framework=framework, arguments={}, with_data=True)
    trial = Trial(
        "only",
        program(make_step),
        option.choice,
        framework,
        search_path(),
        batch=batch,
        steps=1,
        limit=CAPACITY,
        rehearsal=1,
    )
    with Launcher() as launcher:
        assert isinstance(launcher.run(trial), Measured)
        one_more = launcher.run(replace(trial, batch=batch + 1))
    assert isinstance(one_more, Trouble) and one_more.kind == OUT_OF_MEMORY
    return batch
