"""Networks of the zoo from pictures to maps and pictures: segmentation, detection, generation."""

# ruff: noqa: TID253 -- the export imports it where PyTorch is there

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_blocks import WIDE, Joined, Residual, conv, mobilenet_v3_stages, resnet


class Atrous(nn.Module):
    """DeepLabV3's pyramid: 1×1, three dilated 3×3, and the mean of the picture."""

    def __init__(self, channels: int, inner: int = 256):
        super().__init__()
        self.parts = Joined(
            conv(channels, inner, 1), *(conv(channels, inner, step=step) for step in (12, 24, 36)),
        )  # fmt: skip
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(channels, inner, 1))
        self.last = nn.Sequential(
            conv(5 * inner, inner, 1), conv(inner, inner), nn.Conv2d(inner, 21, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return classes at an eighth of the size."""
        wide = self.mean(x).expand(-1, -1, *x.shape[2:])
        return self.last(torch.cat([self.parts(x), wide], 1))


def deeplab_resnet50() -> nn.Module:
    """DeepLabV3 on a dilated ResNet-50."""
    body = resnet((3, 4, 6, 3), (64, 128, 256, 512), WIDE, dilated=True)
    up = nn.Upsample(scale_factor=8, mode="bilinear", align_corners=False)
    return nn.Sequential(body, Atrous(2048), up)


def deeplab_mobilenet() -> nn.Module:
    """DeepLabV3 on MobileNetV3-Large at a sixteenth of the size."""
    up = nn.Upsample(scale_factor=16, mode="bilinear", align_corners=False)
    return nn.Sequential(
        *mobilenet_v3_stages(), conv(160, 960, 1, act=nn.Hardswish), Atrous(960), up
    )


class UNet(nn.Module):
    """A U of convolutions: down by pooling, up by transposed convolutions, joined on the way."""

    def __init__(self, width: int = 32, levels: int = 4):
        super().__init__()
        sizes = [width * 2**level for level in range(levels + 1)]

        def pair(c_in: int, c_out: int) -> nn.Module:
            return nn.Sequential(conv(c_in, c_out), conv(c_out, c_out))

        self.down = nn.ModuleList(pair(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in sizes[:-1])
        self.join = nn.ModuleList(pair(2 * c, c) for c in sizes[:-1])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of two classes."""
        kept = []
        for at, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if at else x)
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x = self.join[level](torch.cat([self.up[level](x), kept[level]], 1))
        return self.last(x)


def unet() -> nn.Module:
    """U-Net of width 32."""
    return UNet()


def yolo() -> nn.Module:
    """YOLOv8n's backbone and its spatial pyramid."""

    class Split(nn.Module):
        def __init__(self, channels: int, count: int):
            super().__init__()
            half = channels // 2
            self.first = conv(channels, channels, 1, act=nn.SiLU)
            body = (
                nn.Sequential(conv(half, half, act=nn.SiLU), conv(half, half, act=nn.SiLU))
                for _ in range(count)
            )
            self.blocks = nn.ModuleList(Residual(one, act=False) for one in body)
            self.last = conv((2 + count) * half, channels, 1, act=nn.SiLU)

        def forward(self, x: Tensor) -> Tensor:
            parts = list(self.first(x).chunk(2, 1))
            for block in self.blocks:
                parts.append(block(parts[-1]))
            return self.last(torch.cat(parts, 1))

    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = conv(256, 128, 1, act=nn.SiLU)
            self.last = conv(512, 256, 1, act=nn.SiLU)

        def forward(self, x: Tensor) -> Tensor:
            parts = [self.first(x)]
            for _ in range(3):
                parts.append(functional.max_pool2d(parts[-1], 5, 1, 2))
            return self.last(torch.cat(parts, 1))

    def step(c_in: int, c_out: int, count: int) -> list[nn.Module]:
        return [conv(c_in, c_out, 3, 2, act=nn.SiLU), *([Split(c_out, count)] if count else [])]

    return nn.Sequential(
        *step(3, 16, 0), *step(16, 32, 1), *step(32, 64, 2), *step(64, 128, 2), *step(128, 256, 1),
        Pyramid(), nn.Conv2d(256, 144, 1),
    )  # fmt: skip


def pose() -> nn.Module:
    """HRNet's exchange of two sizes, then heat maps."""

    class Exchange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            basic = [
                Residual(nn.Sequential(conv(32, 32), conv(32, 32, act=None))) for _ in range(2)
            ]
            wide = [Residual(nn.Sequential(conv(64, 64), conv(64, 64, act=None))) for _ in range(2)]
            self.high, self.low = nn.Sequential(*basic), nn.Sequential(*wide)
            self.down = conv(32, 64, 3, 2, act=None)
            self.up = nn.Sequential(conv(64, 32, 1, act=None), nn.Upsample(scale_factor=2))

        def forward(self, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
            high, low = self.high(high), self.low(low)
            return torch.relu(high + self.up(low)), torch.relu(low + self.down(high))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(conv(3, 64, 3, 2), conv(64, 32, 3, 2))
            self.lower = conv(32, 64, 3, 2)
            self.blocks = nn.ModuleList(Exchange() for _ in range(4))
            self.last = nn.Conv2d(32, 17, 1)

        def forward(self, x: Tensor) -> Tensor:
            high = self.stem(x)
            low = self.lower(high)
            for block in self.blocks:
                high, low = block(high, low)
            return self.last(high)

    return Net()


def super_resolution() -> nn.Module:
    """EDSR's baseline, 8 blocks, three times the size by pixel shuffle."""
    body = [
        Residual(
            nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1)),
            act=False,
        )
        for _ in range(8)
    ]
    up = [nn.Conv2d(64, 576, 3, 1, 1), nn.PixelShuffle(3), nn.Conv2d(64, 3, 3, 1, 1)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), *body, *up)


def small_super_resolution() -> nn.Module:
    """ESPCN: few channels at full size."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 5, 1, 2), nn.Tanh(), nn.Conv2d(64, 32, 3, 1, 1), nn.Tanh(),
        nn.Conv2d(32, 9, 3, 1, 1), nn.PixelShuffle(3),
    )  # fmt: skip


def generator() -> nn.Module:
    """DCGAN's generator: transposed 4×4 convolutions."""
    layers: list[nn.Module] = []
    c_in = 100
    for at, c_out in enumerate((512, 256, 128, 64)):
        stride, pad = (2, 1) if at else (1, 0)
        layers += [nn.ConvTranspose2d(c_in, c_out, 4, stride, pad, bias=False)]
        layers += [nn.BatchNorm2d(c_out), nn.ReLU()]
        c_in = c_out
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


def autoencoder_decoder() -> nn.Module:
    """The decoder of a latent diffusion model, a quarter as wide: GroupNorm, SiLU, nearest."""

    def block(c_in: int, c_out: int) -> nn.Module:
        body = nn.Sequential(
            nn.GroupNorm(8, c_in), nn.SiLU(), nn.Conv2d(c_in, c_out, 3, 1, 1),
            nn.GroupNorm(8, c_out), nn.SiLU(), nn.Conv2d(c_out, c_out, 3, 1, 1),
        )  # fmt: skip
        return Residual(body, None if c_in == c_out else nn.Conv2d(c_in, c_out, 1), act=False)

    layers: list[nn.Module] = [nn.Conv2d(4, 128, 3, 1, 1), block(128, 128)]
    for c_in, c_out in ((128, 128), (128, 64), (64, 32)):
        layers += [
            block(c_in, c_out),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(c_out, c_out, 3, 1, 1),
        ]
    return nn.Sequential(*layers, nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 3, 3, 1, 1))


def style_transfer() -> nn.Module:
    """A fast style network: InstanceNorm, mirrored borders, residuals at a quarter of the size."""

    def layer(c_in: int, c_out: int, kernel: int, stride: int = 1) -> nn.Module:
        edge = nn.ReflectionPad2d(kernel // 2)
        return nn.Sequential(
            edge,
            nn.Conv2d(c_in, c_out, kernel, stride),
            nn.InstanceNorm2d(c_out, affine=True),
            nn.ReLU(),
        )

    up = nn.Upsample(scale_factor=2)
    return nn.Sequential(
        layer(3, 32, 9), layer(32, 64, 3, 2), layer(64, 128, 3, 2),
        *(
            Residual(nn.Sequential(layer(128, 128, 3), layer(128, 128, 3)), act=False)
            for _ in range(5)
        ),
        up, layer(128, 64, 3), up, layer(64, 32, 3), nn.ReflectionPad2d(4), nn.Conv2d(32, 3, 9),
    )  # fmt: skip
