"""Pickles from strangers: plain data is read, whatever could run code is refused unread.

A pickle is a program. It is looked through before any of it is obeyed: only the instructions that
make dicts, lists, texts, numbers and tuples of numbers may be in it, each with its argument inside
of the file, so that neither code nor an absurd length is ever acted upon.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

from tensorlens.errors import FileFormatError

_ZIP = b"PK\x03\x04"
_HIGHEST = 5
_NUMBER = rb"(?:K.|M..|J.{4}|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))"
_PLAIN = re.compile(
    rb"(?:[hq].|j.{4}|[()\]}Nadelsu\x88\x89\x94]|G.{8}"
    # what a tuple holds is hashed all the way down where it is a key, so it holds numbers only
    rb"|%(number)s(?:\x85|%(number)s(?:\x86|%(number)s\x87))?+)*+" % {b"number": _NUMBER},
    re.DOTALL,
)
_STOP, _PROTO, _FRAME, _LONG_BINPUT = b".\x80\x95r"
_COUNTED = {0x8A: 1, 0x8C: 1, 0x8D: 8, 0x8E: 8, ord("B"): 4, ord("C"): 1, ord("X"): 4}
"""Instruction to the width of the length that comes before its argument."""
_BY_NAME = b"ci\x93"
_RUNS_CODE = b"ci\x93Rbo\x81\x92PQ\x82\x83\x84"


def unpickle(content: bytes) -> Any:
    """Return the plain data in a pickle: dicts, lists, texts, numbers, None, tuples of numbers.

    Raises:
        FileFormatError: it holds anything else, above all what would run code, or is damaged;
            nothing was run.
    """
    if content.startswith(_ZIP):
        raise FileFormatError(
            "a zip archive, such as torch.save() and Keras write, not a memory snapshot: those are"
            " written by torch.cuda.memory._dump_snapshot()"
        )
    _look_through(content)
    try:
        return _Refusing(io.BytesIO(content)).load()
    except _Refused as refused:
        raise FileFormatError(str(refused)) from None
    except Exception as error:
        raise FileFormatError(f"damaged pickle: {_printable(str(error))}") from None


class _Refused(Exception):
    pass


class _Refusing(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise _Refused(
            f"tries to run code ({_printable(f'{module}.{name}')}): refused; nothing was run"
        )

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise _Refused("tries to load objects from elsewhere: refused; nothing was run")


def _look_through(content: bytes) -> None:
    """Raise FileFormatError unless the program holds harmless instructions alone."""
    place, end = 0, len(content)
    while True:
        plain = _PLAIN.match(content, place)
        assert plain is not None
        place = plain.end()
        if place >= end:
            raise FileFormatError("damaged pickle: it ends too early")
        code = content[place]
        place += 1
        if code == _STOP:
            break
        if code in _COUNTED:
            width = _COUNTED[code]
            place += width + int.from_bytes(content[place : place + width], "little")
        elif code == _PROTO:
            if content[place : place + 1] > bytes([_HIGHEST]):
                raise FileFormatError("a pickle of a version that is not known")
            place += 1
        elif code == _FRAME:
            place += 8
        elif code == _LONG_BINPUT:
            # a memo is as long as its highest number
            if int.from_bytes(content[place : place + 4], "little") > end:
                raise FileFormatError("damaged pickle: a number out of range")
            place += 4
        else:
            _refuse(content, code)
        if place > end:
            raise FileFormatError("damaged pickle: it ends too early")
    if content[place:].strip(b"\0"):
        raise FileFormatError("damaged pickle: something follows its end")


def _refuse(content: bytes, code: int) -> NoReturn:
    if code in _BY_NAME:
        # everything before it is harmless, so reading up to it tells its name
        try:
            _Refusing(io.BytesIO(content)).load()
        except _Refused as refused:
            raise FileFormatError(str(refused)) from None
        except Exception:
            pass
    import pickletools

    known = next((each for each in pickletools.opcodes if each.code == chr(code)), None)
    if known is None:
        raise FileFormatError(f"damaged pickle: no instruction has the number {code}")
    if code in _RUNS_CODE:
        raise FileFormatError(f"tries to run code ({known.name}): refused; nothing was run")
    raise FileFormatError(f"not a memory snapshot: none holds {known.name}")


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:120])
