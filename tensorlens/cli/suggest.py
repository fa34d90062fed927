"""``tensorlens suggest``: the changes that would save most at the peak, and what they really do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tensorlens.cli.options import add_output, add_step_options, arguments_of, option_values
from tensorlens.cli.output import Output, write_record
from tensorlens.errors import UsageError
from tensorlens.planning.step_facts import WATCHES

_EPILOG = """\
examples:
  tensorlens suggest train:make_step
  tensorlens suggest train.py:make_step --verify --top 5
  tensorlens suggest train:make_step --set batch=64 -o changes.html
  tensorlens suggest run.tlens

PROGRAM is a function that builds model, optimizer and data, of torch or of
TensorFlow and Keras, and returns step(); or a recording: a .tlens file, or
torch's memory snapshot. It runs once, in a process of its own, and is
recorded; each change is tried on that recording.
"""

_NUMBERS = {
    "top": "how many changes that cost something (3); free ones are always told",
    "batch": "what the function is called with",
    "warmup": "steps before those that are timed (1)",
    "steps": "steps that follow (2)",
    "repeats": "runs of each change to verify (1; of a graph 3)",
}


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "suggest",
        description="Record a program's step and tell which changes would save most at its peak,\n"
        "each with its predicted saving.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "program", metavar="PROGRAM", help="module:function, file.py:function or a recording"
    )
    parser.add_argument(
        "--verify", action="store_true", help="run the step with each change, and measure"
    )
    parser.add_argument("--device", metavar="NAME", help="device to measure: cpu, cuda:0")
    parser.add_argument(
        "--framework",
        choices=tuple(WATCHES),
        help="framework of the steps (the one the program imports)",
    )
    add_step_options(parser, _NUMBERS)
    add_output(parser, "the suggestions")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the suggestions; return 0.

    Raises:
        TensorlensError: the output cannot be written, or a recording not be read.
        UsageError: something of what is asked makes no sense.
    """
    outputs = Output.of_args(args)
    options = option_values(args, *_NUMBERS, "timeout", "device", "framework")
    from tensorlens.planning.suggest.api import suggest

    suggestions = suggest(
        _program(args.program), verify=args.verify, arguments=arguments_of(args), **options
    )
    write_record(suggestions, outputs, json=args.json)
    return 0


def _program(typed: str) -> Any:
    """Return the recording in a file, where it is one; else the program as it was typed."""
    if typed.endswith(".py") or ":" in typed or not Path(typed).is_file():
        return typed
    from tensorlens.loading import load
    from tensorlens.recording.recordings import Recording

    record = load(typed)
    if not isinstance(record, Recording):
        raise UsageError(f"{typed} is no recording: give a .tlens file, or module:function")
    return record
