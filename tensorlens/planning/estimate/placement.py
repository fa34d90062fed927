"""Where a program is estimated: on a card, or in the host's memory, and what it has to fit into."""

from __future__ import annotations

from dataclasses import dataclass

from tensorlens.errors import UsageError
from tensorlens.planning.estimate.cards import find_card
from tensorlens.records.cards import Card
from tensorlens.units import format_bytes, parse_bytes


@dataclass(frozen=True, slots=True)
class Place:
    """A card, or the host."""

    device: str
    """As it was asked for: ``cuda:1``."""
    card: Card | None
    """None for the host."""
    capacity: int | None
    """What it has to fit into, in bytes."""

    @property
    def kind(self) -> str:
        """``cuda`` or ``cpu``."""
        return self.device.partition(":")[0]


def place(
    device: str = "cuda", card: str | Card | None = None, capacity: int | str | None = None
) -> Place:
    """Return where it is estimated; :data:`~.cards.DEFAULT` where no card is named.

    Raises:
        UsageError: something of it makes no sense; one line says what.
    """
    kind = device.partition(":")[0]
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
        return Place(device, None, wanted)
    found = find_card(card)
    if card is not None and wanted is not None and wanted > found.memory:
        # the card's own memory, as it is printed, is a little more or less
        if format_bytes(wanted) != format_bytes(found.memory):
            raise UsageError(
                f"capacity {capacity}: a {found.name} has {format_bytes(found.memory)}; leave one"
                " of them out"
            )
        wanted = found.memory
    return Place(device, found, wanted)
