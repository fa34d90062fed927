from tensorlens.leaks import end_of, filling, has_end
from tensorlens.records import Reference, ReferencePath

RECENT = Reference("attribute", "Loop.recent (attribute)")


def way(*references):
    return ReferencePath((RECENT, *references))


def item(text, length, limit=None, spare=None):
    return Reference("item", text, "", length, limit, spare)


def test_a_deque_that_fills():
    latest, earliest = item("deque[6]", 7, 100), item("deque[2]", 7, 100)
    assert filling(way(latest), [way(earliest)]) is latest
    assert end_of(latest) == "it ends at 100 items"


def test_a_list_with_places_left():
    latest, earliest = item("list[6]", 100, None, 93), item("list[2]", 100, None, 93)
    assert filling(way(latest), [way(earliest)]) is latest
    assert end_of(latest) == "93 of its 100 places are still free"


def test_one_place_and_one_item():
    assert end_of(item("list[2]", 4, None, 1)) == "1 of its 4 places is still free"
    assert end_of(item("deque[0]", 1, 1)) == "it ends at 1 item"


def test_a_list_kept_in_a_bounded_container_is_not_bounded():
    slot = item("deque[0]", 1, 3)
    found = filling(way(slot, item("list[6]", 7)), [way(slot, item("list[2]", 7))])
    assert found is None


def test_a_cache_does_not_tell_places_apart():
    cache = Reference("cache", "mask (lru_cache, maxsize=64)", "", 7, 64)
    assert filling(way(cache), [way(cache)]) is cache


def test_unbounded_items():
    assert not has_end(item("list[6]", 7))
    assert not has_end(item("list[6]", 7, None, 0))
    assert filling(way(item("list[6]", 7)), [way(item("list[2]", 7))]) is None
