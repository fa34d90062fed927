"""Pickles from strangers: plain data is read, whatever could run code is refused.

All that a pickle can call it has to name first, and no name is looked up here.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any, NoReturn

from tensorlens.errors import FileFormatError

_ZIP = b"PK\x03\x04"


def unpickle(content: bytes) -> Any:
    """Return the plain data in a pickle: dicts, lists, texts, numbers, None, tuples.

    Raises:
        FileFormatError: it holds anything else, above all what would run code, or is damaged;
            nothing was run.
    """
    if content.startswith(_ZIP):
        raise FileFormatError(
            "a zip archive, such as torch.save() and Keras write, not a memory snapshot: those are"
            " written by torch.cuda.memory._dump_snapshot()"
        )
    # what is in there needs no name
    copyreg.clear_extension_cache()
    try:
        return _Refusing(io.BytesIO(content)).load()
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(f"damaged pickle: {_printable(str(error))}") from None


class _Refusing(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise FileFormatError(
            f"tries to run code ({_printable(f'{module}.{name}')}): refused; nothing was run"
        )

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise FileFormatError("tries to load objects from elsewhere: refused; nothing was run")


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:120])
