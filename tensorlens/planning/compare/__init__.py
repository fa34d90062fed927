"""The same step under several memory options, each in a process of its own.

Options are checked (:mod:`.options`), each becomes jobs (:mod:`.api`), a job is one process
(:mod:`tensorlens.planning.processes`) or one estimate, and all answers become rows
(:mod:`.outcomes`). What an option does to a step is its framework's matter:
``planning/torch/options``. No module here imports a framework. ``docs/compare.md`` has the method
and what each option does.
"""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "result": ("LossCheck", "Outcome", "Status"),
    },
)
