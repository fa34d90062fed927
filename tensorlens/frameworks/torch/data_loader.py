"""The input queue of torch's DataLoader.

As in ``_MultiProcessingDataLoaderIter`` (torch/utils/data/dataloader.py, torch 2.13): an iterator
requests ``prefetch_factor x num_workers`` batches at its start (``_reset``) and one more with each
that it returns (``_process_data``), so that product is the most that are outstanding. Workers make
them as fast as they can, whether the loop takes any or not.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.frameworks.host.process_memory import mappings
from tensorlens.frameworks.queues import batch_bytes, bounded_queue, merge_queues, total
from tensorlens.frameworks.queues.worker_memory import object_containers, workers_of
from tensorlens.heap import instances
from tensorlens.heap.attributes import class_name, content_of, imported
from tensorlens.records.queues import Queue, QueuePart

_MODULE = "torch.utils.data.dataloader"
_SOURCE = "torch/utils/data/dataloader.py, _MultiProcessingDataLoaderIter"
_STATE = frozenset(("_task_info", "_workers", "_index_queues", "_worker_result_queue"))
_ITERABLE = 1
"""``_DatasetKind.Iterable``."""
_MAX_READINGS = 8
"""Maximum number of readings of counts and shared memory, until two agree."""
_SHARED = re.compile(r"/(?:dev/shm/)?torch_(\d+)_\d+_\d+(?: \(deleted\))?$")
"""torch's names of shared memory, with the process that made it: ``NewProcessWideShmHandle`` of
c10's StorageUtils.cpp."""


def is_loader(item: Any) -> bool:
    """Return whether an object is a DataLoader."""
    return issubclass(type(item), imported(_MODULE, "DataLoader"))


def is_iterator(item: Any) -> bool:
    """Return whether an object is an iterator over a DataLoader, torch's own or one like it."""
    if issubclass(type(item), imported(_MODULE, "_BaseDataLoaderIter")):
        return True
    return content_of(item).keys() >= _STATE


def iterators_of(loader: Any) -> list[Any]:
    """Return the live iterators over a loader.

    A loader refers to its iterator only if workers are persistent; other iterators are identified
    by their dataset, sampler, number of workers and collate function.
    """
    given = content_of(loader)
    kept = given.get("_iterator")
    if kept is not None and is_iterator(kept):
        return [kept]
    base = imported(_MODULE, "_BaseDataLoaderIter")
    samplers = (given.get("batch_sampler"), given.get("sampler"))
    found = []
    for item in instances(base):
        content = content_of(item)
        if (
            content.get("_dataset") is given.get("dataset")
            and any(content.get("_index_sampler") is each for each in samplers)
            and content.get("_num_workers") == given.get("num_workers")
            and content.get("_collate_fn") is given.get("collate_fn")
        ):
            found.append(item)
    return found


def look_at_loader(loader: Any, example: Any) -> Queue:
    """Return what the iterators over a DataLoader hold now and at most."""
    given = content_of(loader)
    workers, prefetch = number(given, "num_workers"), number(given, "prefetch_factor")
    running = [item for item in iterators_of(loader) if _is_open(item)]
    found = [look_at_iterator(item, example) for item in running]
    if len(found) == 1:
        _, _, settings = found[0].name.partition(", ")
        return replace(found[0], name=f"{class_name(loader)}, {settings}")
    queue = _empty_queue(class_name(loader), workers, prefetch, example)
    if not found:
        note = "no iterator over it is alive: nothing is held until a loop begins"
        return replace(queue, notes=(f"{note}, and no worker runs" if workers else note,))
    return merge_queues(f"{queue.name}, {len(found)} iterators", found)


def look_at_iterator(iterator: Any, example: Any = None) -> Queue:
    """Return what an iterator over a DataLoader holds, without taking a batch."""
    given = content_of(iterator)
    workers, prefetch = number(given, "_num_workers"), number(given, "_prefetch_factor")
    if given.keys() >= _STATE and _is_open(iterator):
        return _QueueView(iterator, workers, prefetch, example).queue()
    queue = _empty_queue(class_name(iterator), workers, prefetch, example)
    if workers and not _is_open(iterator):
        note = "it has come to its end, and its workers with it; persistent_workers=True keeps them"
        return replace(queue, max_batches=0, max_nbytes=0, notes=(note,))
    return queue


def parts_of(iterator: Any) -> tuple[QueuePart, ...]:
    """Return the parts of an iterator's queue, without reading its workers' memory."""
    given = content_of(iterator)
    if not given.keys() >= _STATE or not _is_open(iterator):
        return ()
    workers, prefetch = number(given, "_num_workers"), number(given, "_prefetch_factor")
    return _QueueView(iterator, workers, prefetch, None).parts()


def _is_open(iterator: Any) -> bool:
    return not content_of(iterator).get("_shutdown", False)


def number(content: Mapping[str, Any], name: str) -> int:
    """Return an attribute that is a whole number, else 0."""
    value = content.get(name)
    return value if type(value) is int else 0


@dataclass(frozen=True, slots=True)
class _Counts:
    """Number of tasks in each state, at one moment."""

    out_of_order: int
    """Received before an earlier one, and not returned yet."""
    requested: int
    """Requested from workers that have not ended, and not received."""
    results: int | None
    """In the pipe from the workers, or on the way into it."""
    pinned: int
    """Received by the pinning thread, and not by the loop."""
    waiting: int | None
    """Requested, and not taken by a worker."""


def _items(value: Any) -> list[Any]:
    """Return the items of a plain list or tuple; empty for other objects."""
    return list(value) if type(value) in (list, tuple) else []


def _length(queue: Any) -> int | None:
    size: Callable[[], Any] | None = getattr(type(queue), "qsize", None) and queue.qsize
    try:
        return None if size is None else max(0, int(size()))
    except Exception:
        # macOS does not count semaphores; the queue may be closed
        return None


class _QueueView:
    """State of an iterator with workers, read when this is created."""

    def __init__(self, iterator: Any, workers: int, prefetch: int, example: Any) -> None:
        self._content = content_of(iterator)
        self._name = class_name(iterator)
        self._workers, self._prefetch = workers, prefetch
        self._limit = workers * prefetch
        self._notes: list[str] = []
        self._has_pin_thread = "_pin_memory_thread" in self._content
        self._processes = _items(self._content["_workers"])
        self._pids = [pid for pid in map(_pid, self._processes) if pid]
        self._counts, self._shared = self._settled()
        tasks = dict(self._content["_task_info"])
        self._out_of_order = [info[1] for info in tasks.values() if len(info) == 2]
        self._pinned = self._pinned_batches()
        self._results = self._batch_count()
        self._batch_nbytes = self._batch_bytes(example)

    def queue(self) -> Queue:
        counts, one, parts = self._counts, self._batch_nbytes, self.parts()
        batches = (
            None if self._results is None else self._results + counts.out_of_order + counts.pinned
        )
        nbytes = total(part.nbytes for part in parts)
        missing = {}
        if batches is None:
            missing["batches"] = _NO_COUNT
        if nbytes is None:
            missing["nbytes"] = _NO_BATCH
        if one is None:
            missing["max_nbytes"] = missing["batch_nbytes"] = _NO_BATCH
        # the workers' memory first: reading the dataset below may copy pages that they share
        method = _start_method(self._processes)
        memory = workers_of(self._pids, method)
        is_copied = any(worker.copied for worker in memory)
        if any(worker.state == "dead" for worker in memory):
            self._notes.append("a worker has died: the loop will fail when it next waits for one")
        return Queue(
            name=named(self._name, self._workers, self._prefetch),
            framework="torch",
            batches=batches,
            nbytes=nbytes,
            max_batches=self._limit,
            max_nbytes=None if one is None else self._limit * one,
            batch_nbytes=one,
            parts=parts,
            rule=_rule(self._workers, self._prefetch),
            workers=memory,
            objects=object_containers(self._content.get("_dataset")) if is_copied else (),
            start_method=method,
            waiting=counts.waiting,
            in_work=self._in_work(),
            missing=missing,
            notes=tuple(self._notes),
        )

    def _settled(self) -> tuple[_Counts, int | None]:
        """Return counts and bytes in shared memory, read until two readings agree if possible.

        A worker counts a result before another of its threads moves it into shared memory.
        """
        before = self._count(), _shared_in_flight(self._pids)
        for _ in range(_MAX_READINGS):
            now = self._count(), _shared_in_flight(self._pids)
            if now == before:
                return now
            before = now
        self._notes.append("workers went on while it was looked at: counts may be off by one")
        return before

    def _count(self) -> _Counts:
        tasks = dict(self._content["_task_info"])
        status = _items(self._content.get("_workers_status"))
        workers = [info[0] for info in tasks.values() if len(info) == 1]
        open_workers = [at for at in workers if not 0 <= at < len(status) or status[at]]
        queues = _items(self._content["_index_queues"])
        waiting = [_length(queue) for at, queue in enumerate(queues) if at in open_workers]
        return _Counts(
            out_of_order=len(tasks) - len(workers),
            requested=len(open_workers),
            results=_length(self._content["_worker_result_queue"]),
            pinned=(_length(self._content.get("_data_queue")) or 0) if self._has_pin_thread else 0,
            waiting=None if None in waiting else sum(each for each in waiting if each is not None),
        )

    def _pinned_batches(self) -> list[Any]:
        """Return the batches in page-locked memory."""
        if self._has_pin_thread:
            waiting = content_of(self._content.get("_data_queue")).get("queue", ())
            with contextlib.suppress(RuntimeError, TypeError):
                return [item[1] for item in tuple(waiting)]
        return []

    def _batch_count(self) -> int | None:
        """Return the number of results that are batches."""
        results = self._counts.results
        if results is None:
            return None
        if self._content.get("_dataset_kind") != _ITERABLE:
            return min(results, self._counts.requested)
        self._notes.append("of an iterable dataset, results may be marks of its end")
        return results

    def _in_work(self) -> int | None:
        counts = self._counts
        if counts.results is None or counts.waiting is None:
            return None
        left = counts.requested - counts.waiting - counts.results - counts.pinned
        return max(0, min(left, self._workers))

    def _batch_bytes(self, example: Any) -> int | None:
        """Return the bytes of the largest batch at hand, else results' mean in shared memory."""
        sizes = [batch_bytes(batch) for batch in (*self._out_of_order, *self._pinned)]
        if example is not None:
            sizes.append(batch_bytes(example))
        if not any(sizes) and self._results:
            sizes.append((self._shared or 0) // self._results)
        return max(filter(None, sizes), default=None)

    def _result_bytes(self) -> int | None:
        """Return the bytes of the results: in shared memory if any, else count times batch size."""
        if self._shared or not self._results:
            return self._shared if self._results is None else self._shared or 0
        return None if self._batch_nbytes is None else self._batch_nbytes * self._results

    def parts(self) -> tuple[QueuePart, ...]:
        parts = [
            self._part(
                *("results", "worker processes and shared memory", self._results),
                self._result_bytes(),
                "made by workers and not received: _worker_result_queue",
            )
        ]
        if self._has_pin_thread:
            rule = "copied into page-locked memory by the pin_memory thread: _data_queue"
            nbytes = batch_bytes(*self._pinned) if self._pinned else 0
            parts.append(self._part("pinned", "this process", self._counts.pinned, nbytes, rule))
        nbytes = batch_bytes(*self._out_of_order) if self._out_of_order else 0
        rule = "received before an earlier one: _task_info"
        parts.append(
            self._part(
                "out of order", "this process", self._counts.out_of_order, nbytes, rule, less=1
            )
        )
        return tuple(parts)

    def _part(
        self,
        name: str,
        where: str,
        count: int | None,
        nbytes: int | None,
        rule: str,
        less: int = 0,
    ) -> QueuePart:
        limit = max(0, self._limit - less)
        most = None if self._batch_nbytes is None else limit * self._batch_nbytes
        missing = "" if nbytes is not None else _NO_BATCH
        return QueuePart(name, where, count, "batch", nbytes, limit, most, rule, missing=missing)


_NO_BATCH = "no batch to measure: pass one, inputs(loader, batch=batch)"
_NO_BATCH_YET = (
    "no batch is made yet, and making one runs the dataset's code: call"
    " inputs(loader, batch=next(iter(loader)))"
)
_NO_COUNT = "this system does not tell how much is in a queue between processes"


def _rule(workers: int, prefetch: int) -> str:
    if not workers:
        return "without workers, a batch is made when the loop asks for it: nothing is held ahead"
    return (
        f"num_workers x prefetch_factor = {workers} x {prefetch}: so many are asked for ahead"
        f" ({_SOURCE})"
    )


def _empty_queue(name: str, workers: int, prefetch: int, example: Any) -> Queue:
    one = None if example is None else batch_bytes(example)
    title, rule = named(name, workers, prefetch), _rule(workers, prefetch)
    return bounded_queue(title, "torch", workers * prefetch, one, rule, no_size=_NO_BATCH_YET)


def named(name: str, workers: int, prefetch: int) -> str:
    """Return the title of a loader: ``DataLoader, 2 workers x prefetch 2``."""
    if not workers:
        return f"{name}, no workers"
    return f"{name}, {workers} {'worker' if workers == 1 else 'workers'} x prefetch {prefetch}"


def _shared_in_flight(pids: Sequence[int]) -> int | None:
    """Return the bytes of shared memory from workers that this process has not received.

    A worker keeps the descriptor of each until it is received (``reduce_storage`` of
    torch/multiprocessing/reductions.py); with the sharing strategy ``file_system`` there is a file
    instead. None if this system does not tell.
    """
    own = {str(pid) for pid in pids}
    made: list[tuple[tuple[int, int], int, str]] = []
    try:
        here = {inode for inode, _, _ in _shared_memory("/proc/self/fd")} | _mapped_shared()
        for folder in (*(f"/proc/{pid}/fd" for pid in pids), "/dev/shm"):
            with contextlib.suppress(FileNotFoundError):
                made.extend(_shared_memory(folder))
    except OSError:
        return None
    sizes = {inode: size for inode, size, maker in made if maker in own and inode not in here}
    return sum(sizes.values())


def _shared_memory(folder: str) -> Iterator[tuple[tuple[int, int], int, str]]:
    """Yield device and inode, bytes and maker of torch's shared memory, by file or descriptor."""
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):
            path = os.readlink(entry.path) if entry.is_symlink() else entry.path  # noqa: PTH115
            match = _SHARED.search(path)
            if match:
                status = entry.stat()
                yield (status.st_dev, status.st_ino), status.st_size, match[1]


def _mapped_shared() -> set[tuple[int, int]]:
    """Return device and inode of torch's shared memory that is mapped here."""
    found = set()
    for line in mappings():
        fields = line.split(None, 5)
        if len(fields) == 6 and _SHARED.search(fields[5].rstrip()):
            major, minor = (int(part, 16) for part in fields[3].split(":"))
            found.add((os.makedev(major, minor), int(fields[4])))
    return found


def _pid(process: Any) -> int | None:
    # not is_alive(), which reaps a process that has died: others may wait for it
    pid = getattr(content_of(process).get("_popen"), "pid", None)
    return pid if type(pid) is int else None


def _start_method(processes: Sequence[Any]) -> str:
    for process in processes:
        method = getattr(type(process), "_start_method", None)
        if type(method) is str:
            return method
        if class_name(process) == "Process":
            import multiprocessing

            return multiprocessing.get_start_method(allow_none=True) or ""
    return ""
