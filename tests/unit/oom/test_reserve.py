import mmap

from tensorlens.recording import oom


def test_address_reserve_is_released_and_retaken(monkeypatch):
    monkeypatch.setattr(oom, "_wanted", 0)
    monkeypatch.setattr(oom, "_held", None)
    oom.reserve()
    oom.reserve()
    assert isinstance(oom._held, mmap.mmap)
    with oom.released():
        assert oom._held is None
        with oom.released():
            pass
        # what is further out still needs it
        assert oom._held is None
    assert oom._held is not None
    oom.release()
    assert oom._held is not None
    oom.release()
    assert oom._held is None
    with oom.released():
        pass
    assert oom._held is None


def test_there_may_be_nothing_to_keep_back(monkeypatch):
    def refuse(*given):
        raise OSError

    monkeypatch.setattr(oom, "_wanted", 0)
    monkeypatch.setattr(oom, "_held", None)
    monkeypatch.setattr(oom.mmap, "mmap", refuse)
    oom.reserve()
    with oom.released():
        pass
    oom.release()
