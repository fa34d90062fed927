"""``tensorlens mcp``: saved reports for a coding assistant, over the Model Context Protocol."""

from __future__ import annotations

import argparse
from typing import Any

from tensorlens.cli.options import add_no_source
from tensorlens.errors import TensorlensError


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "mcp",
        description="Serve saved reports to a coding assistant over standard input and output, by"
        " the Model Context Protocol. It reads files, runs no program, and opens no network port.",
    )
    add_no_source(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Serve until the client leaves; return 0.

    Raises:
        TensorlensError: the protocol's package is not installed.
    """
    try:
        from tensorlens.integrations.mcp import main
    except ImportError:
        raise TensorlensError(
            "it needs the protocol's package: pip install 'tensorlens[mcp]'"
        ) from None
    main()
    return 0
