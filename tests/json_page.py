"""What docs/json.md says of JSON documents, and whether a document is as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "json.md"
_ENVELOPE = "Versions"
_PLAIN = {"text": str, "integer": int, "number": (int, float), "boolean": bool}
_ROW = re.compile(r"\| `(\w+)` \| (.+?) \| (.+) \|")
_HEADING = re.compile(r"#+ (?:.*`(tensorlens\.\w+)`|(\w+))$")


def tables() -> dict[str, dict[str, str]]:
    """The tables of fields: name of a document or an object to its fields and their types."""
    found: dict[str, dict[str, str]] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        if heading := _HEADING.fullmatch(line):
            fields = found.setdefault(heading[1] or heading[2], {})
        elif row := _ROW.fullmatch(line):
            fields[row[1]] = row[2]
    return {name: fields for name, fields in found.items() if fields}


class Checker:
    """Checks documents against the page, and notes the fields that they had."""

    def __init__(self) -> None:
        self.tables = tables()
        self.seen: set[tuple[str, str]] = set()

    def check(self, document: Any) -> None:
        """Check a whole document, as JSON has it."""
        schema = document["schema"]
        envelope = dict(self.tables[_ENVELOPE])
        if schema == "tensorlens.doctor":
            del envelope["contains_source"]
        assert list(document)[: len(envelope)] == list(envelope)
        assert document["version"] == 1
        rest = {key: value for key, value in document.items() if key not in envelope}
        self._object(rest, schema)

    def unseen(self) -> set[tuple[str, str]]:
        """The fields of the page that no document had."""
        of_page = {(name, field) for name, fields in self.tables.items() for field in fields}
        return {each for each in of_page - self.seen if each[0] != _ENVELOPE}

    def _object(self, value: Any, name: str) -> None:
        fields = self.tables[name]
        assert isinstance(value, dict), name
        assert value.keys() <= fields.keys(), (name, value.keys() - fields.keys())
        for field, kind in fields.items():
            always = kind.removesuffix(", may be missing")
            if field in value:
                self.seen.add((name, field))
                assert self._is(value[field], always), (name, field, kind, value[field])
            else:
                assert always != kind, (name, field)

    def _is(self, value: Any, kind: str) -> bool:
        if kind.startswith("(") and kind.endswith(")"):
            return self._is(value, kind[1:-1])
        first, _, rest = kind.partition(" of ")
        if first in ("list", "map"):
            if value is None:
                return rest.endswith(" or null")
            rest = rest.removesuffix(" or null")
            if first == "list":
                return isinstance(value, list) and all(self._is(each, rest) for each in value)
            return isinstance(value, dict) and all(self._is(each, rest) for each in value.values())
        if " or " in kind:
            return any(self._is(value, each) for each in kind.split(" or "))
        if kind == "null":
            return value is None
        if kind in _PLAIN:
            is_flag = isinstance(value, bool)
            return isinstance(value, _PLAIN[kind]) and is_flag == (kind == "boolean")
        if not isinstance(value, dict):
            return False
        self._object(value, kind)
        return True
