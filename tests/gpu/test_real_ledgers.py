"""Ledgers of a real GPU: skipped, with the reason, where there is none."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA or ROCm device here", allow_module_level=True)

from tensorlens.frameworks import CensusRoot  # noqa: E402
from tensorlens.frameworks.torch import findings  # noqa: E402
from tensorlens.records import BALANCE  # noqa: E402

MIB = 1 << 20


def ledger_of(*roots):
    gc.collect()
    torch.cuda.synchronize()
    ledger = findings.census([CensusRoot(item) for item in roots]).ledger["cuda:0"]
    for total, parts in BALANCE:
        figures = [getattr(ledger, name) for name in parts]
        if None not in figures:
            assert getattr(ledger, total) == sum(figures)
    return ledger


def term(ledger, key):
    return next(term.nbytes for term in ledger.parts if term.key == key)


def test_a_training_step_is_named_but_for_the_workspaces():
    """In a process of its own: whatever other tests left would be in the sums."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
model = torch.nn.Linear(1000, 1000, device="cuda:0")
optimizer = torch.optim.Adam(model.parameters())
batch = torch.randn(64, 1000, device="cuda:0")
loss = model(batch).square().mean()
loss.backward()
optimizer.step()
from test_real_ledgers import ledger_of, term
ledger = ledger_of(model, optimizer)
assert ledger.allocated == torch.cuda.memory_allocated(0), ledger
assert ledger.reserved == torch.cuda.memory_reserved(0), ledger
# weight, gradient and two moments of 4,000,000 + 4,000 B, the batch of 256,000 B, the loss of 4 B
assert ledger.named - term(ledger, "rounding") == 4 * 4_004_000 + 256_000 + 4, ledger
assert ledger.unnamed == sum(block.nbytes for block in ledger.blocks), ledger
torch._C._cuda_clearCublasWorkspaces()
again = ledger_of(model, optimizer)
assert (again.unnamed, again.block_count) == (0, 0), again
assert again.named == again.allocated == torch.cuda.memory_allocated(0), again
assert again.named == ledger.named, again
print(*(f"{{block.nbytes}} {{block.what}}" for block in ledger.blocks), sep="; ")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_allocator_and_driver_figures_are_those_of_torch():
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:0")
    ledger = ledger_of(kept)
    free, total = torch.cuda.mem_get_info(0)
    assert ledger.allocated == torch.cuda.memory_allocated(0)
    assert ledger.reserved == torch.cuda.memory_reserved(0)
    assert ledger.driver_total == total
    assert ledger.driver_used >= ledger.reserved
    assert free <= total - ledger.reserved
    assert term(ledger, "largest_free") <= ledger.cached


def test_peaks_and_cache_stay_as_they_are():
    ledger_of()  # collects what would otherwise be freed between the two looks
    torch.cuda.reset_peak_memory_stats(0)
    scratch = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:0")
    del scratch
    before = torch.cuda.memory_stats(0)
    ledger_of()
    assert torch.cuda.memory_stats(0) == before


def test_an_unnamed_block_tells_where_it_was_born():
    torch.ones(1, device="cuda:0")
    torch.cuda.memory._record_memory_history("state", stacks="python")
    address = torch.cuda.caching_allocator_alloc(48 * MIB, 0)
    try:
        block = next(block for block in ledger_of().blocks if block.address == address)
    finally:
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.caching_allocator_delete(address)
    assert block.nbytes >= 48 * MIB
    assert block.born is not None and block.born.filename == __file__


def test_asking_initialises_no_device():
    script = """
import torch
from tensorlens.frameworks.torch import device_ledgers
from tensorlens.records import TensorTable
assert device_ledgers(TensorTable()) == {}
assert not torch.cuda.is_initialized()
torch.ones(1, device="cuda:0")
assert list(device_ledgers(TensorTable())) == ["cuda:0"]
if torch.cuda.device_count() > 1:
    assert not torch._C._cuda_hasPrimaryContext(1)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
