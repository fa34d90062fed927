"""The same step under several memory options, each in a process of its own.

Options are checked (:mod:`.options`). Each becomes trials (:mod:`.api`): runs, an estimate, or a
search for the largest batch, whose results become one row (:mod:`.trials`). The effect of a
built-in option on a step belongs to its framework: ``planning/torch/options``. No module here
imports a framework. ``docs/compare.md`` describes the method and each option.
"""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "result": ("LossCheck", "Outcome", "Status"),
    },
)
