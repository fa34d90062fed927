"""The near heap is what this thread's functions lead to: no class, no library, no data."""

import sys
import types

from tensorlens.heap import near_heap


class Thing:
    """An object that can be told from all others."""


def addresses():
    return set(map(id, near_heap().objects))


def test_containers_attributes_and_closures_of_variables():
    held, deep, closed = Thing(), Thing(), Thing()
    owner = Thing()
    owner.children = [{"deep": (deep,)}]

    def function():
        return closed

    places = [held, function]
    found = addresses()
    assert {id(places), *map(id, (held, deep, closed, owner, owner.children))} <= found
    assert id(places) in found and id(function) in found


def test_tuples_are_apart():
    inner = Thing()
    pair = (1, [inner])
    near = near_heap()
    assert id(pair) in map(id, near.tuples)
    assert id(pair) not in map(id, near.objects) and id(inner) in map(id, near.objects)


def test_large_containers_are_data():
    some, many = [[number] for number in range(10_000)], [[number] for number in range(10_001)]
    found = addresses()
    assert id(some) in found and id(some[-1]) in found
    assert id(many) in found and id(many[-1]) not in found


def test_at_most_twenty_thousand_objects_and_the_nearest_first():
    far = [[[[number]] for number in range(9_000)] for _ in range(4)]
    near = near_heap()
    assert len(near.objects) + len(near.tuples) == 20_000
    assert {id(each) for each in far} <= {id(each) for each in near.objects}


def test_globals_of_the_users_modules_and_not_of_libraries(monkeypatch):
    ours, theirs = types.ModuleType("ours"), types.ModuleType("theirs")
    ours.__file__, theirs.__file__ = "/home/me/ours.py", "/x/site-packages/theirs.py"
    for module in (ours, theirs):
        module.kept = Thing()
    near = near_heap()
    found = set(map(id, near.objects))
    assert id(ours.kept) in found and id(theirs.kept) not in found
    assert "ours" in near.modules and "theirs" not in near.modules
    assert __name__ in near.modules


def test_classes_are_not_looked_into():
    class Holder:
        kept = (Thing(),)

    holder = Holder()
    found = addresses()
    assert id(holder) in found and id(Holder) not in found
    # by a variable or a class alone
    assert id(Holder.__dict__["kept"][0]) not in found


def test_no_code_of_the_program_runs():
    class Globals(dict):
        def get(self, *arguments):
            raise AssertionError("a method of the program's globals was called")

    class Hostile:
        def __getattribute__(self, name):
            raise AssertionError("an attribute was asked for")

        __hash__ = None

        def __len__(self):
            raise AssertionError("a length was asked for")

    class HostileClass(type):
        # and so without a hash
        def __eq__(cls, other):
            raise AssertionError("a class was compared")

    class OfHostileClass(metaclass=HostileClass):
        pass

    hostile, odd = Hostile(), OfHostileClass()
    names = Globals(
        near_heap=near_heap, hostile=hostile, __name__="odd", __file__="/home/me/odd.py"
    )
    exec("def call():\n    inner = hostile\n    return near_heap()", names)
    near = dict.__getitem__(names, "call")()
    assert any(each is hostile for each in near.objects)
    assert any(each is odd for each in near.objects)


def test_a_main_that_is_no_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", Thing())
    kept = Thing()
    assert id(kept) in addresses()
