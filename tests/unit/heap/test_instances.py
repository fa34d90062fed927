"""Living instances are found without a trace in what other threads do."""

import sys
import threading
import time

from tensorlens.heap import instances


class Kept:
    pass


class Derived(Kept):
    pass


class Odd(type):
    def __hash__(cls):
        raise RuntimeError("hashed")

    def __eq__(cls, other):
        raise RuntimeError("compared")


def test_instances_of_derived_classes_are_found() -> None:
    kept, derived = Kept(), Derived()
    odd = Odd("Hidden", (), {})()
    assert {*map(id, instances(Kept))} == {id(kept), id(derived)}
    assert [id(each) for each in instances(type(odd))] == [id(odd)]


def test_a_tuple_that_another_thread_is_making_is_left_alone() -> None:
    # resizing one fails while anybody else refers to it
    over, failures = threading.Event(), []

    def make() -> None:
        try:
            while not over.is_set():
                tuple(time.sleep(0) for _ in range(40))
        except SystemError as failure:
            failures.append(failure)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=make) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(30):
            instances(Kept)
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert failures == []
