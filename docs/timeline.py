"""Draws docs/timeline.svg: what is resident during two steps of a small GPT, by role.

Run it as ``python docs/timeline.py``.
"""

from pathlib import Path

import torch
from torch import nn

import tensorlens
from tensorlens.render.pictures import ROLE_COLOURS, STACKED
from tensorlens.units import format_bytes

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 300, 84, 12, 64, 34
STYLE = (
    "<style>text { font: 12px sans-serif; fill: #333; }"
    " .title { font-weight: bold; font-size: 14px; }"
    " path { stroke: #333; fill: none; } .grid { stroke-opacity: .15; }"
    " .mark { stroke-dasharray: 3 3; }</style>"
)


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens after the block, of the same shape."""
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def recorded() -> tensorlens.Recording:
    """Return two steps: the first makes the optimizer's state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4096, 256), *(Block(256, 4) for _ in range(4)))
    head = nn.Linear(256, 4096)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
    tokens, labels = torch.randint(0, 4096, (2, 8, 128))
    with tensorlens.record(nn.ModuleList([model, head]), optimizer) as recording:
        for number in (1, 2):
            recording.mark(f"step {number}")
            logits = head(model(tokens))
            nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
            del logits
            optimizer.step()
            optimizer.zero_grad()
    return recording


def picture(recording: tensorlens.Recording) -> str:
    """Return the recording's timeline as SVG: bytes by role, stacked, over its events."""
    timeline, peak = recording.timeline(points=300), recording.peak()
    highest, last = max(timeline.totals), timeline.rows[-1]

    def x(row: int) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * max(row, 0) / last:.0f}"

    def y(nbytes: int) -> str:
        return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * nbytes / highest:.0f}"

    def edge(sizes: list[int]) -> list[str]:
        return [f"{x(row)},{y(size)}" for row, size in zip(timeline.rows, sizes, strict=True)]

    below = [0] * len(timeline.rows)
    parts = []
    for place, role in enumerate(each for each in STACKED if each in timeline.by_role):
        above = [low + own for low, own in zip(below, timeline.by_role[role], strict=True)]
        points = " ".join([*edge(above), *reversed(edge(below))])
        fill, left = ROLE_COLOURS[role], LEFT + 112 * place
        parts += [
            f'<polygon points="{points}" fill="{fill}"/>',
            f'<rect x="{left}" y="36" width="10" height="10" fill="{fill}"/>',
            f'<text x="{left + 15}" y="45">{role}</text>',
        ]
        below = above
    for nbytes in (highest * part // 4 for part in range(5)):
        parts += [
            f'<path d="M{LEFT} {y(nbytes)}H{WIDTH - RIGHT}" class="grid"/>',
            f'<text x="{LEFT - 8}" y="{y(nbytes)}" dy="4" text-anchor="end">'
            f"{format_bytes(nbytes)}</text>",
        ]
    moments = [(mark.row, mark.name, HEIGHT - 14) for mark in recording.marks]
    for row, name, height in (*moments, (timeline.rows[timeline.peak], "peak", TOP + 10)):
        parts += [
            f'<path d="M{x(row)} {TOP}V{HEIGHT - BOTTOM}" class="mark"/>',
            f'<text x="{x(row)}" y="{height}" dx="4">{name}</text>',
        ]
    title = (
        f"Two steps of a 4-layer GPT: {len(recording.events):,} events,"
        f" peak {format_bytes(peak.bytes)}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{title}">\n{STYLE}\n<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n'
        f'<text x="{LEFT}" y="20" class="title">{title}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    target = Path(__file__).with_suffix(".svg")
    target.write_text(picture(recorded()), encoding="utf-8")
    print(f"wrote {target}")
