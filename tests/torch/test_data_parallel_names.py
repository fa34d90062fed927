"""What data parallel wrappers hold, in one process with gloo."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import tensorlens

fully_shard = pytest.importorskip("torch.distributed.fsdp").__dict__.get("fully_shard")
SIZE, LAYERS = 64, 4
WEIGHT = SIZE * SIZE * 4


@pytest.fixture
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE, bias=False) for _ in range(LAYERS)))


def blocks_made(recording) -> list:
    rows = [event.row for event in recording.events if event.action == "alloc"]
    return list(recording.blocks(rows))


@pytest.mark.skipif(fully_shard is None, reason="this torch has no fully_shard")
def test_unsharded_parameters_are_parameters(process_group) -> None:
    net = layers()
    mesh = init_device_mesh("cpu", (1,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    x = torch.randn(8, SIZE)
    net(x).sum().backward()
    reporter = tensorlens.MemReporter(net)
    with tensorlens.record(net) as recording:
        net(x).sum().backward()
    made = blocks_made(recording)
    assert not [block.name for block in made if "RegisterPostBackward" in block.name]
    # each layer is gathered once more in backward: only the last was still there from forward
    unsharded = [each for each in made if "unsharded parameters" in each.name]
    assert {each.role for each in unsharded} == {"parameter"}
    again = [each.nbytes for each in unsharded if each.phase == "backward"]
    assert again and {*again} == {WEIGHT}
    text = str(reporter.snapshot())
    assert "__composable_api" not in text and "without memory" in text


def test_buckets_are_gradients(process_group) -> None:
    net = torch.nn.parallel.DistributedDataParallel(layers())
    x = torch.randn(8, SIZE)
    with tensorlens.record(net) as recording:
        for _ in range(2):
            net(x).sum().backward()
            net.zero_grad()
    buckets = [each for each in blocks_made(recording) if each.name.endswith("gradient bucket")]
    assert {each.role for each in buckets} == {"gradient"}
    # after the first backward they are made anew, in the order in which gradients came; beside
    # them the reducer takes a few bytes for that order
    large = [each.nbytes for each in buckets if each.nbytes >= WEIGHT]
    assert sum(large) == LAYERS * WEIGHT


def test_snapshots_name_buckets(process_group) -> None:
    reporter = tensorlens.MemReporter()
    net = torch.nn.parallel.DistributedDataParallel(layers())
    reporter.add(net=net)
    x = torch.randn(8, SIZE)
    # the buckets of the beginning, and those in the order in which gradients came
    for _ in range(2):
        net(x).sum().backward()
        net.zero_grad()
        snapshot = reporter.snapshot()
        own = [each for each in snapshot.tensors if each.born and each.born.filename == __file__]
        buckets = [each for each in own if each.name.endswith("gradient bucket")]
        assert {each.role for each in buckets} == {"gradient"}
        assert sum(each.storage_nbytes for each in buckets) == LAYERS * WEIGHT
    assert not [each for each in own if each.model_line and each not in buckets]
