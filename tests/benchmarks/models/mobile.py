"""MobileNetV2, MobileNetV3 and MnasNet as torchvision builds them (torchvision/models, 0.21)."""

from collections.abc import Iterator

from torch import Tensor, nn


def _layers(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    norm: tuple[float, float] = (1e-5, 0.1),
    then: type[nn.Module] | None = None,
) -> Iterator[nn.Module]:
    """Give a convolution that keeps the size but for its stride, its norm, and what follows."""
    padding = kernel // 2
    yield nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    eps, momentum = norm
    yield nn.BatchNorm2d(outputs, eps, momentum)
    if then is not None:
        yield then(inplace=True)


class Inverted(nn.Module):
    """Layers, with what goes in added to what comes out where both are of one shape."""

    def __init__(self, layers: list[nn.Module], residual: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class InvertedInPlace(Inverted):
    """Adds what comes out of the layers first, as MobileNetV3 and MnasNet do."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        if self.in_place and self.residual:
            y += x
        elif self.residual:
            y = y + x
        return y

    def __init__(self, layers: list[nn.Module], residual: bool, in_place: bool) -> None:
        super().__init__(layers, residual)
        self.in_place = in_place


class MobileNetV2(nn.Module):
    """Width 1.0."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers = list(_layers(3, 32, 3, 2, then=nn.ReLU6))
        inputs = 32
        for expansion, outputs, count, first in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for index in range(count):
                stride = 1 if index else first
                layers.append(_inverted_v2(inputs, outputs, expansion, stride))
                inputs = outputs
        layers += _layers(320, 1280, then=nn.ReLU6)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(x.flatten(1))


def _inverted_v2(inputs: int, outputs: int, expansion: int, stride: int) -> Inverted:
    hidden = inputs * expansion
    layers: list[nn.Module] = []
    if expansion != 1:
        layers += _layers(inputs, hidden, then=nn.ReLU6)
    layers += _layers(hidden, hidden, 3, stride, hidden, then=nn.ReLU6)
    layers += _layers(hidden, outputs)
    return Inverted(layers, stride == 1 and inputs == outputs)


class SqueezeExcitation(nn.Module):
    """Scales channels by what their means say."""

    def __init__(
        self, channels: int, squeezed: int, scale: type[nn.Module] = nn.Hardsigmoid
    ) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.ReLU()
        self.scale = scale()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.avgpool(x)
        scale = self.activation(self.squeeze(scale))
        return self.scale(self.excite(scale)) * x


_LARGE = (
    (16, 3, 16, 16, False, False, 1),
    (16, 3, 64, 24, False, False, 2),
    (24, 3, 72, 24, False, False, 1),
    (24, 5, 72, 40, True, False, 2),
    (40, 5, 120, 40, True, False, 1),
    (40, 5, 120, 40, True, False, 1),
    (40, 3, 240, 80, False, True, 2),
    (80, 3, 200, 80, False, True, 1),
    (80, 3, 184, 80, False, True, 1),
    (80, 3, 184, 80, False, True, 1),
    (80, 3, 480, 112, True, True, 1),
    (112, 3, 672, 112, True, True, 1),
    (112, 5, 672, 160, True, True, 2),
    (160, 5, 960, 160, True, True, 1),
    (160, 5, 960, 160, True, True, 1),
)
"""Channels in, kernel, channels inside, out, squeeze and excitation, hard swish, stride."""
_SMALL = (
    (16, 3, 16, 16, True, False, 2),
    (16, 3, 72, 24, False, False, 2),
    (24, 3, 88, 24, False, False, 1),
    (24, 5, 96, 40, True, True, 2),
    (40, 5, 240, 40, True, True, 1),
    (40, 5, 240, 40, True, True, 1),
    (40, 5, 120, 48, True, True, 1),
    (48, 5, 144, 48, True, True, 1),
    (48, 5, 288, 96, True, True, 2),
    (96, 5, 576, 96, True, True, 1),
    (96, 5, 576, 96, True, True, 1),
)
_V3 = (0.001, 0.01)


class MobileNetV3(nn.Module):
    """Width 1.0, large or small."""

    def __init__(self, large: bool = True, classes: int = 1000) -> None:
        super().__init__()
        table, last = (_LARGE, 1280) if large else (_SMALL, 1024)
        layers = list(_layers(3, 16, 3, 2, norm=_V3, then=nn.Hardswish))
        layers += [_inverted_v3(*row) for row in table]
        outputs = table[-1][3]
        layers += _layers(outputs, 6 * outputs, norm=_V3, then=nn.Hardswish)
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * outputs, last),
            nn.Hardswish(inplace=True),
            nn.Dropout(0.2, inplace=True),
            nn.Linear(last, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _inverted_v3(
    inputs: int, kernel: int, hidden: int, outputs: int, squeeze: bool, hard: bool, stride: int
) -> InvertedInPlace:
    then = nn.Hardswish if hard else nn.ReLU
    layers: list[nn.Module] = []
    if hidden != inputs:
        layers += _layers(inputs, hidden, norm=_V3, then=then)
    layers += _layers(hidden, hidden, kernel, stride, hidden, norm=_V3, then=then)
    if squeeze:
        layers.append(SqueezeExcitation(hidden, divisible(hidden // 4)))
    layers += _layers(hidden, outputs, norm=_V3)
    return InvertedInPlace(layers, stride == 1 and inputs == outputs, in_place=True)


def divisible(channels: float, by: int = 8) -> int:
    """Return the number of channels rounded to a multiple, by no more than a tenth down."""
    rounded = max(by, int(channels + by / 2) // by * by)
    return rounded + by if rounded < 0.9 * channels else rounded


class MnasNet(nn.Module):
    """MnasNet-B1, depth multiplier 1.0."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        norm = (1e-5, 1 - 0.9997)
        layers = [
            *_layers(3, 32, 3, 2, norm=norm, then=nn.ReLU),
            *_layers(32, 32, 3, 1, 32, norm=norm, then=nn.ReLU),
            *_layers(32, 16, norm=norm),
        ]
        inputs = 16
        for outputs, kernel, first, expansion, count in (
            (24, 3, 2, 3, 3),
            (40, 5, 2, 3, 3),
            (80, 5, 2, 6, 3),
            (96, 3, 1, 6, 2),
            (192, 5, 2, 6, 4),
            (320, 3, 1, 6, 1),
        ):
            for index in range(count):
                stride = 1 if index else first
                hidden = inputs * expansion
                inside = [
                    *_layers(inputs, hidden, norm=norm, then=nn.ReLU),
                    *_layers(hidden, hidden, kernel, stride, hidden, norm=norm, then=nn.ReLU),
                    *_layers(hidden, outputs, norm=norm),
                ]
                residual = stride == 1 and inputs == outputs
                layers.append(InvertedInPlace(inside, residual, in_place=False))
                inputs = outputs
        layers += _layers(320, 1280, norm=norm, then=nn.ReLU)
        self.layers = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.layers(x).mean([2, 3]))
