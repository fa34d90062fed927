"""``tensorlens compare`` and ``suggest``: a step under several options, and which would save."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorlens.cli.options import add_output, add_step_options, arguments_of, option_values
from tensorlens.cli.output import Output, show_details, write_record
from tensorlens.errors import UsageError
from tensorlens.planning.compare.options import parse_option
from tensorlens.planning.compare.result import Comparison
from tensorlens.planning.estimate.target import framework_of, parameters_of, program
from tensorlens.planning.trace import Framework
from tensorlens.planning.trials.jobs import OPTIONS, catalogue

_USUAL: Mapping[Framework, Mapping[str, Mapping[str, Any]]] = {
    "torch": {
        "baseline": {},
        "set_to_none=False": {"set_to_none": False},
        "checkpoint": {"checkpoint": "blocks"},
        "bf16": {"autocast": "bf16"},
        "offload": {"offload": True},
    },
    "tensorflow": {
        "baseline": {},
        "mixed_bfloat16": {"policy": "mixed_bfloat16"},
        "recompute": {"recompute": "blocks"},
        "jit_compile": {"jit_compile": True},
        "sgd": {"optimizer": "sgd"},
    },
}
"""Options that are compared where none is named."""
_BASELINE = "baseline"

_COMPARE_EPILOG = """\
examples:
  tensorlens compare train:make_step
  tensorlens compare train:make_step --option adam optimizer=adam \\
      --option "ckpt bf16" checkpoint=blocks,autocast=bf16
  tensorlens compare train:make_step --estimated --card h100 --capacity 24GiB
  tensorlens compare train.py:make_step --set batch=32 -o options.html

PROGRAM is a function that builds model, optimizer and data and returns step(),
which may return its loss. --option takes an optional name, then settings
separated by commas; a word that is not one of the settings below is passed to
the function. The unmodified program is the baseline, unless an option is
called "baseline" or --baseline names another. Without --option the usual
options are compared; --option NAME with one of their names (checkpoint, bf16,
offload; recompute, sgd) takes that one.

settings of torch:
{torch}

settings of tensorflow, which are Keras's too:
{tensorflow}

The exit code is 0 when at least one option ran, else 1; 2 for a usage error.
"""


_COMPARE_NUMBERS = {
    "batch": "the batch that the function is called with",
    "lowest": "the smallest batch to try (1)",
    "highest": "the largest batch to try",
    "warmup": "steps before those that are timed (1)",
    "steps": "steps that are timed in each run (3)",
    "repeats": "runs of each option (3)",
}
_WIDTH = 80
_FAR = " " * 16


def add_compare(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "compare",
        description="Run the same step under several memory options, each in a process of its\n"
        "own, and tell what each takes and what it costs.",
        epilog=_COMPARE_EPILOG.format(**{each: _settings(each) for each in OPTIONS}),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "program", metavar="PROGRAM", nargs="?", help="module:function or file.py:function"
    )
    parser.add_argument(
        "--option",
        metavar="WORD",
        nargs="+",
        action="append",
        default=[],
        help="a name, or none, then settings: NAME optimizer=adam,fused=True; repeatable",
    )
    parser.add_argument(
        "--baseline", metavar="NAME", help="the option that others are compared with"
    )
    parser.add_argument(
        "--estimated", action="store_true", help="on tensors without data, for a card: no times"
    )
    parser.add_argument(
        "--framework",
        choices=tuple(OPTIONS),
        help="framework of the settings (the one the program imports)",
    )
    parser.add_argument("--device", metavar="NAME", help="device to measure: cpu, cuda:0")
    parser.add_argument("--card", metavar="NAME", help="card to estimate for: h100, 'rtx 4090'")
    parser.add_argument("--capacity", metavar="SIZE", help="find the largest batch under it: 24GiB")
    add_step_options(parser, _COMPARE_NUMBERS, called=", for all options")
    add_output(parser, "the comparison")
    parser.set_defaults(func=_compare)


def _take_program(args: argparse.Namespace) -> None:
    """Take the program from the end of the last ``--option``, whose ``nargs="+"`` has taken it."""
    if args.program is not None:
        return
    words = args.option[-1] if args.option else []
    if len(words) < 2 or ":" not in words[-1] or "=" in words[-1]:
        raise UsageError("no PROGRAM is given: module:function or file.py:function")
    args.program = words.pop()


def _compare(args: argparse.Namespace) -> int:
    """Print or write the comparison; return 1 where no option ran."""
    _take_program(args)
    outputs = Output.of_args(args)
    framework = args.framework or framework_of(args.program, program(args.program))
    options = _options(args, framework)
    from tensorlens.planning.compare.api import compare

    comparison = compare(
        args.program,
        options,
        how="estimated" if args.estimated else "measured",
        baseline=args.baseline or _unmodified(options),
        device=args.device,
        card=args.card,
        capacity=args.capacity,
        batch=args.batch,
        highest=args.highest,
        arguments=arguments_of(args),
        timeout=args.timeout,
        framework=framework,
        **option_values(args, "lowest", "warmup", "steps", "repeats"),
    )
    return _answer(comparison, outputs, json=args.json)


def _options(args: argparse.Namespace, framework: Framework) -> Mapping[str, Mapping[str, Any]]:
    if not args.option:
        return _USUAL[framework]
    known, parameters = catalogue(framework), None
    with suppress(UsageError):  # compare() refuses a program that cannot be found
        parameters = parameters_of(program(args.program))
    options: dict[str, Mapping[str, Any]] = {}
    for name, *words in args.option:
        if name in options:
            raise UsageError(f"--option {shlex.quote(name)}: there are two of that name")
        if not words and name in _USUAL[framework]:
            options[name] = _USUAL[framework][name]
            continue
        # without a name, the settings are their own name
        settings = words or ([name] if "=" in name else [])
        options[name] = parse_option(
            [each for word in settings for each in _split(word)], known, parameters
        )
    if args.baseline is None and _BASELINE not in options and all(options.values()):
        return {_BASELINE: {}, **options}
    return options


def _unmodified(options: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the name of the option without settings, if none is named ``baseline``."""
    if _BASELINE in options:
        return None
    return next((name for name, settings in options.items() if not settings), None)


def _split(text: str) -> list[str]:
    """Split settings at commas; a part without ``=`` belongs to the setting before it.

    ``alloc_conf=expandable_segments:True,max_split_size_mb:128`` is one setting.
    """
    parts: list[str] = []
    for part in filter(None, text.split(",")):
        if parts and "=" not in part:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _answer(comparison: Comparison, outputs: Sequence[Output], *, json: bool) -> int:
    ran = any(each.ran for each in comparison.outcomes)
    if not ran:
        show_details(next((each.details for each in comparison.outcomes if each.details), ""))

    def least() -> str:
        return f"least memory: {', '.join(comparison.winners[0].names) or 'not known'}"

    write_record(comparison, outputs, json=json, answer=least)
    return 0 if ran else 1


def _settings(framework: Framework) -> str:
    lines: list[str] = []
    for each in catalogue(framework).values():
        head = f"  {each.name:<13} "
        lines += textwrap.wrap(
            f"{each.takes}:", _WIDTH, initial_indent=head, subsequent_indent=_FAR
        )
        lines += textwrap.wrap(each.what, _WIDTH, initial_indent=_FAR, subsequent_indent=_FAR)
    return "\n".join(lines)


_SUGGEST_EPILOG = """\
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

_SUGGEST_NUMBERS = {
    "top": "how many changes that cost something (3); free ones are always told",
    "batch": "what the function is called with",
    "warmup": "steps before those that are timed (1)",
    "steps": "steps that follow (2)",
    "repeats": "runs of each change to verify (1; of a graph 3)",
}


def add_suggest(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "suggest",
        description="Record a program's step and tell which changes would save most at its peak,\n"
        "each with its predicted saving.",
        epilog=_SUGGEST_EPILOG,
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
        choices=tuple(OPTIONS),
        help="framework of the steps (the one the program imports)",
    )
    add_step_options(parser, _SUGGEST_NUMBERS)
    add_output(parser, "the suggestions")
    parser.set_defaults(func=_suggest)


def _suggest(args: argparse.Namespace) -> int:
    """Print or write the suggestions; return 0."""
    outputs = Output.of_args(args)
    options = option_values(args, *_SUGGEST_NUMBERS, "timeout", "device", "framework")
    from tensorlens.planning.suggest.api import suggest

    suggestions = suggest(
        _recording_or_program(args.program),
        verify=args.verify,
        arguments=arguments_of(args),
        **options,
    )
    write_record(suggestions, outputs, json=args.json)
    return 0


def _recording_or_program(typed: str) -> Any:
    """Return the recording in a file, where it is one; else the program as it was typed."""
    if typed.endswith(".py") or not Path(typed).is_file():
        return typed
    from tensorlens.loading import load
    from tensorlens.recording.recordings import Recording

    record = load(typed)
    if not isinstance(record, Recording):
        raise UsageError(f"{typed} is no recording: give a .tlens file, or module:function")
    return record
