"""A deferred log is made once, when anything of it is asked for, and is a log from then on."""

import copy
import pickle
import threading

import pytest

from tensorlens.records import ALLOC, DeferredLog, EventLog


@pytest.fixture
def made():
    return []


@pytest.fixture
def log(made):
    def make():
        made.append(1)
        log = EventLog()
        log.append(ALLOC, "cpu", 4096, 64, 10)
        return log

    return DeferredLog(make)


def test_deferred_log_is_built_on_first_use(log, made):
    assert isinstance(log, EventLog) and not made


@pytest.mark.parametrize(
    "ask",
    [len, lambda log: log.starts, lambda log: log[0], repr, copy.copy, copy.deepcopy, pickle.dumps],
)
def test_a_question_makes_the_log_once(log, made, ask):
    ask(log)
    ask(log)
    assert made == [1] and type(log) is EventLog
    assert (len(log), log.size[0], log.devices) == (1, 64, ["cpu"])


def test_a_pickle_is_of_the_log(log):
    read = pickle.loads(pickle.dumps(log))
    assert type(read) is EventLog and list(read.size) == [64]


def test_threads_that_ask_at_once_get_one_log(log, made):
    begin = threading.Barrier(8)
    sizes = []

    def ask():
        begin.wait()
        sizes.append(log.size)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1] and all(each is log.size for each in sizes) and len(sizes) == 8


def test_deferred_log_is_retried_after_a_failure():
    answers = iter([MemoryError, EventLog])

    def make():
        found = next(answers)
        if found is MemoryError:
            raise MemoryError
        return found()

    log = DeferredLog(make)
    with pytest.raises(MemoryError):
        len(log)
    assert len(log) == 0
