import mmap

from tensorlens.recording.oom import reserve


def test_what_is_kept_back_is_given_up_and_taken_again(monkeypatch):
    monkeypatch.setattr(reserve, "_wanted", 0)
    monkeypatch.setattr(reserve, "_held", None)
    reserve.reserve()
    reserve.reserve()
    assert isinstance(reserve._held, mmap.mmap)
    with reserve.released():
        assert reserve._held is None
        with reserve.released():
            pass
        # what is further out still needs it
        assert reserve._held is None
    assert reserve._held is not None
    reserve.release()
    assert reserve._held is not None
    reserve.release()
    assert reserve._held is None
    with reserve.released():
        pass
    assert reserve._held is None


def test_there_may_be_nothing_to_keep_back(monkeypatch):
    def refuse(*given):
        raise OSError

    monkeypatch.setattr(reserve, "_wanted", 0)
    monkeypatch.setattr(reserve, "_held", None)
    monkeypatch.setattr(reserve.mmap, "mmap", refuse)
    reserve.reserve()
    with reserve.released():
        pass
    reserve.release()
