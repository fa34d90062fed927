"""The largest batch under ``setrlimit``, looked for and then tried once more."""

from dataclasses import replace

import tensorlens
from tensorlens.planning import Runner
from tensorlens.planning.compare import options as compare_options
from tensorlens.planning.estimate import search_path, target
from tensorlens.planning.trials import Failure, FailureKind, Job, Measurement

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
    (option,) = compare_options.checked_options(
        {"only": {}}, framework=framework, arguments={}, with_data=True
    )
    job = Job(
        "only",
        target.program(make_step),
        option.variant,
        framework,
        search_path(),
        batch=batch,
        steps=1,
        limit=CAPACITY,
    )
    with Runner() as runner:
        assert isinstance(runner.run(job), Measurement)
        one_more = runner.run(replace(job, batch=batch + 1))
    assert isinstance(one_more, Failure) and one_more.kind is FailureKind.OUT_OF_MEMORY
    return batch
