import mmap

from tensorlens.recording import address_reserve


def test_address_reserve_is_released_and_retaken(monkeypatch):
    monkeypatch.setattr(address_reserve, "_wanted", 0)
    monkeypatch.setattr(address_reserve, "_held", None)
    address_reserve.reserve()
    address_reserve.reserve()
    assert isinstance(address_reserve._held, mmap.mmap)
    with address_reserve.released():
        assert address_reserve._held is None
        with address_reserve.released():
            pass
        # what is further out still needs it
        assert address_reserve._held is None
    assert address_reserve._held is not None
    address_reserve.release()
    assert address_reserve._held is not None
    address_reserve.release()
    assert address_reserve._held is None
    with address_reserve.released():
        pass
    assert address_reserve._held is None


def test_there_may_be_nothing_to_keep_back(monkeypatch):
    def refuse(*given):
        raise OSError

    monkeypatch.setattr(address_reserve, "_wanted", 0)
    monkeypatch.setattr(address_reserve, "_held", None)
    monkeypatch.setattr(address_reserve.mmap, "mmap", refuse)
    address_reserve.reserve()
    with address_reserve.released():
        pass
    address_reserve.release()
