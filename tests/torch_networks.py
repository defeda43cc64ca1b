"""Small networks of PyTorch, built as torchvision builds its own, and a transformer.

Imported where PyTorch is: by tests that need it, and by `bench/torch_compile_bench.py`, which wants
them wider.
"""

# ruff: noqa: TID253 -- it is imported where PyTorch is there

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional


def conv_norm(
    channels: tuple[int, int],
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    act: Callable[[], nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Return a convolution, its batch norm, and an activation."""
    conv = nn.Conv2d(
        *channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
    )
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(channels[1])]
    return nn.Sequential(*layers, *([act()] if act is not None else []))


class Classifier(nn.Module):
    """Features, averaged over the picture, and a linear layer."""

    def __init__(self, features: nn.Module, width: int, classes: int = 10) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(width, classes)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.head(self.drop(torch.flatten(x, 1)))


class Residual(nn.Module):
    """A basic block of ResNet."""

    def __init__(self, channels: tuple[int, int], stride: int) -> None:
        super().__init__()
        wide = channels[1]
        self.body = nn.Sequential(
            conv_norm(channels, 3, stride=stride), conv_norm((wide, wide), 3, act=None)
        )
        same = stride == 1 and channels[0] == wide
        self.skip = nn.Identity() if same else conv_norm(channels, 1, stride=stride, act=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.skip(x))


def resnet(width: int = 16, blocks: Sequence[int] = (1, 1)) -> nn.Module:
    """Return a ResNet of basic blocks, each stage twice as wide as the one before."""
    layers: list[nn.Module] = [
        conv_norm((3, width), 7, stride=2),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            wide = width << stage
            layers.append(Residual((channels, wide), 2 if stage and not block else 1))
            channels = wide
    return Classifier(nn.Sequential(*layers), channels)


class Inverted(nn.Module):
    """An inverted residual of MobileNetV2; with `squeeze`, a block of EfficientNet."""

    def __init__(
        self,
        channels: tuple[int, int],
        *,
        expansion: int,
        stride: int,
        kernel: int = 3,
        squeeze: bool = False,
    ) -> None:
        super().__init__()
        act = nn.SiLU if squeeze else nn.ReLU6
        wide = channels[0] * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers.append(conv_norm((channels[0], wide), 1, act=act))
        layers.append(conv_norm((wide, wide), kernel, stride=stride, groups=wide, act=act))
        if squeeze:
            layers.append(SqueezeExcite(wide, max(1, channels[0] // 4)))
        layers.append(conv_norm((wide, channels[1]), 1, act=None))
        self.body = nn.Sequential(*layers)
        self.same = stride == 1 and channels[0] == channels[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.same else self.body(x)


class SqueezeExcite(nn.Module):
    """Channels weighed by what is in the whole picture."""

    def __init__(self, channels: int, narrow: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, narrow, 1), nn.Conv2d(narrow, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = functional.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.up(functional.silu(self.down(scale))))


def mobilenet_v2(width: int = 8, blocks: Sequence[int] = (2,)) -> nn.Module:
    """Return a MobileNetV2 of inverted residuals."""
    layers: list[nn.Module] = [conv_norm((3, width), 3, stride=2, act=nn.ReLU6)]
    layers.append(Inverted((width, width), expansion=1, stride=1))
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            wide = width * (stage + 2)
            layers.append(Inverted((channels, wide), expansion=6, stride=1 if block else 2))
            channels = wide
    layers.append(conv_norm((channels, channels * 4), 1, act=nn.ReLU6))
    return Classifier(nn.Sequential(*layers), channels * 4)


def efficientnet(width: int = 8, blocks: Sequence[int] = (2,)) -> nn.Module:
    """Return an EfficientNet: inverted residuals with squeeze and excite, SiLU, kernels of 5."""
    layers: list[nn.Module] = [conv_norm((3, width), 3, stride=2, act=nn.SiLU)]
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            wide, kernel = width * (stage + 2), 5 if block % 2 else 3
            stride = 1 if block else 2
            layers.append(
                Inverted((channels, wide), expansion=4, stride=stride, kernel=kernel, squeeze=True)
            )
            channels = wide
    layers.append(conv_norm((channels, channels * 4), 1, act=nn.SiLU))
    return Classifier(nn.Sequential(*layers), channels * 4)


class Vgg(nn.Module):
    """Convolutions with biases, pools, and a classifier of linear layers on 2×2 pixels."""

    def __init__(self, width: int, stages: Sequence[int], classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage, count in enumerate(stages):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width << stage, 3, padding=1), nn.ReLU(True)]
                channels = width << stage
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Sequential(
            nn.Linear(channels * 4, channels * 4), nn.ReLU(True), nn.Dropout(),
            nn.Linear(channels * 4, classes),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


def vgg(width: int = 8, blocks: Sequence[int] = (1, 2)) -> nn.Module:
    """Return a VGG without batch norms."""
    return Vgg(width, blocks)


class DenseLayer(nn.Module):
    """A layer of DenseNet: its result is put beside what it was given."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(growth * 4)
        self.conv1 = nn.Conv2d(channels, growth * 4, 1, bias=False)
        self.conv2 = nn.Conv2d(growth * 4, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(functional.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(functional.relu(self.norm2(y)))], 1)


def densenet(width: int = 8, blocks: Sequence[int] = (1, 1)) -> nn.Module:
    """Return a DenseNet: dense blocks, and between them transitions that halve."""
    layers: list[nn.Module] = [conv_norm((3, width * 2), 3, stride=2)]
    channels = width * 2
    for stage, count in enumerate(blocks):
        if stage:
            half = channels // 2
            layers += [nn.BatchNorm2d(channels), nn.ReLU(True)]
            layers += [nn.Conv2d(channels, half, 1, bias=False), nn.AvgPool2d(2)]
            channels = half
        for _ in range(count):
            layers.append(DenseLayer(channels, width))
            channels += width
    layers += [nn.BatchNorm2d(channels), nn.ReLU(True)]
    return Classifier(nn.Sequential(*layers), channels)


class Layer(nn.Module):
    """A layer of a transformer, normalized first, with attention as PyTorch's users write it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """An encoder: token numbers and a mask of 0 and 1 → states, and the first one's tanh."""

    def __init__(self, width: int, layers: int, heads: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.pool = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = mask[:, None, None, :].bool()
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, seen)
        x = self.norm(x)
        return x, torch.tanh(self.pool(x[:, 0]))


def transformer(width: int = 32, layers: int = 2, heads: int = 4, words: int = 100) -> nn.Module:
    """Return an encoder."""
    return Transformer(width, layers, heads, words)


PICTURES: Mapping[str, Callable[..., nn.Module]] = {
    "resnet": resnet,
    "mobilenet_v2": mobilenet_v2,
    "vgg": vgg,
    "densenet": densenet,
    "efficientnet": efficientnet,
}


def settled(module: nn.Module, seed: int = 0) -> nn.Module:
    """Return a module for inference, with batch norms that have seen numbers."""
    random = torch.Generator().manual_seed(seed)
    for one in module.modules():
        if isinstance(one, nn.BatchNorm2d):
            one.running_mean.normal_(0.0, 0.1, generator=random)
            one.running_var.uniform_(0.5, 1.5, generator=random)
    return module.eval()


def picture(size: int = 32, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """Return a picture of noise."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, size, size, generator=random)


def tokens(length: int = 12, batch: int = 1, words: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token numbers, and a mask that leaves the last two out."""
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, words, (batch, length), generator=random)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[:, -2:] = 0
    return ids, mask
