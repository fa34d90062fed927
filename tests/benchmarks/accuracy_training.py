"""Estimates beside training on real cards: `python -m tests.benchmarks.accuracy_training`.

The measurements are xMem's (its artefact): the highest level that NVML saw in four iterations, less
the level at the start; the CUDA context is not in them, kernels that were loaded lazily are.
"""

import csv
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from tensorlens import estimate
from tests.benchmarks.models.language import is_language_model
from tests.benchmarks.models.programs import ITERATIONS

MEASURED = Path(__file__).parents[3] / "shared" / "data" / "measured_training.csv"
CARDS = {"RTX3060-12GB": "rtx 3060", "A100-40GB": "a100 40gb"}


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement and what was foretold of it, bytes."""

    model: str
    optimizer: str
    batch: int
    card: str
    measured: int
    xmem: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What an estimate comes to, bytes."""

    row: Row
    point: int
    lower: int
    upper: int
    reserved: int
    seconds: float

    @property
    def error(self) -> float:
        """The estimate's, as a share of what was measured."""
        return self.point / self.row.measured - 1


def rows(path: Path = MEASURED) -> list[Row]:
    """Return the measurements.

    Raises:
        FileNotFoundError: they are not there.
    """
    with path.open(newline="") as file:
        return [
            Row(
                each["model"],
                each["optimizer"],
                int(each["batch"]),
                each["gpu"],
                int(each["nvml_peak_delta_bytes"]),
                int(each["xmem_est_bytes"]),
            )
            for each in csv.DictReader(file)
        ]


def answer(row: Row) -> Answer:
    """Return the estimate for a measurement."""
    program = "texts" if is_language_model(row.model) else "pictures"
    began = time.perf_counter()
    found = estimate(
        f"tests.benchmarks.models.programs:{program}",
        card=CARDS[row.card],
        steps=ITERATIONS,
        arguments={"model": row.model, "optimizer": row.optimizer, "batch": row.batch},
    )
    loaded = sum(
        term.nbytes.point for term in found.terms if term.apart and term.name != "CUDA context"
    )
    return Answer(
        row,
        point=found.peak_reserved + loaded,
        lower=found.lower,
        upper=found.upper,
        reserved=found.peak_reserved,
        seconds=time.perf_counter() - began,
    )


def table(answers: Iterable[Answer]) -> str:
    """Return the estimates beside the measurements, in MiB and per cent."""
    return tabulate(
        [_cells(each) for each in answers],
        headers=[
            *("model", "optimizer", "batch", "measured", "estimate", "lower", "upper"),
            *("error %", "too low", "xMem %", "s"),
        ],
        floatfmt=("", "", "", *([".0f"] * 4), "+.2f", "", "+.2f", ".1f"),
    )


def _cells(each: Answer) -> list[object]:
    row = each.row
    sizes = [size / 2**20 for size in (row.measured, each.point, each.lower, each.upper)]
    too_low = "yes" if each.upper < row.measured else ""
    xmem = 100 * (row.xmem / row.measured - 1)
    return [
        *(row.model.rpartition("/")[2], row.optimizer, row.batch, *sizes),
        *(100 * each.error, too_low, xmem, each.seconds),
    ]


def summary(answers: list[Answer]) -> Iterator[str]:
    """Give the medians, one line each."""
    texts = [each for each in answers if is_language_model(each.row.model)]
    pictures = [each for each in answers if each not in texts]
    for name, group in (("transformers", texts), ("CNNs", pictures), ("all", answers)):
        if not group:
            continue
        ours = statistics.median(abs(each.error) for each in group)
        theirs = statistics.median(abs(e.row.xmem / e.row.measured - 1) for e in group)
        low = sum(each.upper < each.row.measured for each in group)
        yield (
            f"{name}: median error {ours:.2%} (xMem {theirs:.2%}), "
            f"upper bound too low in {low} of {len(group)}"
        )


def main(names: list[str]) -> None:
    """Print the table, of all measurements or of the models named."""
    try:
        found = rows()
    except FileNotFoundError:
        print(f"there are no measurements at {MEASURED}")
        return
    answers = []
    for row in found:
        if not names or any(name.lower() in row.model.lower() for name in names):
            answers.append(answer(row))
            print(f"{row.model} {row.optimizer} {row.batch}: {answers[-1].error:+.2%}", flush=True)
    print(table(answers))
    for line in summary(answers):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
