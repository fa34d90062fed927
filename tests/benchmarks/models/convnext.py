"""ConvNeXt as torchvision builds it (torchvision/models/convnext.py, 0.21)."""

import torch
from torch import Tensor, nn

DESIGNS = {
    "tiny": ((96, 192, 384, 768), (3, 3, 9, 3), 0.1),
    "small": ((96, 192, 384, 768), (3, 3, 27, 3), 0.4),
    "base": ((128, 256, 512, 1024), (3, 3, 27, 3), 0.5),
}
"""Widths, depths, and how likely the last block is to be left out."""


class ChannelNorm(nn.LayerNorm):
    """Norm over the channels of a picture."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Permute(nn.Module):
    """Dimensions in another order."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class StochasticDepth(nn.Module):
    """Leaves out rows of a batch."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0.0:
            return x
        survival = 1.0 - self.probability
        noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        noise = noise.bernoulli_(survival)
        if survival > 0.0:
            noise.div_(survival)
        return x * noise


class Block(nn.Module):
    """A depthwise convolution and two linear layers, scaled and added."""

    def __init__(self, width: int, probability: float) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            Permute(0, 3, 1, 2),
        )
        self.layer_scale = nn.Parameter(torch.ones(width, 1, 1) * 1e-6)
        self.stochastic_depth = StochasticDepth(probability)

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer_scale * self.block(x)
        result = self.stochastic_depth(result)
        result += x
        return result


class ConvNeXt(nn.Module):
    """Four stages of blocks, by the name of the design."""

    def __init__(self, design: str, classes: int = 1000) -> None:
        super().__init__()
        widths, depths, most = DESIGNS[design]
        layers: list[nn.Module] = [
            nn.Conv2d(3, widths[0], 4, 4),
            ChannelNorm(widths[0], eps=1e-6),
        ]
        done, total = 0, sum(depths)
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if stage:
                layers.append(ChannelNorm(widths[stage - 1], eps=1e-6))
                layers.append(nn.Conv2d(widths[stage - 1], width, 2, 2))
            for _ in range(depth):
                layers.append(Block(width, most * done / (total - 1.0)))
                done += 1
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            ChannelNorm(widths[-1], eps=1e-6), nn.Flatten(1), nn.Linear(widths[-1], classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)))
