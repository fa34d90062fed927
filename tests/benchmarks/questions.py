"""The same questions to each profiler that is installed, beside what is derived by hand.

    python -m tests.benchmarks.questions

prints a table in Markdown, and below it what an answer is the bytes of.
"""

import importlib.metadata
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tabulate import tabulate

from tests.benchmarks import known_step
from tests.benchmarks.answers import TOOLS
from tests.benchmarks.known_step import MIB

Answers = dict[str, tuple[float, str]]
MINUTES = 10


def _lines(text: str) -> str:
    """Return the numbers of the lines of the program that read so: of a step, of both."""
    lines = Path(known_step.__file__).read_text().splitlines()
    return " and ".join(str(at) for at, line in enumerate(lines, 1) if line.strip() == text)


QUESTIONS: Mapping[str, tuple[str, int]] = {
    "line": ("bytes of the line with the peak", known_step.PEAK),
    "parameters": ("parameters", known_step.PARAMETERS),
    "gradients": ("gradients, after the step", known_step.GRADIENTS),
    "slots": ("optimizer's slots", known_step.SLOTS),
    "activations": ("activations at the peak", known_step.ACTIVATIONS),
    "peak": ("peak of the step", known_step.PEAK),
    "leak": ("bytes a step of the line that leaks", known_step.LEAK),
    "estimate": ("peak, before the run", known_step.PEAK),
}
"""Question to how it reads, and the bytes by hand."""


def ask(tool: str) -> Answers | str:
    """Return a tool's answers, or why there are none."""
    package = TOOLS[tool][1]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    command = [sys.executable, "-m", "tests.benchmarks.answers", tool]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        return f"no answer within {MINUTES} minutes"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1]
    answers: Answers = json.loads(done.stdout.strip().splitlines()[-1])
    return answers


def table(answers: Mapping[str, Answers]) -> str:
    """Return a row for each question, a column for each tool."""
    rows = [
        [text, _size(exact), *(_cell(each.get(key)) for each in answers.values())]
        for key, (text, exact) in QUESTIONS.items()
    ]
    align = ("left", *("right",) * (len(answers) + 1))
    return tabulate(rows, ["Question", "By hand", *answers], tablefmt="github", colalign=align)


def remarks(answers: Mapping[str, Answers]) -> list[str]:
    """Return what answers are the bytes of, where it is not plain."""
    return [
        f"- {tool}, {QUESTIONS[key][0]}: {remark}"
        for tool, each in answers.items()
        for key, (_, remark) in each.items()
        if remark
    ]


def _cell(answer: tuple[float, str] | None) -> str:
    if answer is None:
        return "does not say"
    return "line and rate" if math.isnan(answer[0]) else _size(answer[0])


def _size(nbytes: float) -> str:
    return f"{nbytes / MIB:,.2f} MiB"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of this folder"


def main() -> None:
    """Ask all tools and print their answers."""
    given = {tool: ask(tool) for tool in TOOLS}
    answers = {tool: each for tool, each in given.items() if not isinstance(each, str)}
    packages = dict.fromkeys(TOOLS[tool][1] for tool in answers)
    print(f"Python {sys.version.split()[0]},", end=" ")
    print(", ".join(f"{package} {_version(package)}" for package in packages))
    print(f"\n{table(answers)}\n")
    print(
        f"- by hand: the peak is at line {_lines(known_step.PEAK_LINE)}, which allocated", end=" "
    )
    print(f"{_size(known_step.OWN_AT_PEAK)} of it; line {_lines(known_step.LEAK_LINE)} leaks")
    print("\n".join(remarks(answers)))
    for tool, reason in given.items():
        if isinstance(reason, str):
            print(f"- {tool}: not asked: {reason}")


if __name__ == "__main__":
    main()
