"""The same step under several memory options, each in a process of its own.

Options are checked (:mod:`.options`), each becomes jobs (:mod:`.api`), a job is one process
(:mod:`tensorlens.planning.processes`) or one estimate (:mod:`.estimates`), the largest batch is
found by bisection (:mod:`.batches`), and the answers are put together (:mod:`.assembling`).
What an option does to a step is its framework's matter: ``frameworks/torch/options``. No module
here imports a framework. ``docs/compare.md`` has the method and what each option does.
"""

from tensorlens.planning.compare.api import compare

__all__ = ["compare"]
