"""How many orders of a graph are tried, and what is said of the others."""

import pytest

from tensorlens.frameworks.tensorflow.estimate.orders import Meter, in_many_orders

RUNTIME = 16 << 10
MIB = 1 << 20


def tried(peaks, operations, *, by_time=False):
    """Return what orders come to, of which the seeds peak at these bytes in turn."""

    def peak_of(seed):
        meter = Meter()
        meter.take(peaks[seed % len(peaks)], None)
        meter.operations = operations
        return meter

    return in_many_orders(peak_of, by_time=by_time)


def test_all_orders_of_a_small_graph_with_a_margin_for_others():
    found = tried([100 * MIB, 200 * MIB], 900)
    assert (found.count, found.low, found.high) == (31, 98 * MIB, 204 * MIB + RUNTIME)
    # sixteen seeds of 31 are odd
    assert found.typical % 2 == 1


@pytest.mark.parametrize(
    ("peaks", "operations", "count"),
    [
        # 40,000 operations of four orders are more than 30,000
        ([1000 * MIB, 1004 * MIB], 10_000, 4),
        ([1000 * MIB, 1006 * MIB], 10_000, 16),
        # the third order is another one
        ([1000 * MIB, 1000 * MIB, 1000 * MIB, 1100 * MIB], 10_000, 16),
        ([1000 * MIB], 37_000, 4),
        ([1000 * MIB, 1100 * MIB], 37_000, 5),
        ([1000 * MIB], 200_000, 1),
        # 31 orders are 148,800 operations: all can be run
        ([1000 * MIB], 4_800, 31),
    ],
)
def test_a_large_graph_is_run_as_often_as_its_peaks_need(peaks, operations, count):
    assert tried(peaks, operations).count == count


def test_where_few_orders_are_tried_others_may_be_further_off():
    found = tried([1000 * MIB], 10_000)
    assert (found.low, found.high) == (850 * MIB, int(1000 * MIB * 1.15) + RUNTIME)


def test_the_figure_is_of_an_order_without_disturbances():
    # every third seed is of one where threads wait
    found = tried([900 * MIB, 100 * MIB, 100 * MIB], 900, by_time=True)
    assert found.typical % 3 != 0
    assert (found.low, found.high) == (98 * MIB, 918 * MIB + RUNTIME)
