"""Print every benchmark: `python -m tests.benchmarks`; with a page, put its table into it."""

import os
import subprocess
import sys

import torch

from tests.benchmarks import births, callbacks, census, estimates, imports, lines, recordings, step
from tests.benchmarks.side_by_side import show

ACCURACY = ("cpu", "cifar", "keras", "kernels", "training")
"""Estimates beside what was measured; the last two need published measurements on disk."""


def main() -> None:
    torch.set_num_threads(1)  # two threads on two busy cores time the scheduler
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, {os.cpu_count()} cores")
    show("import tensorlens (whole processes)", imports.run())
    show("10,200 profiled lines, a line each", lines.cost_of_a_line(), per=lines.LINES)
    show("unprofiled Python loop", lines.beside(lines.python_loop))
    show("unprofiled tensor code", lines.beside(lines.tensor_loop))
    show("torch.empty, each", births.allocations(), per=births.ALLOCATIONS)
    show("2 ms training step, births watched", births.steps(), per=step.STEPS)
    show("100,000 blocks, each", births.lookups(), per=births.BLOCKS)
    census.show_all()
    recordings.show_all()
    callbacks.show_all()
    estimates.show_all()
    sys.stdout.flush()
    # where no line was profiled before: with line tables a recording's end adds up backward
    subprocess.run([sys.executable, "-m", "tests.benchmarks.shapes", *sys.argv[1:]], check=True)
    for name in ("questions", *(f"accuracy_{each}" for each in ACCURACY)):
        subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
