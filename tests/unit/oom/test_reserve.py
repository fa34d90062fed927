import mmap

from tensorlens.recording.oom import reserve


def test_what_is_kept_back_is_given_up_and_taken_again(monkeypatch):
    monkeypatch.setattr(reserve, "_wanted", 0)
    monkeypatch.setattr(reserve, "_held", None)
    reserve.hold()
    reserve.hold()
    assert isinstance(reserve._held, mmap.mmap)
    with reserve.given_up():
        assert reserve._held is None
        with reserve.given_up():
            pass
        # what is further out still needs it
        assert reserve._held is None
    assert reserve._held is not None
    reserve.release()
    assert reserve._held is not None
    reserve.release()
    assert reserve._held is None
    with reserve.given_up():
        pass
    assert reserve._held is None


def test_there_may_be_nothing_to_keep_back(monkeypatch):
    def refuse(*given):
        raise OSError

    monkeypatch.setattr(reserve, "_wanted", 0)
    monkeypatch.setattr(reserve, "_held", None)
    monkeypatch.setattr(reserve.mmap, "mmap", refuse)
    reserve.hold()
    with reserve.given_up():
        pass
    reserve.release()
