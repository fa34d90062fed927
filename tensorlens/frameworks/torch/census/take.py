"""A census of torch's tensors: found, read, named, and put in a table.

The heap's objects are pinned while it goes on, so that no address is given out twice, and let go
at its end: nothing of it refers to a tensor.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from tensorlens.frameworks.base import Findings, Root
from tensorlens.frameworks.census.table import Births
from tensorlens.frameworks.heap import living, no_locals, select
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.census.device_ledger import device_ledgers
from tensorlens.frameworks.torch.census.find import Found
from tensorlens.frameworks.torch.census.graph import node_types
from tensorlens.frameworks.torch.census.host import cpu_ledger
from tensorlens.frameworks.torch.census.modules import content_of
from tensorlens.frameworks.torch.census.named_rows import NamedRows
from tensorlens.frameworks.torch.census.naming import Naming
from tensorlens.frameworks.torch.census.owners import Owners
from tensorlens.frameworks.torch.census.quiet import undisturbed
from tensorlens.frameworks.torch.census.table import tabulate
from tensorlens.frameworks.torch.native import TorchAllocator
from tensorlens.records.names import Names

_KINDS = (torch.Tensor, torch._C._FunctionBase, torch.nn.Module, torch.optim.Optimizer)


def take(roots: Sequence[Root]) -> Findings:
    """Return every live tensor by name, the ledger of each device, and notes for the reader."""
    counter = cpu.cpu_counter()
    births = Births(counter.allocator if isinstance(counter, cpu.CpuCounter) else None)
    with undisturbed() as can_read:
        objects = living()
        tensors, functions, modules, optimizers, nodes = select(objects, _KINDS, node_types())
        owners = Owners(roots)
        owners.add_keras(objects)
        owners.add_found(modules, optimizers)
        # Python makes the dict of an instance when it is first asked for
        objects.extend(filter(None, map(content_of, optimizers)))
        found = Found(tensors, owners.naming, (*functions, *nodes), can_read)
        names = NamedRows(found, owners, objects)
        found.scan.close()
        del objects
        table = tabulate(found, names, births)
        ledger = {"cpu": cpu_ledger(table, counter, births), **device_ledgers(table)}
    reasons = filter(None, (cpu.fallback_reason(), no_locals()))
    return Findings(table, ledger, (*_notes(found), *reasons))


def adopt_all(allocator: TorchAllocator) -> None:
    """Count in what was allocated before the counter was there, autograd's included."""
    with undisturbed() as can_read:
        tensors, functions, modules, _, nodes = select(living(), _KINDS, node_types())
        nothing = Naming(Names())
        found = Found(tensors, nothing, (*functions, *nodes), can_read)
        cpu.adopt_tensors(allocator, found.tensors, modules)


def _notes(found: Found) -> list[str]:
    notes = []
    if not found.graph.is_whole:
        notes.append(
            "another thread is in a backward pass that goes on and on: not all of what autograd's "
            "graphs hold was looked at"
        )
    if found.scan.fakes:
        notes.append(f"{found.scan.fakes} fake tensors were left out: they hold no memory")
    if found.graph.recomputed:
        notes.append(
            f"{found.graph.recomputed} values are checkpointed: nothing of them is kept, backward "
            "computes them again"
        )
    if found.graph.reentrant:
        notes.append(
            f"{found.graph.reentrant} regions are checkpointed (reentrant): nothing of what they "
            "computed is kept, backward computes it again"
        )
    if found.graph.packed:
        notes.append(
            f"{found.graph.packed} values are packed by saved-tensor hooks into something that "
            "holds no tensor"
        )
    if found.graph.unread:
        notes.append(f"{found.graph.unread} values that autograd saved could not be read")
    frozen = gc.get_freeze_count()
    if frozen:
        notes.append(
            f"gc.freeze() hides {frozen} objects: tensors among them are only found from models, "
            "optimizers and gradients"
        )
    return notes
