"""A job of a few gloo processes, started by torchrun: ``ranks_program.py FOLDER KIND ...``."""

import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import tensorlens

WIDTH, BATCH = 240, 8


def sharded(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    size = dist.get_world_size()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        return fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (size,)), plan)


def is_at_rest(snapshot: tensorlens.Snapshot, blocks: int) -> bool:
    """Tell whether no thread of gloo's holds a batch's results, or another model's, any more."""
    # a mesh keeps a few bytes, and FSDP the emptied storages of whole weights
    found = {each.storage for each in snapshot.tensors if each.storage_nbytes >= 4 * BATCH * WIDTH}
    return len(found - {0}) == blocks and not snapshot.ledger["cpu"].unnamed


def train(kind: str, folder: Path) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]
    model = sharded(torch.nn.Sequential(*layers), "ddp" if kind == "killed" else kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = [torch.zeros(25_000)] if rank == 1 else []
    for _ in range(2):
        model(torch.ones(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    reporter = tensorlens.MemReporter(model=model, optimizer=optimizer)
    snapshot = reporter.snapshot()
    # two weights, each with a slot; DDP has a bucket for the gradients
    blocks = 4 + isinstance(model, DistributedDataParallel) + len(kept)
    while not is_at_rest(snapshot, blocks):
        time.sleep(0.01)
        gc.collect()
        snapshot = reporter.snapshot()
    snapshot.save(folder / f"run.rank{rank}.json")
    if kind == "killed":
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    report = tensorlens.gather(snapshot)
    assert (report is None) == (rank != 0)
    if report is not None:
        report.save(folder / "gathered.json")
    assert len(kept) == (rank == 1)


def main() -> None:
    folder, *kinds = sys.argv[1:]
    dist.init_process_group("gloo")
    for kind in kinds:
        train(kind, Path(folder, kind))
    dist.destroy_process_group()


main()
