"""Arrays of JAX of every kind, on several devices, at every moment: exact bytes by hand."""

from typing import Any

import pytest
from jax_programs import seen as seen_by

from tensorlens.units import format_bytes

FLOAT, SHARDS = "float32", "addressable_shards"


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return seen_by("arrays_of_jax.py", XLA_FLAGS="--xla_force_host_platform_device_count=4")


def test_every_kind_of_array_by_name_and_byte(seen: dict[str, Any]) -> None:
    expected = {
        "kinds(): four": ["int4", [10], 10, None],
        "kinds(): same": ["bfloat16", [3], 6, None],
        "kinds(): empty": [FLOAT, [0, 3], 0, None],
        "kinds(): number": [FLOAT, [], 4, None],
        "kinds(): nested['a'][0]": [FLOAT, [3], 12, None],
        "kinds(): nested['a'][1][0]": [FLOAT, [4], 16, None],
        "kinds(): kept": [FLOAT, [6], 24, None],
        "kinds(): borrowed": [FLOAT, [1024], 4096, None],
        "holder.key": ["uint32", [2], 8, "the numbers of key<fry> ()"],
        "holder.keys": ["uint32", [5, 2], 40, "the numbers of key<fry> (5,)"],
    }
    for place in range(4):
        expected[f"kinds(): parts.{SHARDS}[{place}]"] = [FLOAT, [2, 8], 64, None]
        # the whole of it on each device
        expected[f"kinds(): whole_on_each.{SHARDS}[{place}]"] = [FLOAT, [2, 2], 16, None]
        name = f"kinds(): asked.{SHARDS}[{place}]._data" if place else "kinds(): one"
        expected[name] = [FLOAT, [1], 4, None]
    assert seen["shares"]
    # neither what was deleted or donated, nor NumPy's float0
    assert seen["kinds"] == expected
    assert seen["balance"] == [sum(row[2] for row in expected.values())] * 3


def test_parts_that_the_program_asked_for_are_counted_once(seen: dict[str, Any]) -> None:
    parts = [f"kinds(): asked.{SHARDS}[{place}]" for place in range(4)]
    assert seen["aliases"] == [*parts, "kinds(): half"]


def test_a_look_makes_no_arrays_and_leaves_none_with_more(seen: dict[str, Any]) -> None:
    assert seen["unchanged"]


def test_looks_from_traces_callbacks_and_other_threads(seen: dict[str, Any]) -> None:
    assert seen["busy"] == [[[FLOAT, [7], 28, None]]] * 4
    assert seen["pending"] == [700 * 700 * 4]


def test_lines_of_eager_code_are_exact_and_peaks_are_not_known(seen: dict[str, Any]) -> None:
    assert seen["lines"] == [4000, 4000, -4000, 0]
    assert seen["peaks"] == ["None"]
    assert seen["missing"] == [False, {"peak": "JAX tells no peak of what it has on the CPU"}]
    assert seen["compiled"].endswith(
        "jax.jit compiled its lines away; profile the function that calls it"
    )


def test_lines_that_run_only_to_be_compiled_have_no_figures(seen: dict[str, Any]) -> None:
    # jax.grad computes as it goes; what jax.jit and jax.eval_shape look at allocates nothing
    assert seen["traced"] == [1, [1]]
    assert seen["traced alone"] == "it ran once to build graphs, and none was seen to run"


def test_what_a_compiled_function_takes_while_it_runs_is_told(seen: dict[str, Any]) -> None:
    planned, (note,) = seen["planned"]
    # at least two copies of what it sorts; it is given one, and gives a number
    assert planned >= 2 * 256 * 128 * 4
    total = 256 * 128 * 4 + 4 + planned
    assert note.startswith("XLA has planned most for jit_sorts, of ")
    assert note.partition(" compiled functions: ")[2] == (
        f"{format_bytes(total)} while it runs, {format_bytes(planned)} of it beside its arguments"
        " and results; kernels may take more for themselves"
    )
    assert seen["told with lines"]


def test_what_a_compiled_function_has_closed_over_says_so(seen: dict[str, Any]) -> None:
    assert seen["closed over"] == ["constants of compiled functions[0]"]


def test_a_failed_allocation_says_what_was_asked_for(seen: dict[str, Any]) -> None:
    assert seen["request"] == [None, 1 << 44]
