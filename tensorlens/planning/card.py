"""Graphics cards by name, with the properties that a program can ask for; and the host."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from tensorlens.errors import UsageError
from tensorlens.units import format_bytes, parse_bytes

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """One model of card."""

    name: str
    """Name as of ``torch.cuda.get_device_name``."""
    capability: tuple[int, int]
    """Compute capability: (9, 0)."""
    multiprocessors: int
    memory: int
    """Total memory in bytes, as of ``torch.cuda.get_device_properties``."""
    is_nominal: bool = False
    """Whether the memory is that of the data sheet, as no reading of a card is known."""
    is_assumed: bool = False
    """Whether it is the default, as no card was named."""

    @property
    def resident_threads(self) -> int:
        """Threads that a multiprocessor holds, by capability (CUDA programming guide)."""
        if self.capability == (7, 5):
            return 1024
        is_small = (8, 6) <= self.capability <= (8, 9) or self.capability >= (11, 0)
        return 1536 if is_small else 2048


H100 = Card("NVIDIA H100 80GB HBM3", (9, 0), 132, 85_029_158_912)
"""SXM5, 80 GB."""


def _read(name: str, capability: tuple[int, int], multiprocessors: int, mebibytes: int) -> Card:
    """Return a card whose memory torch has read from one, in whole MiB."""
    return Card(name, capability, multiprocessors, mebibytes * _MIB)


def _sheet(name: str, capability: tuple[int, int], multiprocessors: int, gigabytes: int) -> Card:
    """Return a card whose memory is known only from its data sheet."""
    return Card(name, capability, multiprocessors, gigabytes * _GIB, is_nominal=True)


_CARDS: tuple[tuple[Card, tuple[str, ...]], ...] = (
    (H100, ("h100", "h100 80gb", "h100 sxm", "h100 sxm5", "h800")),
    (_read("NVIDIA H100 PCIe", (9, 0), 114, 81_008), ("h100 pcie",)),
    (_read("NVIDIA H100 NVL", (9, 0), 132, 95_334), ("h100 nvl", "h100 94gb")),
    (_read("NVIDIA H200", (9, 0), 132, 143_156), ("h200",)),
    (_read("NVIDIA H20", (9, 0), 78, 97_285), ("h20",)),
    (_read("NVIDIA GH200 480GB", (9, 0), 132, 96_768), ("gh200",)),
    (_read("NVIDIA B200", (10, 0), 148, 182_642), ("b200",)),
    (_sheet("NVIDIA GB200", (10, 0), 152, 185), ("gb200",)),
    (_read("NVIDIA A100-SXM4-40GB", (8, 0), 108, 40_536), ("a100", "a100 40gb")),
    (_read("NVIDIA A100-SXM4-80GB", (8, 0), 108, 81_050), ("a100 80gb", "a800")),
    (_read("NVIDIA A100 80GB PCIe", (8, 0), 108, 80_994), ("a100 pcie",)),
    (_sheet("NVIDIA A30", (8, 0), 56, 24), ("a30",)),
    (_read("NVIDIA A10", (8, 6), 72, 22_731), ("a10",)),
    (_read("NVIDIA A10G", (8, 6), 80, 22_587), ("a10g",)),
    (_read("NVIDIA A40", (8, 6), 84, 45_416), ("a40",)),
    (_sheet("NVIDIA A2", (8, 6), 10, 16), ("a2",)),
    (_read("NVIDIA L4", (8, 9), 58, 22_563), ("l4",)),
    (_read("NVIDIA L40", (8, 9), 142, 45_457), ("l40",)),
    (_read("NVIDIA L40S", (8, 9), 142, 45_589), ("l40s",)),
    (_read("Tesla V100-SXM2-16GB", (7, 0), 80, 16_160), ("v100", "v100 16gb")),
    (_read("Tesla V100-SXM2-32GB", (7, 0), 80, 32_510), ("v100 32gb",)),
    (_read("Tesla T4", (7, 5), 40, 15_102), ("t4",)),
    (_read("Tesla P100-PCIE-16GB", (6, 0), 56, 16_280), ("p100", "p100 16gb")),
    (_sheet("Tesla P40", (6, 1), 30, 24), ("p40",)),
    (_read("NVIDIA GeForce GTX 1080 Ti", (6, 1), 28, 11_178), ("gtx 1080 ti",)),
    (_read("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 11_019), ("rtx 2080 ti",)),
    (_read("NVIDIA GeForce RTX 3060", (8, 6), 28, 12_044), ("rtx 3060", "rtx 3060 12gb")),
    (_read("NVIDIA GeForce RTX 3070", (8, 6), 46, 7_979), ("rtx 3070",)),
    (_read("NVIDIA GeForce RTX 3080", (8, 6), 68, 10_008), ("rtx 3080", "rtx 3080 10gb")),
    (_sheet("NVIDIA GeForce RTX 3080 Ti", (8, 6), 80, 12), ("rtx 3080 ti",)),
    (_read("NVIDIA GeForce RTX 3090", (8, 6), 82, 24_268), ("rtx 3090",)),
    (_sheet("NVIDIA GeForce RTX 3090 Ti", (8, 6), 84, 24), ("rtx 3090 ti",)),
    (_read("NVIDIA GeForce RTX 4060", (8, 9), 24, 7_940), ("rtx 4060",)),
    (_sheet("NVIDIA GeForce RTX 4060 Ti", (8, 9), 34, 8), ("rtx 4060 ti", "rtx 4060 ti 8gb")),
    (_read("NVIDIA GeForce RTX 4070", (8, 9), 46, 12_009), ("rtx 4070",)),
    (_read("NVIDIA GeForce RTX 4070 Ti SUPER", (8, 9), 66, 15_934), ("rtx 4070 ti super",)),
    (_read("NVIDIA GeForce RTX 4080", (8, 9), 76, 16_049), ("rtx 4080",)),
    (_sheet("NVIDIA GeForce RTX 4080 SUPER", (8, 9), 80, 16), ("rtx 4080 super",)),
    (_read("NVIDIA GeForce RTX 4090", (8, 9), 128, 24_217), ("rtx 4090",)),
    (_sheet("NVIDIA GeForce RTX 5070", (12, 0), 48, 12), ("rtx 5070",)),
    (_sheet("NVIDIA GeForce RTX 5070 Ti", (12, 0), 70, 16), ("rtx 5070 ti",)),
    (_read("NVIDIA GeForce RTX 5080", (12, 0), 84, 15_841), ("rtx 5080",)),
    (_read("NVIDIA GeForce RTX 5090", (12, 0), 170, 32_111), ("rtx 5090",)),
    (_read("NVIDIA RTX A4000", (8, 6), 48, 16_108), ("rtx a4000",)),
    (_read("NVIDIA RTX A5000", (8, 6), 64, 24_114), ("rtx a5000",)),
    (_read("NVIDIA RTX A6000", (8, 6), 84, 48_676), ("rtx a6000",)),
    (_sheet("Quadro RTX 6000", (7, 5), 72, 24), ("quadro rtx 6000", "rtx 6000 turing")),
    (_sheet("Quadro RTX 8000", (7, 5), 72, 48), ("rtx 8000",)),
    (
        Card("NVIDIA RTX 6000 Ada Generation", (8, 9), 142, 50_865_307_648),
        ("rtx 6000 ada", "6000 ada"),
    ),
    (
        _read("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 188, 97_250),
        ("rtx pro 6000", "rtx 6000 blackwell"),
    ),
    (_read("NVIDIA TITAN RTX", (7, 5), 72, 24_220), ("titan rtx",)),
    (_read("NVIDIA TITAN V", (7, 0), 80, 12_066), ("titan v",)),
    (_read("NVIDIA TITAN Xp", (6, 1), 30, 12_196), ("titan xp",)),
)

_AMBIGUOUS = {
    "6000": ("RTX 6000 Ada", "RTX PRO 6000", "RTX A6000", "Quadro RTX 6000 (rtx 6000 turing)"),
    "titan": ("TITAN RTX", "TITAN V", "TITAN Xp"),
    "rtx": ("RTX 4090", "RTX 3090", "RTX 5090"),
}


def _key(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    plain = re.sub(r"nvidia|geforce|tesla|graphics|gpu|generation", "", plain)
    # the letters before a GeForce's number add nothing to the number
    return re.sub(r"^(rtx|gtx)(?=a?\d|pro)", "", plain)


def _without_unit(key: str) -> str:
    return re.sub(r"(\d)gi?b?$", r"\1", key)


_KNOWN: dict[str, Card] = {}
for _card, _names in _CARDS:
    for _name in (_card.name, *_names):
        _KNOWN.setdefault(_key(_name), _card)
        if _name.endswith("gb"):
            _KNOWN.setdefault(_without_unit(_key(_name)), _card)

DEFAULT = replace(_KNOWN["a10080"], is_assumed=True)
"""The default card, an A100 of 80 GB. It stands for any card of capability 8.0 and above: flash
attention, and cuBLAS workspaces of 8.1 MiB, where Hopper and Blackwell have 32 MiB."""


def find_card(text: str | Card | None = None) -> Card:
    """Return a card by its common name; :data:`DEFAULT` for None.

    Case, spaces, dashes and ``NVIDIA``, ``GeForce``, ``Tesla`` do not matter: ``h100``,
    ``A100-80GB``, ``rtx 4090``. A name without a size means the smallest: ``a100``
    has 40 GB and ``v100`` 16.

    Multiprocessors and capabilities are those of NVIDIA's data sheets and
    https://developer.nvidia.com/cuda-gpus. Memory is what torch printed of such a card
    (``torch.cuda.get_device_properties``, or the capacity in its out-of-memory errors), and what
    the data sheet names where :attr:`Card.is_nominal`; it varies by some ten MiB with the driver,
    and Windows gives a GeForce card its full nominal size.

    Raises:
        UsageError: there is no such card, or it may be one of several.
    """
    if text is None:
        return DEFAULT
    if isinstance(text, Card):
        return text
    if not isinstance(text, str):
        raise UsageError(f"card={text!r}: give its name, such as h100")
    key = _key(text)
    if key in _AMBIGUOUS:
        raise UsageError(f'"{text}" may be one of several cards: {", ".join(_AMBIGUOUS[key])}')
    if key not in _KNOWN:
        key = _without_unit(key)
    if key not in _KNOWN:
        raise UsageError(f'no card is known as "{text}"; nearest: {", ".join(_nearest(key))}')
    return _KNOWN[key]


def _nearest(key: str) -> list[str]:
    by_key = {_key(names[0]): names[0] for _, names in _CARDS}
    within = [each for each in by_key if key and (key in each or each in key)]
    close = difflib.get_close_matches(key, by_key, n=4, cutoff=0.5)
    found = dict.fromkeys([*close, *within])
    return [by_key[each] for each in found][:4] or ["h100", "a100", "rtx 4090", "rtx 3090"]


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A card, or the host."""

    device: str
    """Device as requested: ``cuda:1``."""
    card: Card | None
    """None for the host."""
    capacity: int | None
    """Capacity to fit into, in bytes."""

    @property
    def kind(self) -> str:
        """``cuda`` or ``cpu``."""
        return self.device.partition(":")[0]


def device_spec(device: str, card: str | Card | None, capacity: int | str | None) -> DeviceSpec:
    """Check device, card and capacity; the card is :data:`DEFAULT` if none is named."""
    kind = device.partition(":")[0] if isinstance(device, str) else ""
    if kind not in ("cuda", "cpu"):
        raise UsageError(f"device={device!r}: cuda and cpu can be estimated")
    if kind == "cpu" and card is not None:
        name = card.name if isinstance(card, Card) else card
        raise UsageError(
            f'card "{name}" and device "cpu" do not go together: leave one of them out'
        )
    wanted = None if capacity is None else parse_bytes(capacity)
    if wanted is not None and wanted <= 0:
        raise UsageError(f"capacity {capacity}: nothing fits into that")
    if kind == "cpu":
        return DeviceSpec(device, None, wanted)
    found = find_card(card)
    if card is not None and wanted is not None and wanted > found.memory:
        # the card's own memory, as it is printed, is a little more or less
        if format_bytes(wanted) != format_bytes(found.memory):
            raise UsageError(
                f"capacity {capacity}: a {found.name} has {format_bytes(found.memory)}; leave one"
                " of them out"
            )
        wanted = found.memory
    return DeviceSpec(device, found, wanted)
