"""The verbs ``tensorlens estimate`` (a step, without a GPU) and ``plan`` (an input queue)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorlens.cli.options import add_output, add_set, arguments_of, note_options, whole_number
from tensorlens.cli.output import Output, say, show, write_record
from tensorlens.errors import UsageError
from tensorlens.planning.estimate.result import Estimate, Verdict
from tensorlens.planning.estimate.target import STEPS
from tensorlens.planning.inputs.api import plan

_DOES_NOT_FIT = 3

_EPILOG = """\
examples:
  tensorlens estimate train:make_step --card h100 --capacity 24GiB
  tensorlens estimate train.py:make_step --set batch=32 --set lr=1e-3 --explain
  tensorlens estimate train:make_step --card a100 --card l4 --card "rtx 4090"
  tensorlens estimate train:make_step --max-batch --capacity 24GiB
  tensorlens estimate -o estimate.html -o estimate.json train.py --epochs 1

PROGRAM is a function that builds model, optimizer and data and returns step(),
or returns a compiled Keras model. Or it is a whole script, or a module as of
python -m, which is given all that follows it: options of tensorlens come before
a script. What follows -- goes to the script of a function too.

The exit code is 0 when it fits, or likely does (which is said on standard
error), and 3 when it does not: into --capacity, or without it into the memory
of the card that --card names. Of several cards it has to fit one. It is 1 when
the program fails, 2 for a usage error.
"""


def add_estimate(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "estimate",
        description="Run a program's training steps on tensors without data, and tell what they\n"
        "will need on a card: whether it fits, the peaks, and what they are made of.",
        usage="%(prog)s [OPTIONS] PROGRAM [OPTIONS | ARGS...]",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_questions(parser)
    _add_answers(parser)
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="module:function, file.py:function, or a script or module and what is given to it",
    )
    parser.set_defaults(func=_estimate, parser=parser)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="NAME", default="cuda", help="cuda, or cpu (cuda)")
    parser.add_argument(
        "--card",
        metavar="NAME",
        action="append",
        default=[],
        help="the card: h100, a100-40gb, 'rtx 4090'; repeatable, for one table of several",
    )
    parser.add_argument(
        "--capacity",
        metavar="SIZE",
        help="the memory that it must fit into, everything included: 24GiB",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=int,
        default=STEPS,
        help=f"how many steps are run ({STEPS})",
    )
    add_set(parser)
    parser.add_argument(
        "--alloc-conf",
        metavar="TEXT",
        help="PYTORCH_CUDA_ALLOC_CONF on the card; without it, what it is here",
    )
    parser.add_argument(
        "--world-size",
        metavar="N",
        type=int,
        default=1,
        help="how many processes train together; the figures are of one (1)",
    )
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=int,
        help="of a Keras model that the function makes (32), or trains (its own)",
    )
    parser.add_argument(
        "--max-batch",
        action="store_true",
        help="find the largest batch that fits into --capacity or each card: the function is called"
        " with it",
    )


def _add_answers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--explain",
        action="store_true",
        help="explain in words what takes how much and why, with the sum",
    )
    add_output(parser, "the estimate", recordings="of its recording also")


def _estimate(args: argparse.Namespace) -> int:
    """Print or write the estimate; return 0, or 3 where it does not fit."""
    words, args = _parsed(args)
    outputs = Output.of_args(args)
    if args.json and args.explain:
        raise UsageError("--explain answers in words: leave it out with --json")
    options = _options(args, words[1:])
    if outputs and len(args.card) > 1:
        raise UsageError("-o writes the estimate for one card: give one --card")
    if args.max_batch:
        return _largest_batches(words[0], options, args, outputs)
    if len(args.card) > 1:
        from tensorlens.planning.estimate import estimate_cards

        return _several_cards([*estimate_cards(words[0], args.card, **options).values()], args)
    from tensorlens.planning.estimate import estimate
    from tensorlens.planning.estimate.verdict import fit_of, verdict
    from tensorlens.planning.processes import shared_runner

    # the program has ended, with what it cleans up, before anything is written
    with shared_runner():
        answer = estimate(words[0], **options, card=next(iter(args.card), None))
    _answer(answer, args, outputs)
    if answer.capacity is None and not args.card:
        return 0
    fit = fit_of(answer)
    if fit is not None and fit.verdict == Verdict.TIGHT:
        say(verdict(answer))
    return 0 if fit is None or fit else _DOES_NOT_FIT


def _parsed(args: argparse.Namespace) -> tuple[Sequence[str], argparse.Namespace]:
    """Return the program with what is given to it, and the options, those after it included."""
    words: list[str] = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        args.parser.error("give a PROGRAM: module:function, file.py:function or a script")
    program, rest = words[0], words[1:]
    if not _names_function(program):
        source = Path(program).read_bytes() if Path(program).is_file() else None
        note_options(args.parser, program, rest, source)
        return (program, *rest), args
    given: list[str] = []
    if "--" in rest:
        end = rest.index("--")
        rest, given = rest[:end], rest[end + 1 :]
    args = args.parser.parse_args(rest, args)
    if args.words:
        raise UsageError(f"{args.words[0]!r} after {program}: what is given to it comes after --")
    return (program, *given), args


def _names_function(program: str) -> bool:
    """Tell whether it is ``module:function`` or ``file.py:function``, and no script."""
    place, separator, function = program.rpartition(":")
    return bool(separator and place) and function.isidentifier() and not Path(program).is_file()


def _options(args: argparse.Namespace, script_args: Sequence[str]) -> dict[str, Any]:
    """Return the options of ``estimate()``, but for the card."""
    options = {
        "device": args.device,
        "steps": args.steps,
        "capacity": args.capacity,
        "settings": args.alloc_conf,
        "arguments": arguments_of(args),
        "world_size": args.world_size,
        "script_args": tuple(script_args),
    }
    if args.batch_size is not None:
        options["batch_size"] = args.batch_size
    return options


def _largest_batches(
    program: str, options: dict[str, Any], args: argparse.Namespace, outputs: Sequence[Output]
) -> int:
    """Find the largest batch, of each card; return 3 where not even the smallest fits."""
    if options.pop("device").partition(":")[0] != "cuda":
        raise UsageError("--max-batch is for --device cuda")
    if options.pop("script_args") or not _names_function(program):
        raise UsageError("--max-batch needs a function, which is called with the batch")
    if options["capacity"] is None and not args.card:
        raise UsageError("--max-batch needs a --capacity, or a --card")
    from tensorlens.planning.estimate import max_batch
    from tensorlens.planning.estimate.verdict import largest_batch_text
    from tensorlens.planning.processes import shared_runner

    with shared_runner():
        cards = args.card or [None]
        answers = [max_batch(program, **options, card=card).estimate for card in cards]
    if len(answers) > 1:
        return _several_cards(answers, args)
    (answer,) = answers
    if outputs and not args.explain:
        say(largest_batch_text(answer))
    _answer(answer, args, outputs)
    return 0 if answer.largest and answer.largest.batch else _DOES_NOT_FIT


def _several_cards(answers: Sequence[Estimate], args: argparse.Namespace) -> int:
    """Print one table of several cards; return 3 where it fits none."""
    from tensorlens.planning.estimate import present
    from tensorlens.planning.estimate.verdict import fit_of
    from tensorlens.render.formats import text_of_blocks

    fits = any(fit is None or fit for fit in map(fit_of, answers))
    if args.json:
        documents = [each.to_dict() for each in answers]
        content = {
            "schema": "tensorlens.estimates",
            "version": 1,
            "contains_source": any(each["contains_source"] for each in documents),
            "estimates": documents,
        }
        show(f"{json.dumps(content, separators=(',', ':'))}\n")
    else:
        texts = [text_of_blocks(present.cards(answers))]
        texts += [each.explain() for each in answers if args.explain]
        show("\n".join(texts))
    return 0 if fits else _DOES_NOT_FIT


def _answer(answer: Estimate, args: argparse.Namespace, outputs: Sequence[Output]) -> None:
    from tensorlens.planning.estimate.verdict import verdict

    if args.explain:
        show(answer.explain())
    if outputs or not args.explain:
        write_record(answer, outputs, json=args.json, answer=lambda: verdict(answer))


def add_plan(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "plan",
        description="Print the bytes of one batch by batch size and resolution, and by how much a"
        " loader's queue multiplies them. Nothing is run or imported.",
    )
    parser.add_argument(
        "shape",
        metavar="SHAPE",
        help="one sample, without the batch: 256x256x3; ?x?x3 for resolutions of 32 to 1024",
    )
    parser.add_argument("--dtype", default="float32", help="float32 unless given")
    parser.add_argument(
        "--batch", metavar="N[,N...]", help="one batch size, shown with its neighbours, or several"
    )
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="0 unless given")
    parser.add_argument(
        "--prefetch",
        type=int,
        metavar="N",
        help="prefetch_factor (2 unless given), max_queue_size (10), or of prefetch() (1)",
    )
    parser.add_argument("--loader", default="torch", help="torch (the default), keras or tf.data")
    add_output(parser, "the plan")
    parser.set_defaults(func=_plan)


def _plan(args: argparse.Namespace) -> int:
    """Print or write the plan; return 0."""
    outputs = Output.of_args(args)
    made = plan(
        [None if each == "?" else _extent(each, args.shape) for each in args.shape.split("x")],
        args.dtype,
        _batches(args.batch),
        args.workers,
        args.prefetch,
        loader=args.loader,
    )
    write_record(made, outputs, json=args.json)
    return 0


def _extent(text: str, shape: str) -> int:
    return whole_number(text, f"SHAPE {shape!r}: give whole numbers, as in 256x256x3")


def _batches(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    refused = f"--batch {text!r}: give whole numbers, as in 32,64"
    sizes = [whole_number(each, refused) for each in text.split(",")]
    return sizes[0] if len(sizes) == 1 else sizes
