"""Networks for pictures, by the names that measurements call them."""

from collections.abc import Callable

from torch import nn

from tests.benchmarks.models.convnext import ConvNeXt
from tests.benchmarks.models.mobile import MnasNet, MobileNetV2, MobileNetV3
from tests.benchmarks.models.regnet import RegNet
from tests.benchmarks.models.resnet import resnet
from tests.benchmarks.models.vgg import VGG

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "VGG11": lambda: VGG(11),
    "VGG16": lambda: VGG(16),
    "VGG19": lambda: VGG(19),
    "ResNet18": lambda: resnet(18),
    "ResNet34": lambda: resnet(34),
    "ResNet50": lambda: resnet(50),
    "ResNet101": lambda: resnet(101),
    "ResNet152": lambda: resnet(152),
    "MobileNetV2": MobileNetV2,
    "MobileNetV3Small": lambda: MobileNetV3(large=False),
    "MobileNetV3Large": MobileNetV3,
    "MobileNetV3Small(10cls)": lambda: MobileNetV3(large=False, classes=10),
    "MobileNetV3Large(10cls)": lambda: MobileNetV3(classes=10),
    "MnasNet": MnasNet,
    "MnasNet(10cls)": lambda: MnasNet(10),
    "ConvNeXtTiny": lambda: ConvNeXt("tiny"),
    "ConvNeXtBase": lambda: ConvNeXt("base"),
    "RegNetX400MF": lambda: RegNet("x_400mf"),
    "RegNetY400MF": lambda: RegNet("y_400mf"),
    "RegNetX32GF": lambda: RegNet("x_32gf"),
    "RegNetY32GF": lambda: RegNet("y_32gf"),
}

PARAMETERS = {
    "VGG11": 132_863_336,
    "VGG16": 138_357_544,
    "VGG19": 143_667_240,
    "ResNet18": 11_689_512,
    "ResNet34": 21_797_672,
    "ResNet50": 25_557_032,
    "ResNet101": 44_549_160,
    "ResNet152": 60_192_808,
    "MobileNetV2": 3_504_872,
    "MobileNetV3Small": 2_542_856,
    "MobileNetV3Large": 5_483_032,
    "MnasNet": 4_383_312,
    "ConvNeXtTiny": 28_589_128,
    "ConvNeXtBase": 88_591_464,
    "RegNetX400MF": 5_495_976,
    "RegNetY400MF": 4_344_144,
    "RegNetX32GF": 107_811_560,
    "RegNetY32GF": 145_046_770,
}
"""As torchvision documents them."""
