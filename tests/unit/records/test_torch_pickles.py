"""Pickles from strangers: nothing in them is run, and none of them takes the reader down."""

import copyreg
import os
import pickle
import random
import struct
import zipfile

import pytest
from torch_recordings import read

from tensorlens import load
from tensorlens.errors import FileFormatError
from tensorlens.records import unpickle

GOOD = {"segments": [], "device_traces": [[]], "n": [None, True, False, -1, 2**40, 1.5, "x" * 300]}
RAN = []


def run(*arguments):
    RAN.append(arguments)


class Runs:
    def __reduce__(self):
        return run, ("something",)


def proto(program, version=4):
    return b"\x80" + bytes([version]) + program


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_plain_data_reads_back_equal(version):
    for data in (GOOD, [GOOD] * 3, {"a": (0, 1), "b": (5,), "c": (), "d": (1, 2, 3)}, "text"):
        assert unpickle(pickle.dumps(data, version)) == data


@pytest.mark.parametrize("version", range(6))
def test_code_is_refused_and_not_run(version, tmp_path):
    file = tmp_path / "evil.pickle"
    for data in (Runs(), {"segments": [Runs()]}, [GOOD, Runs()]):
        file.write_bytes(pickle.dumps(data, version))
        with pytest.raises(FileFormatError) as raised:
            unpickle(file.read_bytes())
        if version > 1:
            assert str(raised.value) == (
                f"tries to run code ({__name__}.run): refused; nothing was run"
            )
    assert RAN == []


def test_the_line_a_person_sees(tmp_path):
    file = tmp_path / "evil.pickle"
    file.write_bytes(proto(b"cos\nsystem\n(X\x04\x00\x00\x00exittR."))
    with pytest.raises(FileFormatError) as raised:
        load(file)
    assert str(raised.value) == (f"{file}: tries to run code (os.system): refused; nothing was run")


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (b"cos\nsystem\n)R.", "os.system"),
        (b"\x8c\x02os\x8c\x06system\x93)R.", "os.system"),
        (b"(ios\nsystem\n.", "os.system"),
        (b"(X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93o.", "os.system"),
        (b"c\x1b[31m\nred\n.", r"\?\[31m.red"),
        # behind a text that looks like the end
        (b"X\x01\x00\x00\x00.cos\nsystem\n)R.", "os.system"),
        (b"\x95\x00\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n)R.", "os.system"),
    ],
)
def test_every_way_to_name_code_is_refused(program, name):
    with pytest.raises(
        FileFormatError, match=rf"^tries to run code \({name}\): refused; "
    ) as raised:
        unpickle(proto(program))
    assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)


def test_the_extension_registry_is_no_way_in():
    copyreg.add_extension(__name__, "run", 0x7F)
    try:
        cached = pickle.loads(proto(b"\x82\x7f."))
        assert cached is run
        with pytest.raises(FileFormatError, match="refused; nothing was run"):
            unpickle(proto(b"\x82\x7f(K\x01tR."))
    finally:
        copyreg.remove_extension(__name__, "run", 0x7F)
        copyreg.clear_extension_cache()
    assert RAN == []


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b".",
        b"e.",
        b"0.",
        b"(.",
        b"]K\x01s.",
        b"K\x01K\x02K\x03s.",
        b"h\x05.",
        b"]]s.",
        b"}]K\x01s.",  # a list as a key
        b"N",
        b"X\xff\xff\xff\xffabc.",
        b"\x8c\xffabc.",
        b"\x8d" + struct.pack("<Q", 2**62) + b"abc.",
        b"\x8e" + struct.pack("<Q", 2**62) + b"abc.",
        b"B" + struct.pack("<I", 2**31) + b"abc.",
        b"\x8a\xff\x01.",
        b"\x8b" + struct.pack("<i", 2**31 - 1) + b"abc.",
        b"\x95" + struct.pack("<Q", 2**63) + b"N.",
        b"Nr" + struct.pack("<I", 2**31) + b".",
        b"Nj" + struct.pack("<I", 2**31) + b".",
        b"\x8c\x02\xff\xfe.",
        b"X\x01\x00\x00\x00\xff.",
        b"N.N",
        b"N.garbage",
        b"\x80\x09N.",
        b"\x8f.",
        b"I" + b"9" * 100_000 + b"\n.",
        b"\xff.",
        b"\x97.",
    ],
)
def test_damaged_pickle_is_one_line(program):
    with pytest.raises(FileFormatError) as raised:
        read(proto(program))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 200


@pytest.mark.parametrize(
    "program",
    [b"N)R.", b"}}b.", b"N)\x81.", b"N)}\x92.", b"(No.", b"Pname\n.", b"NQ.", b"\x82\x01."],
)
def test_opcodes_without_a_name_are_refused(program):
    with pytest.raises(FileFormatError):
        unpickle(proto(program))


def test_depth_takes_nothing_down():
    deep = b"]" * 200_000 + b"a" * 199_999 + b"."
    with pytest.raises(FileFormatError):
        read(proto(deep))
    # each list holds the one before it twice
    lists = b"]\x94" + b"".join(b"](h%ch%ce\x94" % (n, n) for n in range(60)) + b"."
    with pytest.raises(FileFormatError):
        read(proto(lists))


def test_other_torch_files_are_named(tmp_path):
    saved = tmp_path / "model.pt"
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
    with pytest.raises(FileFormatError, match=r"a zip archive, such as torch\.save\(\)"):
        load(saved)
    for data in (7, "text", [], {}, {"a": 1}, [1], None, {"state_dict": {}}):
        content = pickle.dumps(data)
        with pytest.raises(FileFormatError):
            read(content)


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_raises_nothing_else(seed):
    chance = random.Random(seed)
    frames = [{"filename": "a.py", "line": 1, "name": "f"}]
    event = {"action": "alloc", "addr": 512, "size": 9, "stream": 0, "time_us": 1, "frames": frames}
    block = {"address": 0, "size": 512, "requested_size": 1, "state": "inactive", "frames": frames}
    listed = {"device": 0, "address": 0, "total_size": 512, "stream": 0, "blocks": [block]}
    good = pickle.dumps({"segments": [listed], "device_traces": [[event] * 3]}, 4)
    assert len(read(good).log) == 5
    for _ in range(100):
        content = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(2, len(content))] = chance.randrange(256)
        if chance.random() < 0.3:
            del content[chance.randrange(len(content)) :]
        try:
            recording = read(bytes(content))
            str(recording.devices and recording.peak())
        except FileFormatError as error:
            assert "\n" not in str(error)


def test_a_child_that_would_exit_does_not(tmp_path):
    class Exits:
        def __reduce__(self):
            return os._exit, (3,)

    with pytest.raises(FileFormatError, match=r"_exit\): refused; nothing was run"):
        unpickle(pickle.dumps([Exits()]))
