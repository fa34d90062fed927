"""Run in a process of its own with four CPU devices; prints what was seen of arrays as JSON."""

import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import tensorlens
from tensorlens.frameworks.base import whole
from tests.aside import set_libraries_aside

SEEN = {}


@tensorlens.profile
def lines(number):
    first = jnp.ones((number,), jnp.float32)
    both = first * 2
    del first
    return both


def both(value):
    return (value * 2).sum()


def traced_alone(value):
    return value * 2


class Holder:
    def __init__(self):
        self.key = jax.random.key(3)
        self.keys = jax.random.split(jax.random.key(4), 5)


def rows(snapshot):
    return {
        each.name: [each.dtype, [*each.shape], each.nbytes, each.note]
        for each in snapshot.tensors
        if each.alias_of is None
    }


def state():
    """What the program could notice of a look."""
    arrays = jax.live_arrays()
    return len(arrays), [sorted(each.__dict__) for each in arrays]


def kinds():
    mesh = jax.make_mesh((4,), ("x",))
    parts = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("x")))
    whole_on_each = jax.device_put(jnp.ones((2, 2)), NamedSharding(mesh, P()))
    asked = jax.device_put(jnp.ones((4,)), NamedSharding(mesh, P("x")))
    one = asked.addressable_shards[0].data
    holder = Holder()
    four, half = jnp.ones(10, jnp.int4), jnp.ones(3, jnp.bfloat16)
    empty, number = jnp.zeros((0, 3)), jnp.float32(1)
    same = half.clone()
    nested = {"a": [jnp.ones(3), (jnp.zeros(4),)]}
    dead, donated = jnp.ones(5), jnp.ones(6)
    dead.delete()
    kept = jax.jit(lambda v: v + 1, donate_argnums=0)(donated)
    no_gradient = np.zeros(3, jax.dtypes.float0)
    lent = np.zeros(1024 + 16, "float32")
    start = -lent.ctypes.data // 4 % 16
    lent = lent[start : start + 1024]
    borrowed = jax.dlpack.from_dlpack(lent)
    shares = borrowed.unsafe_buffer_pointer() == lent.ctypes.data
    before = state()
    snapshot = tensorlens.MemReporter(holder=holder).snapshot()
    SEEN["unchanged"] = before == state()
    SEEN["kinds"], SEEN["shares"] = rows(snapshot), shares
    ledger = snapshot.ledger["cpu"]
    SEEN["balance"] = [ledger.allocated, ledger.named, whole().cpu_counter().reader()()[0]]
    SEEN["missing"] = ledger.allocated is None, dict(whole().cpu_counter().missing)
    SEEN["aliases"] = sorted(each.name for each in snapshot.tensors if each.alias_of is not None)
    del parts, whole_on_each, one, four, empty, number, same, nested, dead, kept, no_gradient


def while_jax_is_busy():
    """Looks from inside of a function that is traced, of a computation, and of what fails."""
    looks = []

    def look():
        snapshot = tensorlens.MemReporter().snapshot()
        looks.append([row for name, row in rows(snapshot).items() if "held" in name])
        return snapshot

    held = jnp.ones(7)

    @jax.jit
    def traced(value):
        look()
        return value * held

    traced(held)

    @jax.jit
    def calls_back(value):
        def inside(number):
            look()
            return np.float32(number)

        return value * jax.pure_callback(inside, jax.ShapeDtypeStruct((), np.float32), value[0])

    calls_back(held).block_until_ready()
    other = threading.Thread(target=look)
    other.start()
    other.join()
    large = jnp.ones((700, 700))
    product = jax.jit(lambda v: v @ v @ v @ v)(large)
    found = rows(look())
    SEEN["pending"] = [row[2] for name, row in found.items() if name.endswith(": product")]
    SEEN["busy"] = looks
    del product


def lines_of_a_function():
    lines(1000)
    with tensorlens.LineProfiler(lines) as profiler:
        kept = lines(1000)
    (function,) = profiler.result().functions
    SEEN["lines"] = [each.memory["cpu"].net for each in function.lines if each.hits]
    peaks = {each.memory["cpu"].peak for each in function.lines if each.hits}
    SEEN["peaks"] = sorted(map(str, peaks))
    del kept
    with tensorlens.LineProfiler(both) as profiler:
        jax.grad(both)(jnp.ones(3))
        jax.jit(jax.grad(both))(jnp.ones(3))
        jax.eval_shape(both, jnp.ones(3))
    (function,) = profiler.result().functions
    SEEN["traced"] = [function.calls, [each.hits for each in function.lines if each.hits]]
    with tensorlens.LineProfiler(traced_alone) as profiler:
        jax.jit(traced_alone)(jnp.ones(3))
    SEEN["traced alone"] = str(profiler.result().functions[0].note)
    try:
        tensorlens.profile(jax.jit(lines))
    except tensorlens.errors.ProfileError as error:
        SEEN["compiled"] = str(error)


def what_a_compiled_function_takes():
    value = jnp.ones((256, 128))

    @jax.jit
    def sorts(value):
        for axis in (0, 1, 0):
            value = jnp.sort(value, axis=axis) + 1
        return value.sum()

    tables = [jnp.arange(50.0)]
    looks_up = jax.jit(lambda place: tables[0][place])
    looks_up(3)
    tables.clear()
    sorts(value)
    planned = sorts.lower(value).compile().memory_analysis().temp_size_in_bytes
    del value
    snapshot = tensorlens.MemReporter().snapshot()
    notes = snapshot.notes
    SEEN["closed over"] = [name for name, row in rows(snapshot).items() if row[2] == 200]
    SEEN["planned"] = [planned, [each for each in notes if "jit_sorts" in each]]
    SEEN["told with lines"] = [*whole().notes()] == [each for each in notes if "XLA" in each]


def out_of_memory():
    tensorlens.explain_oom()
    try:
        jnp.ones((1 << 44,), jnp.int8)
    except Exception as error:
        found = whole().failed_request(error)
        SEEN["request"] = [found.device, found.nbytes]


set_libraries_aside("jax")
kinds()
while_jax_is_busy()
lines_of_a_function()
jax.clear_caches()
what_a_compiled_function_takes()
out_of_memory()
print(json.dumps(SEEN))
