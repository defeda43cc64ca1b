"""Ten small networks, trained in seconds on drawn data: what `ten_networks_bench.py` quantizes.

Each is a kind that quantizers meet: depthwise convolutions, attention with and without masks,
skips and transposed convolutions, recurrent layers, dilated ones, LayerNormalization over channels.
All data are drawn from seeds: pictures of shapes, sequences of a small grammar, tones in noise.
"""

# ruff: noqa: TID253 -- it is imported where PyTorch is there
# ruff: noqa: D102 -- a network's `forward` is what its class says

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]
LOWEST = -3.4028234663852886e38


@dataclass(frozen=True)
class Kind:
    """A network, what it is trained on, and how often."""

    build: Callable[[], nn.Module]
    draw: Callable[[np.random.Generator, int], Pair]
    loss: Callable[[Tensor, Tensor], Tensor]
    steps: int = 250


def _shapes(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw pictures of a disc, a square, a cross or stripes; give pictures, kinds and masks."""
    side = 32
    y, x = np.mgrid[:side, :side]
    kinds = random.integers(0, 4, count)
    masks = np.zeros((count, side, side), bool)
    for n, kind in enumerate(kinds):
        cy, cx, r = *random.uniform(9, 23, 2), random.uniform(4, 9)
        dy, dx = np.abs(y - cy), np.abs(x - cx)
        inside = (dy < r) & (dx < r)
        masks[n] = (
            dy**2 + dx**2 < r**2,
            inside,
            inside & ((dy < r / 3) | (dx < r / 3)),
            inside & ((y // 2) % 2 == 0),
        )[kind]
    colours = random.uniform(-1.5, 1.5, (2, count, 3, 1, 1))
    pictures = np.where(masks[:, None], colours[0], 0.3 * colours[1])
    pictures += 0.3 * random.standard_normal(pictures.shape)
    return pictures.astype(np.float32), kinds, masks


def classes(random: np.random.Generator, count: int) -> Pair:
    """Pictures and which shape is in them."""
    pictures, kinds, _ = _shapes(random, count)
    return torch.from_numpy(pictures), torch.from_numpy(kinds)


def masks(random: np.random.Generator, count: int) -> Pair:
    """Pictures and where the shape is."""
    pictures, _, inside = _shapes(random, count)
    return torch.from_numpy(pictures), torch.from_numpy(inside.astype(np.int64))


def boxes(random: np.random.Generator, count: int) -> Pair:
    """Pictures and, for each of 8 × 8 cells, whether the shape covers it."""
    pictures, _, inside = _shapes(random, count)
    cells = inside.reshape(count, 8, 4, 8, 4).mean(axis=(2, 4)) > 0.4
    return torch.from_numpy(pictures), torch.from_numpy(cells.astype(np.int64))


def tones(random: np.random.Generator, count: int) -> Pair:
    """Sequences (T, 16) of a tone that rises, falls, stays or comes and goes, in noise."""
    kinds = random.integers(0, 4, count)
    time = np.linspace(0, 1, 40)
    path = np.stack([time, 1 - time, 0.5 + 0 * time, 0.5 + 0.4 * np.sin(12 * time)])[kinds]
    path = path * random.uniform(6, 10, (count, 1)) + random.uniform(2, 5, (count, 1))
    bands = np.exp(-0.5 * (path[:, :, None] - np.arange(16)) ** 2)
    noisy = bands * random.uniform(1, 3, (count, 1, 1)) + 0.4 * random.standard_normal(bands.shape)
    return torch.from_numpy(noisy.astype(np.float32)), torch.from_numpy(kinds)


def tokens(random: np.random.Generator, count: int) -> Pair:
    """Sequences of a grammar: each token follows from the two before it, mostly."""
    table = np.random.default_rng(7).integers(0, 24, (24, 24, 2))
    rows = random.integers(0, 24, (count, 25))
    for n in range(2, 25):
        best = table[rows[:, n - 2], rows[:, n - 1], (random.random(count) < 0.3).astype(int)]
        rows[:, n] = np.where(random.random(count) < 0.9, best, rows[:, n])
    return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])


def turned(random: np.random.Generator, count: int) -> Pair:
    """Sequences padded with 0, and the same backwards."""
    rows = random.integers(1, 24, (count, 16))
    lengths = random.integers(6, 17, count)
    rows[np.arange(16) >= lengths[:, None]] = 0
    back = np.zeros_like(rows)
    for n, length in enumerate(lengths):
        back[n, :length] = rows[n, :length][::-1]
    return torch.from_numpy(rows), torch.from_numpy(back)


def _entropy(found: Tensor, wanted: Tensor) -> Tensor:
    """Return the cross entropy; classes are the second axis of pictures, the last of rows."""
    if found.dim() == 3:
        found = found.transpose(1, 2)
    return nn.functional.cross_entropy(found, wanted)


def _conv(
    a: int, b: int, k: int = 3, stride: int = 1, group: int = 1, dilation: int = 1
) -> nn.Module:
    pad = dilation * (k // 2)
    conv = nn.Conv2d(a, b, k, stride, pad, dilation, group, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(b), nn.ReLU6() if group > 1 else nn.ReLU())


def mobilenet() -> nn.Module:
    """Depthwise and pointwise convolutions."""
    layers: list[nn.Module] = [_conv(3, 16, stride=2)]
    for a, b, stride in ((16, 24, 1), (24, 32, 2), (32, 48, 1), (48, 64, 2)):
        layers += [_conv(a, a, 3, stride, group=a), _conv(a, b, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4))


class Attention(nn.Module):
    """A block of a transformer, with what is put on the scores."""

    def __init__(self, width: int, heads: int = 4, crossed: bool = False) -> None:
        super().__init__()
        self.heads, self.crossed = heads, crossed
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        batch, rows, width = x.shape
        n = self.norm(x)
        source = n if other is None else other

        def split(t: Tensor) -> Tensor:
            return t.reshape(batch, -1, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.q(n)), split(self.k(source)), split(self.v(source))
        scores = q @ k.transpose(2, 3) * (width // self.heads) ** -0.5
        if mask is not None:
            scores = scores + mask
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, rows, width)
        x = x + self.o(y)
        return x + self.mlp(self.second(x))


class Vit(nn.Module):
    """Patches of 4 × 4 and three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn(1, 64, 48))
        self.blocks = nn.ModuleList(Attention(48) for _ in range(3))
        self.head = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Unet(nn.Module):
    """Two levels with skips and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = _conv(3, 16), _conv(16, 32), _conv(32, 48)
        self.up, self.upper = nn.ConvTranspose2d(48, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.d, self.e, self.head = _conv(64, 32), _conv(32, 16), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        pool = nn.functional.max_pool2d
        a = self.a(x)
        b = self.b(pool(a, 2))
        y = self.d(torch.cat([self.up(self.c(pool(b, 2))), b], 1))
        return self.head(self.e(torch.cat([self.upper(y), a], 1)))


class Recurrent(nn.Module):
    """An LSTM between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(16, 32), nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.first(x).relu())[0].mean(1))


class Language(nn.Module):
    """A decoder of two blocks with a causal mask of the lowest float32."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(24, 64), nn.Parameter(0.02 * torch.randn(24, 64))
        self.blocks = nn.ModuleList(Attention(64) for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 24))
        self.register_buffer("mask", torch.full((24, 24), LOWEST).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) + self.place
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(x)


class Spotter(nn.Module):
    """Separable convolutions along time."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(16, 32, 5, 2, 2), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv1d(32, 32, 5, 1, 2, groups=32), nn.Conv1d(32, 32, 1), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.transpose(1, 2)).mean(2))


class Translator(nn.Module):
    """An encoder and one block that looks at it, padding masked by the lowest float32."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(24, 64), nn.Parameter(0.1 * torch.randn(16, 64))
        self.encoder = nn.ModuleList(Attention(64) for _ in range(2))
        self.question = nn.Parameter(0.1 * torch.randn(1, 16, 64))
        self.decoder = nn.ModuleList(Attention(64, crossed=True) for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 24))

    def forward(self, x: Tensor) -> Tensor:
        mask = (x == 0).to(torch.float32)[:, None, None, :] * LOWEST
        y = self.words(x) + self.place
        for block in self.encoder:
            y = block(y, mask)
        z = self.question.expand(len(x), -1, -1) + self.place
        for block in self.decoder:
            z = block(z, mask, y)
        return self.head(z)


class ConvNextBlock(nn.Module):
    """A large depthwise kernel, LayerNormalization over channels, two products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.gain = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.depth(x).permute(0, 2, 3, 1))) * self.gain
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """Two stages of blocks."""
    blocks = [ConvNextBlock(32), nn.Conv2d(32, 48, 2, 2), ConvNextBlock(48)]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4)]
    return nn.Sequential(nn.Conv2d(3, 32, 4, 4), *blocks, *ends)


def detector() -> nn.Module:
    """A grid of cells with SiLU."""
    layers: list[nn.Module] = []
    for a, b, stride in ((3, 16, 2), (16, 32, 2), (32, 48, 1)):
        layers += [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(48, 2, 1))


def dilated() -> nn.Module:
    """Dilated convolutions at full resolution."""
    rows = [_conv(3, 16), *(_conv(16, 16, dilation=d) for d in (1, 2, 4))]
    return nn.Sequential(*rows, nn.Conv2d(16, 2, 1))


KINDS: dict[str, Kind] = {
    "mobilenet": Kind(mobilenet, classes, _entropy),
    "vit": Kind(Vit, classes, _entropy),
    "unet": Kind(Unet, masks, _entropy, 60),
    "lstm": Kind(Recurrent, tones, _entropy),
    "language": Kind(Language, tokens, _entropy, 400),
    "detector": Kind(detector, boxes, _entropy),
    "keywords": Kind(Spotter, tones, _entropy),
    "translator": Kind(Translator, turned, _entropy, 500),
    "convnext": Kind(convnext, classes, _entropy, 150),
    "dilated": Kind(dilated, masks, _entropy, 60),
}


def trained(name: str) -> nn.Module:
    """Return a trained network, the same each time."""
    kind = KINDS[name]
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    network = kind.build()
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, kind.steps)
    for _ in range(kind.steps):
        data, wanted = kind.draw(random, 48)
        loss = kind.loss(network(data), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


def exported(name: str, file: Path) -> None:
    """Train and write one as ONNX of opset 17."""
    network = trained(name)
    data, _ = KINDS[name].draw(np.random.default_rng(1), 1)
    torch.onnx.export(
        network,
        (data,),
        file,
        input_names=["x"],
        output_names=["y"],
        opset_version=17,
        dynamo=False,
    )


def samples(name: str, count: int, seed: int) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """Return inputs one by one, and what is right for them."""
    data, wanted = KINDS[name].draw(np.random.default_rng(seed), count)
    return [{"x": row[None].numpy()} for row in data], wanted.numpy()
