"""What data parallel wrappers hold, in one process with gloo."""

import subprocess

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import tensorlens
from tests import warm

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
    # those of the end by the reducer's own name; beside buckets it takes a few bytes for the order
    # in which gradients came
    made = [each for each in blocks_made(recording) if each.nbytes >= WEIGHT]
    buckets = [each for each in made if each.name.startswith("reducer.buckets[")]
    assert {each.role for each in buckets} == {"gradient"}
    assert sum(each.nbytes for each in buckets) == LAYERS * WEIGHT


def of_reducer(snapshot) -> list:
    # of the wrapper that was given: there may be others
    given = ("reducer.", "net.reducer.")
    return [each for each in snapshot.tensors if each.name.startswith(given)]


def test_snapshots_name_buckets(process_group) -> None:
    reporter = tensorlens.MemReporter()
    net = torch.nn.parallel.DistributedDataParallel(layers())
    reporter.add(net=net)
    x = torch.randn(8, SIZE)
    # the buckets of the beginning, and those in the order in which gradients came
    for _ in range(2):
        net(x).sum().backward()
        net.zero_grad()
        buckets = of_reducer(reporter.snapshot())
        assert {each.name for each in buckets} == {
            f"net.reducer.buckets[{index}]" for index in range(len(buckets))
        }
        assert {(each.role, each.dtype) for each in buckets} == {("gradient", "float32")}
        assert {each.born.filename for each in buckets} == {__file__}
        assert sum(each.storage_nbytes for each in buckets) == LAYERS * WEIGHT


def test_gradients_that_are_views_of_buckets_count_once(process_group) -> None:
    net = torch.nn.parallel.DistributedDataParallel(layers(), gradient_as_bucket_view=True)
    net(torch.randn(8, SIZE)).sum().backward()
    snapshot = tensorlens.MemReporter(net).snapshot()
    storages = {each.storage for each in of_reducer(snapshot)}
    sharing = [each for each in snapshot.tensors if each.storage in storages]
    gradients = {each.name for each in sharing} - {each.name for each in of_reducer(snapshot)}
    assert gradients == {f"module.{index}.weight.grad" for index in range(LAYERS)}
    counted = [each for each in sharing if each.alias_of is None]
    assert sum(each.storage_nbytes for each in counted) == LAYERS * WEIGHT


BEFORE_ANY_REPORT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net = torch.nn.Linear(64, 64, bias=False)
net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(8, 64)
for _ in range(3):
    net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
import tensorlens
snapshot = tensorlens.MemReporter(net, optimizer).snapshot()
ledger = snapshot.ledger["cpu"]
print(ledger.allocated, ledger.named)
print(*(each.storage_nbytes for each in snapshot.tensors if "reducer." in each.name))
dist.destroy_process_group()
"""


def test_buckets_made_before_the_first_report() -> None:
    done = subprocess.run(
        [*warm.python(), "-c", BEFORE_ANY_REPORT], capture_output=True, text=True, check=True
    )
    figures, buckets = done.stdout.splitlines()
    # the weight, its momentum, its bucket; x
    assert figures.split() == [str(3 * WEIGHT + 8 * SIZE * 4)] * 2
    assert buckets == str(WEIGHT)


def test_buckets_of_another_device(process_group) -> None:
    with torch.device("meta"):
        net = layers()
    net = torch.nn.parallel.DistributedDataParallel(net, init_sync=False)
    buckets = of_reducer(tensorlens.MemReporter(net).snapshot())
    assert {each.device for each in buckets} == {"meta"}
    assert sum(each.nbytes for each in buckets) == LAYERS * WEIGHT


def test_snapshot_in_a_communication_hook(process_group) -> None:
    net = torch.nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=100)
    snapshots = []

    def hook(state, bucket):
        snapshots.append(tensorlens.MemReporter(net).snapshot())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    net.register_comm_hook(None, hook)
    net(torch.randn(8, SIZE)).sum().backward()
    # the reducer is locked meanwhile: what its bucket is called, only the hook's variable says
    assert {each.role for each in snapshots[0].tensors} >= {"parameter"}
    assert of_reducer(tensorlens.MemReporter(net).snapshot())
