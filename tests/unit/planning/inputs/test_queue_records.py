"""A queue's record: printed, saved, read back."""

import csv
import io
import queue

import numpy as np
import pytest

import tensorlens
from tensorlens import Queue
from tensorlens.errors import FileFormatError
from tensorlens.loading import parse
from tensorlens.records import ObjectContainer, QueuePart, QueueWorker
from tensorlens.render import TextRenderer


def full():
    return Queue(
        name="DataLoader, 2 workers x prefetch 2",
        framework="torch",
        batches=3,
        nbytes=3 * 1024,
        max_batches=4,
        max_nbytes=4 * 1024,
        batch_nbytes=1024,
        parts=(
            QueuePart("results", "shared memory", 2, "batch", 2048, 4, 4096, "a rule"),
            QueuePart("<b>\x1b[31m", "here", 1, "sample", None, None, None, "", False, "why"),
        ),
        rule="2 x 2",
        workers=(
            QueueWorker(7, "running", 4096, 3072, 2048, 2048, 1536),
            QueueWorker(8, "dead", missing="it has ended"),
        ),
        objects=(ObjectContainer("dataset.rows", "list", 4096, "str", 1 << 20, True),),
        start_method="fork",
        waiting=0,
        in_work=1,
        missing={"nbytes": "for no reason"},
        notes=("a note",),
    )  # fmt: skip


def empty():
    missing = dict.fromkeys(("batches", "nbytes", "max_batches", "max_nbytes"), "nobody knows")
    return Queue("nothing", "python", None, None, None, None, None, (), "", missing=missing)


@pytest.mark.parametrize("make", [full, empty])
def test_queue_record_round_trip(make):
    assert parse(make().to_json()) == make()
    assert Queue.from_json(make().to_json()) == make()


def test_damaged_ones_are_refused():
    data = full().to_dict()
    for change in ({"parts": 3}, {"version": 2}):
        with pytest.raises(FileFormatError):
            Queue.from_dict({**data, **change})
    with pytest.raises(FileFormatError):
        Queue.from_json("[")


def test_queue_record_text():
    lines = str(full()).splitlines()
    assert lines[0] == "Input queue: DataLoader, 2 workers x prefetch 2"
    assert lines[1].split() == ["held", "now", "3", "batches,", "3.00", "KiB"]
    text = "\n".join(lines)
    assert "4 batches, 4.00 KiB; with the one in use 5.00 KiB" in text
    assert "\x1b" not in text
    assert "n/a: <b>" in text and "why" in text
    assert "note: a note" in text
    assert "written since the fork" in text
    worker = next(line for line in lines if line.split()[:1] == ["7"])
    assert worker.split()[2:] == "4.00 KiB 3.00 KiB 2.00 KiB 1.50 KiB 512 B".split()
    assert "dataset.rows: list of 4,096 str, 1.00 MiB of objects" in " ".join(text.split())
    assert str(empty()).count("n/a") >= 2
    narrow = TextRenderer(width=40, encoding="ascii").render(full())
    assert narrow.isascii()


def test_as_html_and_rows():
    html = full()._repr_html_()
    assert "<b>" not in html and "&lt;b&gt;" in html and "\x1b" not in html
    assert "a note" in html and "dead" in html
    rows = list(csv.DictReader(io.StringIO(full().to_csv())))
    assert [row["kind"] for row in rows] == ["queue", "part", "part", "worker", "worker", "objects"]
    assert (rows[0]["nbytes"], rows[0]["max_nbytes"]) == ("3072", "4096")
    assert (rows[3]["uss"], rows[3]["copied"], rows[4]["uss"]) == ("2048", "1536", "")
    assert list(full().to_pandas()["elements"].dropna()) == [3, 2, 1, 4096]
    assert len(empty().to_pandas()) == 1


def test_the_factor_counts_the_batch_in_use():
    assert (full().factor, empty().factor) == (5, None)


def test_arrays_and_where_they_are(tmp_path):
    array = np.zeros((100, 10), dtype=np.float32)
    for given in (array, array[5:]):
        found = tensorlens.inputs(given)
        assert (found.batches, found.nbytes, found.max_batches) == (0, 4000, 0)
        assert found.parts[0].where == "this process"
    mapped = np.memmap(tmp_path / "rows", dtype=np.uint8, mode="w+", shape=(77,))
    found = tensorlens.inputs(mapped)
    assert (found.nbytes, "mapped file" in found.parts[0].where) == (77, True)


def test_an_array_in_shared_memory():
    from multiprocessing.shared_memory import SharedMemory

    memory = SharedMemory(create=True, size=4096)
    try:
        array = np.ndarray((1024,), dtype=np.float32, buffer=memory.buf)
        found = tensorlens.inputs(array)
        assert (found.nbytes, found.parts[0].where) == (4096, "shared memory")
        del array
    finally:
        memory.close()
        memory.unlink()


def test_a_generator_holds_nothing_ahead():
    found = tensorlens.inputs(each for each in range(3))
    assert (found.batches, found.nbytes, found.max_batches) == (0, 0, 0)


def test_a_queue_of_arrays():
    waiting = queue.Queue(4)
    waiting.put(np.zeros(10))
    waiting.put({"x": np.zeros(5), "y": [np.zeros(1)]})
    found = tensorlens.inputs(waiting)
    assert (found.batches, found.nbytes, found.max_batches) == (2, 80 + 48, 4)
    assert (found.batch_nbytes, found.max_nbytes) == (80, 320)
    assert tensorlens.inputs(queue.Queue()).max_batches is None
    waiting.queue = None
    unlisted = tensorlens.inputs(waiting)
    assert (unlisted.batches, unlisted.nbytes) == (None, None)
    assert unlisted.missing["nbytes"] == "what waits in it cannot be listed"
