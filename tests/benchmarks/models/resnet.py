"""ResNet as torchvision builds it (torchvision/models/resnet.py, 0.21): stride on the 3x3."""

from torch import Tensor, nn


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the size but for its stride, and its norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """A residual block; the rectifiers write over their inputs."""

    def __init__(self, inputs: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        outputs = 4 * width if deep else width
        if deep:
            parts = [conv_norm(inputs, width, 1), conv_norm(width, width, 3, stride)]
            parts.append(conv_norm(width, outputs, 1))
        else:
            parts = [conv_norm(inputs, width, 3, stride), conv_norm(width, outputs, 3)]
        self.parts = nn.ModuleList(parts)
        self.relu = nn.ReLU(inplace=True)
        shortcut = stride != 1 or inputs != outputs
        self.shortcut = conv_norm(inputs, outputs, 1, stride) if shortcut else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        *first, last = self.parts
        for part in first:
            x = self.relu(part(x))
        x = last(x)
        if self.shortcut is not None:
            identity = self.shortcut(identity)
        x += identity
        return self.relu(x)


class ResNet(nn.Module):
    """Four stages of blocks behind a stem."""

    def __init__(self, blocks: tuple[int, ...], deep: bool, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        layers, inputs = [], 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for index in range(count):
                layers.append(Block(inputs, width, 2 if stage and not index else 1, deep))
                inputs = 4 * width if deep else width
        self.stages = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(self.stem(x))).flatten(1))


def resnet(depth: int) -> ResNet:
    """Return ResNet-18, -34, -50, -101 or -152."""
    blocks = {
        18: (2, 2, 2, 2),
        34: (3, 4, 6, 3),
        50: (3, 4, 6, 3),
        101: (3, 4, 23, 3),
        152: (3, 8, 36, 3),
    }
    return ResNet(blocks[depth], deep=depth >= 50)
