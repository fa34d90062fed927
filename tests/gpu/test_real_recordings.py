"""Recordings of a real GPU: skipped, with the reason, where there is none."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA or ROCm device here", allow_module_level=True)

import tensorlens  # noqa: E402

MIB = 1 << 20


@pytest.fixture(autouse=True)
def empty():
    torch.ones(1, device="cuda:0")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(0)


def test_the_peak_is_the_allocators_own():
    with tensorlens.record() as recording:
        kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:0")
        scratch = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda:0")
        del scratch
        torch.cuda.synchronize()
    peak = recording.peak("cuda:0")
    assert (peak.held or peak.bytes) == torch.cuda.max_memory_allocated(0)
    assert "kept" in " ".join(tensor.name for tensor in peak.tensors)
    del kept


def test_a_training_steps_live_bytes_are_the_allocators():
    model = torch.nn.Sequential(torch.nn.Linear(500, 900), torch.nn.ReLU(), torch.nn.Linear(900, 7))
    model.to("cuda:0")
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(64, 500, device="cuda:0")
    with tensorlens.record() as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        allocated = torch.cuda.memory_allocated(0)
    end = recording.at(len(recording.events) - 1, "cuda:0")
    assert (end.held or end.bytes) == allocated
    forward = {cost.line.lineno for cost in recording.backward("cuda:0") if cost.line}
    assert forward, "backward is charged to lines"


def test_events_have_the_module_that_ran():
    model = torch.nn.Sequential(torch.nn.Linear(500, 900), torch.nn.ReLU(), torch.nn.Linear(900, 7))
    model.to("cuda:0")
    batch = torch.randn(64, 500, device="cuda:0")
    with torch.no_grad(), tensorlens.record(model, names=False) as recording:
        hidden = model[0](batch)
        after = torch.empty(MIB, dtype=torch.uint8, device="cuda:0")
        model(batch)
    made = [event for event in recording.events if event.action == "alloc" and event.nbytes > 512]
    of_card = [event.context.module for event in made if event.device == "cuda:0"]
    assert of_card[0] == "0" and None in of_card and {"1", "2"} <= {*of_card}
    del hidden, after


def test_the_programs_own_history_is_left_on():
    torch.cuda.memory._record_memory_history()
    try:
        with tensorlens.record():
            torch.empty(MIB, device="cuda:0")
        assert torch._C._cuda_isHistoryEnabled()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
