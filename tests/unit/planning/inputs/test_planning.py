"""``inputs.plan()`` against what one works out by hand, and the table of the blog post."""

import csv
import io

import numpy as np
import pytest

import tensorlens
from tensorlens.errors import UsageError
from tensorlens.loading import parse

MIB = 2**20


def test_one_batch_is_its_extents_times_the_bytes_of_a_number():
    plan = tensorlens.inputs.plan((256, 256, 3), "float32", 256)
    assert plan.nbytes == 192 * MIB
    assert (plan.ahead, plan.factor, plan.held) == (0, 1, 192 * MIB)


def test_the_table_of_batch_by_resolution():
    """GiB of float32 RGB images: 32 at 32x32 are 3/8192 GiB, 65,536 at 1024x1024 768 GiB."""
    batches = [2**power for power in range(5, 17)]
    plan = tensorlens.inputs.plan((None, None, 3), "float32", batches)
    assert plan.shapes == tuple((side, side, 3) for side in (32, 64, 128, 256, 512, 1024))
    table = dict(plan.rows())
    assert [cell / 2**30 for cell in table[32]] == [
        0.0003662109375, 0.00146484375, 0.005859375, 0.0234375, 0.09375, 0.375
    ]  # fmt: skip
    assert [cell / 2**30 for cell in table[65536]] == [0.75, 3, 12, 48, 192, 768]
    assert (plan.nbytes, plan.held) == (None, None)


@pytest.mark.parametrize(
    ("options", "ahead"),
    [
        ({"workers": 0, "prefetch": 8}, 0),
        ({"workers": 4}, 8),
        ({"workers": 4, "prefetch": 8}, 32),
        ({"loader": "keras", "workers": 2}, 11),
        ({"loader": "keras", "workers": 2, "prefetch": 2}, 3),
        ({"loader": "keras", "workers": 1, "prefetch": 10}, 1),
        ({"loader": "tf.data", "prefetch": 5}, 5),
    ],
)
def test_batches_in_a_queue(options, ahead):
    plan = tensorlens.inputs.plan((10,), "float64", 3, **options)
    assert plan.nbytes == 3 * 10 * 8
    assert (plan.ahead, plan.factor, plan.held) == (ahead, ahead + 1, 240 * (ahead + 1))


def test_neighbours_of_what_was_asked():
    plan = tensorlens.inputs.plan((3, 224, 224), "uint8", 64)
    assert plan.batch_sizes == (16, 32, 64, 128, 256)
    assert [shape[1:] for shape in plan.shapes] == [(s, s) for s in (56, 112, 224, 448, 896)]
    assert all(shape[0] == 3 for shape in plan.shapes)
    assert tensorlens.inputs.plan((7,), "uint8", 3).shapes == ((7,), (14,), (28,))
    assert tensorlens.inputs.plan((), "uint8", 1).shapes == ((),)


@pytest.mark.parametrize(
    ("dtype", "itemsize"),
    [("bool", 1), ("bfloat16", 2), ("float8_e4m3fn", 1), ("complex64", 8), (np.float16, 2),
     (np.dtype("int64"), 8), ("torch.half", 2)],
)  # fmt: skip
def test_plan_dtypes(dtype, itemsize):
    assert tensorlens.inputs.plan((5,), dtype, 2).nbytes == 10 * itemsize


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((3,), {}),
        (("abc",), {}),
        (((1.5,),), {}),
        (((-1,),), {}),
        (((3,), "float31"), {}),
        (((3,), "float32", 0), {}),
        (((3,), "float32", []), {}),
        (((3,), "float32", 1, -1), {}),
        (((3,), "float32", 1, 1, 0), {}),
        (((3,),), {"loader": "other"}),
        (((None,),), {"resolutions": []}),
    ],
)
def test_bad_plan_is_refused(arguments, options):
    with pytest.raises(UsageError):
        tensorlens.inputs.plan(*arguments, **options)


def test_a_plan_prints_itself_and_reads_back():
    plan = tensorlens.inputs.plan((256, 256, 3), "float32", 256, workers=2, prefetch=2)
    assert parse(plan.to_json()) == plan
    text = str(plan)
    assert "192.00 MiB" in text and "960.00 MiB" in text and "256x256x3" in text
    assert "192.00 MiB" in plan._repr_html_()
    rows = list(csv.DictReader(io.StringIO(plan.to_csv())))
    assert len(rows) == 25
    asked = next(row for row in rows if (row["batch"], row["shape"]) == ("256", "256x256x3"))
    assert (int(asked["nbytes"]), int(asked["held"])) == (192 * MIB, 960 * MIB)
    assert plan.to_pandas()["nbytes"].sum() == sum(int(row["nbytes"]) for row in rows)


@pytest.mark.parametrize(("kind", "itemsize"), [(float, 8), (int, 8), (complex, 16), (bool, 1)])
def test_types_of_python_are_those_of_numpy(kind, itemsize):
    assert np.dtype(kind).itemsize == itemsize
    assert tensorlens.inputs.plan((10,), kind).itemsize == itemsize
