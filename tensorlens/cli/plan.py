"""``tensorlens plan``: what batches of an input take, and what a queue of them makes of it."""

from __future__ import annotations

import argparse
from typing import Any

from tensorlens.cli.options import add_output, whole_number
from tensorlens.cli.output import Output, write_record
from tensorlens.planning.inputs.plan import plan


def add_parser(subparsers: Any) -> None:
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
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the plan; return 0.

    Raises:
        UsageError: a shape, dtype, number or loader that is none.
        TensorlensError: the output cannot be written.
    """
    outputs = Output.of_args(args)
    made = plan(
        [None if each == "?" else _number(each, "SHAPE") for each in args.shape.split("x")],
        args.dtype,
        _batches(args.batch),
        args.workers,
        args.prefetch,
        loader=args.loader,
    )
    write_record(made, outputs, json=args.json)
    return 0


def _batches(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    sizes = [_number(each, "--batch") for each in text.split(",")]
    return sizes[0] if len(sizes) == 1 else sizes


def _number(text: str, name: str) -> int:
    return whole_number(text, f"{name} {text!r}: give whole numbers, as in 256x256x3")
