"""How long `import tensorlens` takes, beside an interpreter that imports nothing."""

import subprocess
import sys

from tests.benchmarks.side_by_side import Timing, in_turn


def run(rounds: int = 15) -> dict[str, Timing]:
    """Return the timings of whole processes."""
    programs = {"python -c pass": "pass", "import tensorlens": "import tensorlens"}
    return in_turn(
        {
            name: lambda text=text: subprocess.run([sys.executable, "-c", text], check=True)
            for name, text in programs.items()
        },
        rounds,
    )
