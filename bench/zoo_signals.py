"""Networks of the zoo over tokens, sound, signals and rows of numbers."""

# ruff: noqa: TID253 -- the export imports it where PyTorch is there

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_blocks import Residual, conv, signal


class Recurrent(nn.Module):
    """Embedding, recurrent layers, one class a token."""

    def __init__(self, cell: type[nn.RNNBase], width: int = 256, *, both: bool = True):
        super().__init__()
        self.table = nn.Embedding(5000, width)
        self.cell = cell(width, width, 2, batch_first=True, bidirectional=both)
        self.last = nn.Linear(width * (2 if both else 1), 32)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores for every token."""
        return self.last(self.cell(self.table(tokens))[0])


def lstm_tagger() -> nn.Module:
    """A bidirectional LSTM of two layers over tokens."""
    return Recurrent(nn.LSTM)


def gru_tagger() -> nn.Module:
    """A GRU of two layers over tokens."""
    return Recurrent(nn.GRU, both=False)


def text_recognizer() -> nn.Module:
    """CRNN: convolutions over a line of text, then a bidirectional LSTM."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                conv(1, 64), nn.MaxPool2d(2), conv(64, 128), nn.MaxPool2d(2), conv(128, 256),
                conv(256, 256), nn.MaxPool2d((2, 1)), conv(256, 512), nn.MaxPool2d((2, 1)),
                nn.Conv2d(512, 512, (2, 1)), nn.ReLU(),
            )  # fmt: skip
            self.cell = nn.LSTM(512, 256, 1, batch_first=True, bidirectional=True)
            self.last = nn.Linear(512, 97)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.cell(self.body(x).squeeze(2).transpose(1, 2))[0])

    return Net()


def wavenet() -> nn.Module:
    """Gated dilated convolutions over a signal, dilations 1 to 512."""

    class Gated(nn.Module):
        def __init__(self, step: int):
            super().__init__()
            self.both = nn.Conv1d(64, 128, 3, padding=step, dilation=step)
            self.last = nn.Conv1d(64, 64, 1)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.both(x).chunk(2, 1)
            return x + self.last(torch.tanh(a) * torch.sigmoid(b))

    body = [Gated(2**at) for at in range(10)]
    return nn.Sequential(
        nn.Conv1d(1, 64, 1), *body, nn.Conv1d(64, 64, 1), nn.ReLU(), nn.Conv1d(64, 256, 1)
    )


def separator() -> nn.Module:
    """Conv-TasNet's blocks: an encoder of long steps, depthwise dilated convolutions, a decoder."""

    def block(step: int) -> nn.Module:
        body = [nn.Conv1d(128, 256, 1), nn.PReLU(), nn.GroupNorm(1, 256)]
        body += [nn.Conv1d(256, 256, 3, padding=step, dilation=step, groups=256), nn.PReLU()]
        return Residual(
            nn.Sequential(*body, nn.GroupNorm(1, 256), nn.Conv1d(256, 128, 1)), act=False
        )

    blocks = [block(2**at) for at in range(8)]
    return nn.Sequential(
        nn.Conv1d(1, 128, 16, 8), nn.ReLU(), *blocks, nn.ReLU(), nn.ConvTranspose1d(128, 1, 16, 8)
    )


def vocoder() -> nn.Module:
    """HiFi-GAN's generator: transposed signals, residuals of dilated convolutions."""

    def block(c: int, step: int) -> nn.Module:
        body = [nn.LeakyReLU(0.1), nn.Conv1d(c, c, 3, padding=step, dilation=step)]
        return Residual(
            nn.Sequential(*body, nn.LeakyReLU(0.1), nn.Conv1d(c, c, 3, padding=1)), act=False
        )

    layers: list[nn.Module] = [nn.Conv1d(80, 256, 7, padding=3)]
    for c_in, c_out, factor in ((256, 128, 8), (128, 64, 8), (64, 32, 4)):
        layers += [
            nn.LeakyReLU(0.1),
            nn.ConvTranspose1d(c_in, c_out, 2 * factor, factor, factor // 2),
        ]
        layers += [block(c_out, step) for step in (1, 3, 5)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.1), nn.Conv1d(32, 1, 7, padding=3), nn.Tanh())


def keyword_spotter() -> nn.Module:
    """A short-time Fourier transform as a convolution, then MatchboxNet."""

    class Spectrum(nn.Module):
        def __init__(self, size: int = 400, hop: int = 160):
            super().__init__()
            time = torch.arange(size) * (2 * torch.pi / size)
            angle = torch.arange(size // 2 + 1)[:, None] * time * torch.hann_window(size)
            self.register_buffer("waves", torch.cat([angle.cos(), angle.sin()])[:, None])
            self.hop = hop

        def forward(self, x: Tensor) -> Tensor:
            a, b = functional.conv1d(x, self.waves, stride=self.hop).chunk(2, 1)
            return torch.log(a * a + b * b + 1e-6)

    def separable(c_in: int, c_out: int, kernel: int) -> nn.Module:
        return nn.Sequential(signal(c_in, c_in, kernel, group=c_in), signal(c_in, c_out, 1))

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(2)

    body = [
        separable(128 if at == 0 else 64, 64, kernel) for at, kernel in enumerate((13, 15, 17, 19))
    ]
    return nn.Sequential(
        Spectrum(), signal(201, 128, 11, 2), *body, signal(64, 128, 1), Mean(), nn.Linear(128, 35)
    )


def heart_signals() -> nn.Module:
    """A one-dimensional ResNet over twelve leads."""

    def block(c_in: int, c_out: int) -> nn.Module:
        body = nn.Sequential(signal(c_in, c_out, 17, 4), nn.Conv1d(c_out, c_out, 17, padding=8))
        return Residual(body, nn.Conv1d(c_in, c_out, 1, 4))

    return nn.Sequential(
        signal(12, 64, 17),
        block(64, 128),
        block(128, 196),
        block(196, 256),
        nn.Flatten(),
        nn.Linear(4096, 6),
    )


def tabular() -> nn.Module:
    """A residual network over 64 numbers a row."""
    body = [
        Residual(
            nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256)),
            act=False,
        )
        for _ in range(4)
    ]
    return nn.Sequential(nn.Linear(64, 256), *body, nn.ReLU(), nn.Linear(256, 1))


def recommender() -> nn.Module:
    """DLRM: tables, products of their rows, two perceptrons."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(2000, 64) for _ in range(16))
            self.bottom = nn.Sequential(
                nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()
            )
            self.top = nn.Sequential(
                nn.Linear(17 * 17 + 64, 512), nn.ReLU(), nn.Linear(512, 1), nn.Sigmoid()
            )

        def forward(self, numbers: Tensor, places: Tensor) -> Tensor:
            dense = self.bottom(numbers)
            rows = [table(places[:, at]) for at, table in enumerate(self.tables)]
            all_rows = torch.stack([dense, *rows], 1)
            products = torch.bmm(all_rows, all_rows.transpose(1, 2)).flatten(1)
            return self.top(torch.cat([dense, products], 1))

    return Net()
