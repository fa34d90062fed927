"""How cached memory goes back to the driver, on request or where there is too little.

As ``release_available_cached_blocks``, ``release_blocks`` and ``garbage_collect_cached_blocks`` do
it in ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.13.
"""

from __future__ import annotations

from bisect import bisect_left

from tensorlens.planning.allocators.blocks import SHIFT, Memory, Pool
from tensorlens.planning.allocators.expandable import shrink


def release_oversize(memory: Memory, pool: Pool, size: int) -> bool:
    """Give back blocks too large to be split until a request of so many bytes has room.

    One that is large enough, else the largest ones first; tell whether it was enough.
    """
    limit = memory.settings.max_split_size
    if limit is None:
        return False
    wanted = max(size, limit)
    blocks = memory.free_blocks(pool)
    index = bisect_left(pool.keys, wanted << SHIFT)
    if index < len(blocks) and blocks[index].reservation is None:
        memory.release(blocks[index])
        return True
    released = 0
    for block in reversed(blocks[:index]):
        if released >= wanted or block.size < limit:
            break
        if block.reservation is None:
            released += block.size
            memory.release(block)
    return released >= wanted


def release_cached(memory: Memory) -> None:
    """Give back every segment that is not in use at all, and the unused units of expandable ones.

    Of the large pools first.
    """
    for small in (False, True):
        expandable = []
        for pool in memory.pools(small=small):
            for block in memory.free_blocks(pool):
                if block.reservation is not None:
                    expandable.append(block)
                elif not block.split:
                    memory.release(block)
        for block in expandable:
            shrink(memory, block)


def collect_garbage(memory: Memory) -> None:
    """Give back the older unused segments of the large pools above the threshold.

    A block's age is how many searches there were since it became free. Those of the average age
    and older go, round after round, until enough is back.
    """
    assert memory.allowed is not None
    threshold = int(memory.settings.garbage_collection_threshold * memory.allowed)
    target = memory.reserved - threshold
    if target <= 0:
        return
    blocks = [
        block
        for pool in memory.pools(small=False)
        for block in memory.free_blocks(pool)
        if not block.split
    ]
    ages = {block.address: memory.searches - block.born for block in blocks}
    total, count, reclaimed = sum(ages.values()), len(blocks), 0
    freed = True
    while reclaimed < target and freed and count > 0:
        oldest = total / count
        freed = False
        for block in list(blocks):
            age = ages[block.address]
            if block.reservation is None and age >= oldest:
                freed = True
                reclaimed += block.size
                total -= age
                count -= 1
                blocks.remove(block)
                memory.release(block)
