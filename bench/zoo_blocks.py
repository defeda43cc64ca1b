"""What networks of the zoo are built of, in PyTorch."""

# ruff: noqa: TID253 -- the export imports it where PyTorch is there

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]


def conv(
    c_in: int, c_out: int, kernel: int = 3, stride: int = 1, *, group: int = 1, step: int = 1,
    act: Activation | None = nn.ReLU,
) -> nn.Sequential:  # fmt: skip
    """Return a convolution that keeps the size, its batch norm and its activation."""
    pad = (kernel - 1) * step // 2
    layers: list[nn.Module] = [
        nn.Conv2d(c_in, c_out, kernel, stride, pad, step, group, bias=False), nn.BatchNorm2d(c_out),
    ]  # fmt: skip
    return nn.Sequential(*layers, *([act()] if act else []))


class Residual(nn.Module):
    """`act(body(x) + shortcut(x))`."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, act: bool = True):
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()
        self.act = nn.ReLU() if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Add."""
        return self.act(self.body(x) + self.shortcut(x))


class Joined(nn.Module):
    """The results of several branches along the channels."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, inner: int):
        super().__init__()
        self.inner = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), nn.ReLU(),
            nn.Conv2d(inner, channels, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        return x * self.inner(x)


def head(channels: int, classes: int = 1000) -> list[nn.Module]:
    """Return what classifies."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def bottleneck(
    c_in: int, middle: int, c_out: int, stride: int = 1, *, group: int = 1, step: int = 1,
    gate: bool = False,
) -> Residual:  # fmt: skip
    """Return a block of ResNet, ResNeXt, RegNet or SE-ResNet."""
    body = nn.Sequential(
        conv(c_in, middle, 1), conv(middle, middle, 3, stride, group=group, step=step),
        *([Gate(middle, middle // 4)] if gate else []), conv(middle, c_out, 1, act=None),
    )  # fmt: skip
    same = c_in == c_out and stride == 1
    return Residual(body, None if same else conv(c_in, c_out, 1, stride, act=None))


def resnet(
    blocks: Sequence[int], middle: Sequence[int], outputs: Sequence[int], *,
    group_width: int = 0, gate: bool = False, stem: int = 64, pool: bool = True,
    dilated: bool = False,
) -> nn.Sequential:  # fmt: skip
    """Return a network of bottlenecks; the last two stages of a dilated one keep their size."""
    layers: list[nn.Module] = [conv(3, stem, 7 if pool else 3, 2)]
    layers += [nn.MaxPool2d(3, 2, 1)] if pool else []
    c_in = stem
    for stage, (count, inner, c_out) in enumerate(zip(blocks, middle, outputs, strict=True)):
        for block in range(count):
            stride = 2 if block == 0 and (stage or not pool) else 1
            step = 2 ** max(0, stage - 1) if dilated else 1
            stride = 1 if step > 1 else stride
            group = inner // group_width if group_width else 1
            if group_width < 0:  # as many groups in every stage
                group = -group_width
            layers.append(bottleneck(c_in, inner, c_out, stride, group=group, step=step, gate=gate))
            c_in = c_out
    return nn.Sequential(*layers)


WIDE = (256, 512, 1024, 2048)


def inverted(
    c_in: int, wide: int, c_out: int, kernel: int, stride: int, *, act: Activation, gate: bool,
    step: int = 1,
) -> nn.Module:  # fmt: skip
    """Return an inverted residual."""
    body = nn.Sequential(
        conv(c_in, wide, 1, act=act),
        conv(wide, wide, kernel, stride, group=wide, step=step, act=act),
        *([Gate(wide, max(8, wide // 4))] if gate else []), conv(wide, c_out, 1, act=None),
    )  # fmt: skip
    return Residual(body, act=False) if c_in == c_out and stride == 1 else body


# Kernel, expansion, channels, gate, swish, stride. Source: Howard et al. 2019, "Searching for
# MobileNetV3", table 1; the last stage is dilated instead of halved.
_V3 = (
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2),
    (5, 120, 40, 1, 0, 1), (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1),
    (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1),
    (5, 672, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1),
)  # fmt: skip


def mobilenet_v3_stages(last: int = 1) -> list[nn.Module]:
    """Return MobileNetV3-Large without its head; `last` is the stride of the last stage."""
    layers: list[nn.Module] = [conv(3, 16, 3, 2, act=nn.Hardswish)]
    c_in = 16
    for at, (kernel, wide, c_out, gate, swish, stride) in enumerate(_V3):
        act = nn.Hardswish if swish else nn.ReLU
        step = 2 if at >= 12 and last == 1 else 1
        stride = last if at == 12 else stride
        how = {"act": act, "gate": bool(gate), "step": step}
        layers.append(inverted(c_in, wide, c_out, kernel, stride, **how))
        c_in = c_out
    return layers


def signal(
    c_in: int, c_out: int, kernel: int, stride: int = 1, *, group: int = 1, step: int = 1
) -> nn.Module:
    """Return a convolution over a signal, its norm and activation."""
    pad = (kernel - 1) * step // 2
    return nn.Sequential(
        nn.Conv1d(c_in, c_out, kernel, stride, pad, step, group), nn.BatchNorm1d(c_out), nn.ReLU()
    )
