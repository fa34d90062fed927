import mmap

from tensorlens.recording import region


def test_what_is_kept_back_is_given_up_and_taken_again(monkeypatch):
    monkeypatch.setattr(region, "_wanted", 0)
    monkeypatch.setattr(region, "_held", None)
    region.reserve()
    region.reserve()
    assert isinstance(region._held, mmap.mmap)
    with region.released():
        assert region._held is None
        with region.released():
            pass
        # what is further out still needs it
        assert region._held is None
    assert region._held is not None
    region.release()
    assert region._held is not None
    region.release()
    assert region._held is None
    with region.released():
        pass
    assert region._held is None


def test_there_may_be_nothing_to_keep_back(monkeypatch):
    def refuse(*given):
        raise OSError

    monkeypatch.setattr(region, "_wanted", 0)
    monkeypatch.setattr(region, "_held", None)
    monkeypatch.setattr(region.mmap, "mmap", refuse)
    region.reserve()
    with region.released():
        pass
    region.release()
