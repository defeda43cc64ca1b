"""Networks of the zoo from a picture to its class, at the sizes of published models."""

# ruff: noqa: TID253 -- the export imports it where PyTorch is there

from __future__ import annotations

import torch
from torch import Tensor, nn
from zoo_blocks import WIDE, Joined, Residual, conv, head, inverted, mobilenet_v3_stages, resnet


def resnet50() -> nn.Module:
    """ResNet-50 v1.5."""
    return nn.Sequential(resnet((3, 4, 6, 3), (64, 128, 256, 512), WIDE), *head(2048))


def resnext50() -> nn.Module:
    """ResNeXt-50 32×4d."""
    body = resnet((3, 4, 6, 3), (128, 256, 512, 1024), WIDE, group_width=-32)
    return nn.Sequential(body, *head(2048))


def wide_resnet50() -> nn.Module:
    """Wide ResNet-50-2."""
    return nn.Sequential(resnet((3, 4, 6, 3), (128, 256, 512, 1024), WIDE), *head(2048))


def se_resnet50() -> nn.Module:
    """SE-ResNet-50."""
    body = resnet((3, 4, 6, 3), (64, 128, 256, 512), WIDE, gate=True)
    return nn.Sequential(body, *head(2048))


def regnet_x() -> nn.Module:
    """RegNetX-800MF: groups of 16 channels."""
    widths = (64, 128, 288, 672)
    body = resnet((1, 3, 7, 5), widths, widths, group_width=16, stem=32, pool=False)
    return nn.Sequential(body, *head(672))


def regnet_y() -> nn.Module:
    """RegNetY-400MF: groups of 8 channels, gates."""
    widths = (48, 104, 208, 440)
    body = resnet((1, 3, 6, 6), widths, widths, group_width=8, stem=32, pool=False, gate=True)
    return nn.Sequential(body, *head(440))


def mobilenet_v3() -> nn.Module:
    """MobileNetV3-Large."""
    last = conv(160, 960, 1, act=nn.Hardswish)
    return nn.Sequential(*mobilenet_v3_stages(2), last, *head(960))


def efficientnet_b0() -> nn.Module:
    """EfficientNet-B0. Source: Tan and Le 2019, table 1."""
    rows = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    )  # fmt: skip
    layers: list[nn.Module] = [conv(3, 32, 3, 2, act=nn.SiLU)]
    c_in = 32
    for ratio, c_out, count, first, kernel in rows:
        for block in range(count):
            stride = first if block == 0 else 1
            how = {"act": nn.SiLU, "gate": True}
            layers.append(inverted(c_in, c_in * ratio, c_out, kernel, stride, **how))
            c_in = c_out
    return nn.Sequential(*layers, conv(320, 1280, 1, act=nn.SiLU), *head(1280))


def vgg16() -> nn.Module:
    """VGG-16 with batch norm, its classifier as one layer."""
    layers: list[nn.Module] = []
    c_in = 3
    for count, c_out in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            layers.append(conv(c_in, c_out))
            c_in = c_out
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(25088, 1024), nn.ReLU(), nn.Linear(1024, 1000)
    )


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1."""

    def fire(c_in: int, squeeze: int, expand: int) -> nn.Module:
        wide = Joined(conv(squeeze, expand, 1), conv(squeeze, expand))
        return nn.Sequential(conv(c_in, squeeze, 1), wide)

    return nn.Sequential(
        conv(3, 64, 3, 2), nn.MaxPool2d(3, 2), fire(64, 16, 64), fire(128, 16, 64),
        nn.MaxPool2d(3, 2), fire(128, 32, 128), fire(256, 32, 128), nn.MaxPool2d(3, 2),
        fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256), *head(512),
    )  # fmt: skip


def googlenet() -> nn.Module:
    """The inception blocks of GoogLeNet."""

    def block(c_in: int, *c: int) -> nn.Module:
        pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(c_in, c[5], 1))
        return Joined(
            conv(c_in, c[0], 1), nn.Sequential(conv(c_in, c[1], 1), conv(c[1], c[2])),
            nn.Sequential(conv(c_in, c[3], 1), conv(c[3], c[4], 5)), pool,
        )  # fmt: skip

    return nn.Sequential(
        conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), conv(64, 64, 1), conv(64, 192),
        nn.MaxPool2d(3, 2, 1), block(192, 64, 96, 128, 16, 32, 32),
        block(256, 128, 128, 192, 32, 96, 64), nn.MaxPool2d(3, 2, 1),
        block(480, 192, 96, 208, 16, 48, 64), block(512, 160, 112, 224, 24, 64, 64),
        block(512, 128, 128, 256, 24, 64, 64), nn.MaxPool2d(3, 2, 1),
        block(512, 256, 160, 320, 32, 128, 128), *head(832),
    )  # fmt: skip


class Dense(nn.Module):
    """DenseNet's layer: its input and 32 channels more."""

    def __init__(self, channels: int, growth: int = 32):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), conv(channels, 4 * growth, 1),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Append."""
        return torch.cat([x, self.body(x)], 1)


def densenet121() -> nn.Module:
    """DenseNet-121."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate((6, 12, 24, 16)):
        layers += [Dense(channels + 32 * at) for at in range(count)]
        channels += 32 * count
        if stage < 3:
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels // 2, 1, bias=False),
            ]
            layers += [nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), *head(channels))


class Shuffle(nn.Module):
    """ShuffleNetV2's unit: half of the channels pass, and all are woven."""

    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        half = c_out // 2
        self.stride = stride
        first = c_in if stride == 2 else half
        self.right = nn.Sequential(
            conv(first, half, 1), conv(half, half, 3, stride, group=half, act=None),
            conv(half, half, 1),
        )  # fmt: skip
        left = [conv(c_in, c_in, 3, 2, group=c_in, act=None), conv(c_in, half, 1)]
        self.left = nn.Sequential(*(left if stride == 2 else []))

    def forward(self, x: Tensor) -> Tensor:
        """Split, compute one half, weave."""
        a, b = (x, x) if self.stride == 2 else x.chunk(2, 1)
        y = torch.stack([self.left(a), self.right(b)], 2)
        return y.flatten(1, 2)


def shufflenet_v2() -> nn.Module:
    """ShuffleNetV2 ×1."""
    layers: list[nn.Module] = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    c_in = 24
    for count, c_out in ((4, 116), (8, 232), (4, 464)):
        for block in range(count):
            layers.append(Shuffle(c_in, c_out, 2 if block == 0 else 1))
            c_in = c_out
    return nn.Sequential(*layers, conv(464, 1024, 1), *head(1024))


def large_kernels() -> nn.Module:
    """RepLKNet's blocks: depthwise 31×31 to 13×13 beside 1×1."""
    layers: list[nn.Module] = [conv(3, 64, 4, 4)]
    c_in = 64
    for kernel, c_out, count in ((31, 64, 2), (29, 128, 2), (27, 256, 4), (13, 512, 2)):
        if c_out != c_in:
            layers += [conv(c_in, c_out, 1, act=nn.GELU), conv(c_out, c_out, 3, 2, group=c_out)]
            c_in = c_out
        for _ in range(count):
            body = [
                conv(c_in, c_in, 1),
                conv(c_in, c_in, kernel, group=c_in),
                conv(c_in, c_in, 1, act=None),
            ]
            layers.append(Residual(nn.Sequential(*body), act=False))
    return nn.Sequential(*layers, *head(512))


def conv_mixer() -> nn.Module:
    """ConvMixer-256/8: patches of 8, depthwise 9×9."""
    layers: list[nn.Module] = [conv(3, 256, 8, 8, act=nn.GELU)]
    for _ in range(8):
        layers += [Residual(conv(256, 256, 9, group=256, act=nn.GELU), act=False)]
        layers += [conv(256, 256, 1, act=nn.GELU)]
    return nn.Sequential(*layers, *head(256))


def xception() -> nn.Module:
    """The middle flow of Xception: separable convolutions."""

    def separable(c_in: int, c_out: int) -> nn.Module:
        return nn.Sequential(conv(c_in, c_in, group=c_in, act=None), conv(c_in, c_out, 1))

    def block(c: int) -> nn.Module:
        return Residual(nn.Sequential(*(separable(c, c) for _ in range(3))), act=False)

    return nn.Sequential(
        conv(3, 32, 3, 2), conv(32, 128, 3, 2), separable(128, 364), nn.MaxPool2d(3, 2, 1),
        separable(364, 728), nn.MaxPool2d(3, 2, 1), *(block(728) for _ in range(4)), *head(728),
    )  # fmt: skip


def mlp_mixer() -> nn.Module:
    """MLP-Mixer-S/16."""

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(512), nn.LayerNorm(512)
            self.tokens = nn.Sequential(nn.Linear(196, 256), nn.GELU(), nn.Linear(256, 196))
            self.channels = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.second(x))

    patches = nn.Sequential(nn.Conv2d(3, 512, 16, 16), nn.Flatten(2))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.body = patches, nn.Sequential(*(Mixer() for _ in range(8)))
            self.head = nn.Linear(512, 1000)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(self.patches(x).transpose(1, 2)).mean(1))

    return Net()
