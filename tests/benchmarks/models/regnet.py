"""RegNetX and RegNetY as torchvision builds them (torchvision/models/regnet.py, 0.21)."""

from torch import Tensor, nn

from tests.benchmarks.models.mobile import SqueezeExcitation
from tests.benchmarks.models.resnet import conv_norm

STAGES = {
    "x_400mf": (((32, 1), (64, 2), (160, 7), (400, 12)), 16, None),
    "y_400mf": (((48, 1), (104, 3), (208, 6), (440, 6)), 8, 0.25),
    "x_32gf": (((336, 2), (672, 7), (1344, 13), (2520, 1)), 168, None),
    "y_32gf": (((232, 2), (696, 5), (1392, 12), (3712, 1)), 232, 0.25),
}
"""Widths and depths of stages, width of a group, and share of the inputs that is squeezed to."""


class Block(nn.Module):
    """A residual bottleneck with grouped convolution."""

    def __init__(
        self, inputs: int, width: int, stride: int, group: int, squeeze: float | None
    ) -> None:
        super().__init__()
        shortcut = stride != 1 or inputs != width
        self.shortcut = conv_norm(inputs, width, 1, stride) if shortcut else None
        layers = [
            *conv_norm(inputs, width, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, groups=width // group, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        if squeeze is not None:
            layers.append(SqueezeExcitation(width, round(squeeze * inputs), nn.Sigmoid))
        layers += conv_norm(width, width, 1)
        self.layers = nn.Sequential(*layers)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.shortcut is not None:
            x = self.shortcut(x) + self.layers(x)
        else:
            x = x + self.layers(x)
        return self.relu(x)


class RegNet(nn.Module):
    """Four stages of blocks behind a stem, by the name of the design."""

    def __init__(self, design: str, classes: int = 1000) -> None:
        super().__init__()
        stages, group, squeeze = STAGES[design]
        layers = [*conv_norm(3, 32, 3, 2), nn.ReLU(inplace=True)]
        inputs = 32
        for width, depth in stages:
            for index in range(depth):
                block = Block(inputs, width, 1 if index else 2, min(group, width), squeeze)
                layers.append(block)
                inputs = width
        self.stages = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(x)).flatten(start_dim=1))
