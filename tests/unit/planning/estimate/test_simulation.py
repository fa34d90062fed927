"""Requests of a trace come to the figures that the allocator's rules give."""

import pytest

from tensorlens.errors import UsageError
from tensorlens.planning import H100, DeviceSpec, Trace
from tensorlens.planning.allocators import parse_settings
from tensorlens.planning.estimate import Fit, Range, Simulation, assemble, least_capacity
from tensorlens.records import ALLOC, FREE, Mark, Rules

MIB = 1 << 20


class Requests:
    """Makes a trace by hand."""

    def __init__(self):
        self.trace = Trace()
        self.numbers = 0

    def take(self, nbytes, device="cuda:0", bounds=None, hidden=None):
        self.numbers += 1
        row = self.trace.log.append(ALLOC, device, self.numbers, nbytes, 0)
        if bounds:
            self.trace.bounds[row] = bounds
        if hidden:
            self.trace.scratch[row] = hidden
        return row

    def give_back(self, row):
        log = self.trace.log
        log.append(FREE, log.devices[log.device[row]], log.address[row], log.size[row], 0)

    def mark(self, name):
        self.trace.log.marks.append(Mark(name, len(self.trace.log), 0))

    def empty_cache(self):
        self.trace.emptied.append((len(self.trace.log), "cuda:0"))


def simulated(requests, settings=""):
    return Simulation(requests.trace, parse_settings(settings)[0]).run()


def test_options_of_the_allocator_that_are_not_simulated_are_named():
    requests = Requests()
    requests.mark("step 1")
    requests.take(600)
    requests.mark("end")
    found = assemble(requests.trace, DeviceSpec("cuda", H100, None), "p", "foo:1,backend:native")
    assert [each.text for each in found.warnings] == ["foo is not simulated"]


def test_each_step_has_its_own_peaks():
    requests = Requests()
    requests.take(10 * MIB)
    requests.mark("step 1")
    one = requests.take(30 * MIB)
    requests.give_back(one)
    requests.mark("step 2")
    requests.take(600)
    requests.mark("end")
    setup, first, second = simulated(requests).figures["cuda:0"]
    assert [each.name for each in (setup, first, second)] == ["setup", "step 1", "step 2"]
    assert (setup.peak_allocated, setup.allocated) == (10 * MIB, 10 * MIB)
    assert (first.peak_allocated, first.allocated) == (40 * MIB, 10 * MIB)
    # the freed 30 MiB stay with the allocator
    assert (first.peak_reserved, first.reserved) == (40 * MIB, 40 * MIB)
    assert (second.peak_allocated, second.peak_reserved) == (10 * MIB + 1024, 42 * MIB)


def test_host_memory_is_counted_as_it_is_asked_for():
    requests = Requests()
    one = requests.take(601, "cpu")
    requests.give_back(one)
    requests.take(7, "cpu")
    requests.mark("end")
    (only,) = simulated(requests).figures["cpu"]
    assert (only.peak_allocated, only.allocated) == (601, 7)


def test_empty_cache_returns_segments():
    requests = Requests()
    one = requests.take(30 * MIB)
    requests.give_back(one)
    requests.empty_cache()
    requests.take(20 * MIB)
    requests.mark("end")
    result = simulated(requests)
    (only,) = result.figures["cuda:0"]
    assert only.peak_reserved == 30 * MIB
    assert only.reserved == 20 * MIB
    assert sum(segment.size for segment in result.log.segments) == 20 * MIB


def test_least_capacity_is_below_what_is_reserved_where_cached_memory_can_go():
    requests = Requests()
    one = requests.take(100 * MIB)
    requests.give_back(one)
    requests.take(102 * MIB)
    requests.mark("end")
    result = simulated(requests)
    assert result.peaks("cuda:0")[1] == 202 * MIB
    # to one part in four hundred, of which 2 MiB are the finest
    least = least_capacity(requests.trace, "cuda:0", Rules(), 202 * MIB)
    assert 102 * MIB <= least <= 104 * MIB


def test_a_request_of_unknown_size_gives_bounds():
    requests = Requests()
    requests.take(40 * MIB)
    requests.mark("step 1")
    scratch = requests.take(20 * MIB, bounds=(0, 60 * MIB), hidden="cuDNN workspace")
    requests.give_back(scratch)
    requests.mark("end")
    estimate = assemble(requests.trace, DeviceSpec("cuda", H100, None), "p")
    allocated = estimate.allocated
    assert (allocated.low, allocated.point, allocated.high) == (40 * MIB, 60 * MIB, 100 * MIB)
    assert estimate.peak_allocated == 60 * MIB == sum(estimate.by_role.values())
    # a tenth less than what is simulated has no room for it, and a fifth more may be taken
    assert estimate.lower == estimate.least_capacity.low == 40 * MIB
    assert estimate.upper >= 120 * MIB
    (term,) = [term for term in estimate.terms if not term.apart]
    assert term.name == "cuDNN workspace"
    assert (term.nbytes.low, term.nbytes.point, term.nbytes.high) == (0, 20 * MIB, 60 * MIB)


def test_remainders_make_the_roles_add_up():
    requests = Requests()
    # a segment of 12 MiB, from which 1 MiB less 512 B is too little to split off
    requests.take(11 * MIB + 512)
    requests.mark("end")
    estimate = assemble(requests.trace, DeviceSpec("cuda", H100, None), "p")
    assert estimate.peak_allocated == 12 * MIB
    assert estimate.by_role["remainder"] == MIB - 512
    assert sum(estimate.by_role.values()) == 12 * MIB
    assert sum(estimate.by_module.values()) == sum(estimate.by_line.values()) == 12 * MIB


@pytest.mark.parametrize(
    ("capacity", "verdict"), [(39, "does not fit"), (41, "tight"), (61, "fits")]
)
def test_fits_verdict(capacity, verdict):
    requests = Requests()
    requests.take(40 * MIB, bounds=(30 * MIB, 60 * MIB), hidden="cuDNN workspace")
    requests.mark("end")
    estimate = assemble(requests.trace, DeviceSpec("cuda", None, capacity * MIB), "p")
    assert estimate.apart.high == 0
    assert estimate.fits().verdict == verdict
    assert bool(estimate.fits) == (verdict != "does not fit")
    assert not estimate.fits("1 MiB")


def test_least_capacity_of_tensorflows_allocator():
    requests = Requests()
    requests.trace.framework = "tensorflow"
    requests.give_back(requests.take(30 * MIB))
    kept = requests.take(20 * MIB)
    requests.take(8 * MIB)
    requests.give_back(kept)
    requests.mark("end")
    # with growth and without an end: 32 MiB, all for the 30, then for the 20; then 32 more
    assert simulated(requests).peaks("cuda:0")[1] == 64 * MIB
    # 20 are given all 32: the 8 need as much again, for which 8 will do
    assert least_capacity(requests.trace, "cuda:0", Rules(), 64 * MIB) == 40 * MIB


def test_least_capacity_of_expandable_segments():
    requests = Requests()
    kept = [requests.take(30 * MIB) for _ in range(2)]
    requests.take(11 * MIB)
    for each in kept:
        requests.give_back(each)
    requests.take(60 * MIB)
    requests.mark("end")
    # 60 MiB in one piece: 12 are in use, the two segments of 30 go back
    assert least_capacity(requests.trace, "cuda:0", Rules(), 132 * MIB) == 72 * MIB
    # mapped in units of 20: 71 MiB in use; behind the 11 that follow the free 60
    expandable = Rules(expandable_segments=True)
    assert least_capacity(requests.trace, "cuda:0", expandable, 132 * MIB) == 80 * MIB


def test_host_memory_fits_into_what_is_asked_alone():
    fits = Fit(None, Range.exactly(40 * MIB))
    assert repr(fits) == "<no capacity was asked>" and repr(fits("41 MiB")) == "<fits>"
    assert not fits(39 * MIB)
    for ask in (bool, Fit.__call__):
        with pytest.raises(UsageError, match="no fixed size"):
            ask(fits)
