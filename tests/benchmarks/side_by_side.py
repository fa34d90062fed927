"""Time variants of the same work in turn, so that a machine whose speed drifts is fair to all."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Nanoseconds of one variant, and its ratio to the first variant."""

    median_ns: float
    ratio: float
    """Of the fastest rounds: what others on the machine add to a round is in neither."""
    low: float
    """The quartiles of the ratios, round by round."""
    high: float


def in_turn(variants: Mapping[str, Work], rounds: int) -> dict[str, Timing]:
    """Return the timing of each variant over `rounds` rounds, the order reversed every other."""
    spent: dict[str, list[int]] = {name: [] for name in variants}
    for work in variants.values():
        work()
    for number in range(rounds):
        order = list(variants.items())
        for name, work in order if number % 2 else reversed(order):
            begun = perf_counter_ns()
            work()
            spent[name].append(perf_counter_ns() - begun)
    base = next(iter(spent.values()))
    return {name: _timing(times, base) for name, times in spent.items()}


def _timing(times: list[int], base: list[int]) -> Timing:
    ratios = [own / first for own, first in zip(times, base, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Timing(statistics.median(times), min(times) / min(base), low, high)


def show(title: str, timings: Mapping[str, Timing], per: int = 1) -> None:
    """Print the variants of one benchmark; `per` is how many units of work a round does."""
    print(f"\n{title}")
    for name, timing in timings.items():
        micros = timing.median_ns / per / 1000
        print(
            f"  {name:<34}{micros:>12.2f} us   {timing.ratio:>7.3f}x"
            f"   quartiles {timing.low:.3f} to {timing.high:.3f}"
        )
