"""The rank of this process in a distributed job, as its launcher sets it in the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_LAUNCHERS = (
    # torchrun, accelerate, deepspeed, Kubernetes operators
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    # MPICH, Intel MPI
    ("PMI_RANK", "PMI_SIZE"),
    # srun; SLURM_NTASKS is there without any step as well
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of several."""

    number: int
    size: int

    def __str__(self) -> str:
        return f"rank {self.number} of {self.size}"

    @classmethod
    def parse(cls, text: str) -> Rank | None:
        """Return the rank in a text written by :meth:`__str__`."""
        found = re.search(r"rank (\d+) of (\d+)", text)
        return None if found is None else cls(int(found[1]), int(found[2]))


def current_rank(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """Return the rank of this process, or of an environment; None for a single process."""
    for rank, size in _LAUNCHERS:
        try:
            found = Rank(int(environment[rank]), int(environment[size]))
        except (KeyError, ValueError):
            continue
        return found if found.size > 1 else None
    return None


def tag() -> str:
    """Return the part of file names that identifies this process: ``4711``, ``rank1.4711``."""
    rank = current_rank()
    return str(os.getpid()) if rank is None else f"rank{rank.number}.{os.getpid()}"


def label(process: str | None = None) -> str | None:
    """Return the heading of this process's reports; None for a single process.

    Args:
        process: further text: ``process 4711 (SpawnProcess-1)``.
    """
    rank = current_rank()
    parts = [each for each in (None if rank is None else str(rank), process) if each]
    return ", ".join(parts) or None
