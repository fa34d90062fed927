import gc
import threading
from array import array

import pytest
import torch

from tensorlens.frameworks.torch import Adapter, TorchAllocator


@pytest.fixture
def allocator():
    counter = Adapter().cpu_counter()
    if not isinstance(counter, TorchAllocator):
        pytest.skip("; ".join(Adapter().notes()))
    gc.collect()
    return counter


def addresses(*tensors):
    return array("Q", [tensor.untyped_storage().data_ptr() for tensor in tensors])


def test_sizes_and_their_sum(allocator):
    small, large = torch.empty(3), torch.empty(1000, dtype=torch.float64)
    balance = allocator.balance(addresses(small, large))
    assert balance.sizes == array("q", [12, 8000])
    assert balance.named == 8012
    assert balance.allocated == allocator.allocated()
    assert balance.unnamed == balance.allocated - 8012


def test_a_storage_named_twice_counts_once(allocator):
    base, other = torch.empty(10, 10), torch.empty(5)
    views = (base, base[3], base.t(), base.view(-1), base.detach())
    balance = allocator.balance(addresses(*views, other))
    assert balance.sizes == array("q", [400] * 5 + [20])
    assert balance.named == 420


def test_an_address_inside_a_block_names_nothing(allocator):
    base = torch.empty(10)
    inside = base[1:].data_ptr()
    balance = allocator.balance(array("Q", [inside, 0, 1, (1 << 64) - 1]))
    assert balance.sizes == array("q", [-1] * 4)
    assert balance.named == 0


def test_memory_of_others_is_not_in_the_table(allocator):
    bridged = torch.frombuffer(bytearray(400), dtype=torch.float32)
    nothing = torch.empty(0)
    shared = torch.ones(100).share_memory_()
    balance = allocator.balance(addresses(bridged, nothing, shared))
    assert balance.sizes == array("q", [-1, -1, -1])


def test_freed_block_leaves_the_table(allocator):
    tensor = torch.empty(100)
    address = addresses(tensor)
    del tensor
    assert allocator.balance(address).sizes == array("q", [-1])


def test_a_resized_storage_has_its_new_size(allocator):
    tensor = torch.empty(100)
    tensor.resize_(1000)
    assert allocator.balance(addresses(tensor)).sizes == array("q", [4000])


def test_without_addresses_nothing_is_named(allocator):
    kept = torch.empty(10)
    balance = allocator.balance(array("Q"))
    assert (len(balance.sizes), balance.named) == (0, 0)
    assert balance.unnamed == balance.allocated >= kept.nbytes
    assert balance.unmatched_count == len(allocator.living().address)


def test_the_largest_unmatched_blocks_first(allocator):
    # larger than what other tests may have left
    huge = [torch.empty((64 << 20) + extra, dtype=torch.uint8) for extra in (1, 3, 2)]
    named = torch.empty((64 << 20) + 4, dtype=torch.uint8)
    balance = allocator.balance(addresses(named), limit=3)
    # whether the line is known depends on who watches
    assert [block[:2] for block in balance.unmatched] == [
        (huge[1].data_ptr(), (64 << 20) + 3),
        (huge[2].data_ptr(), (64 << 20) + 2),
        (huge[0].data_ptr(), (64 << 20) + 1),
    ]
    assert balance.unmatched_count == len(allocator.living().address) - 1


def test_equal_blocks_are_listed_by_address(allocator):
    equal = [torch.empty(64 << 20, dtype=torch.uint8) for _ in range(3)]
    places = sorted(tensor.data_ptr() for tensor in equal)
    listed = allocator.balance(array("Q"), limit=2).unmatched
    assert [block[:2] for block in listed] == [(place, 64 << 20) for place in places[:2]]


@pytest.mark.parametrize("limit", [0, -1])
def test_no_list_is_asked_for(allocator, limit):
    kept = torch.empty(10)
    balance = allocator.balance(array("Q"), limit=limit)
    assert balance.unmatched == []
    assert balance.unmatched_count == len(allocator.living().address)
    assert kept.nbytes == 40


def test_fewer_blocks_than_the_limit(allocator):
    kept = torch.empty(10)
    balance = allocator.balance(array("Q"), limit=len(allocator.living().address) + 10)
    assert len(balance.unmatched) == balance.unmatched_count == len(allocator.living().address)
    assert sum(size for _, size, _ in balance.unmatched) == balance.unnamed
    assert (kept.data_ptr(), 40) in [block[:2] for block in balance.unmatched]


def test_table_of_many_blocks(allocator):
    before = allocator.balance(array("Q"))
    tensors = [torch.empty(index % 7 + 1, dtype=torch.uint8) for index in range(100_000)]
    balance = allocator.balance(addresses(*tensors))
    # whole weeks, and the first five days of the next
    total = 14_285 * 28 + 1 + 2 + 3 + 4 + 5
    assert balance.named == sum(balance.sizes) == total
    assert balance.unnamed == before.allocated
    assert balance.unmatched_count == before.unmatched_count


def test_table_is_consistent_while_threads_allocate(allocator):
    stop = threading.Event()

    def work():
        while not stop.is_set():
            [torch.empty(25) for _ in range(20)]

    kept = [torch.empty(25) for _ in range(100)]
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            balance = allocator.balance(addresses(*kept), limit=1 << 20)
            assert balance.named == 100 * 100
            assert balance.unmatched_count == len(balance.unmatched)
            assert sum(size for _, size, _ in balance.unmatched) == balance.unnamed
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert allocator.balance(array("Q")).allocated == allocator.allocated()
