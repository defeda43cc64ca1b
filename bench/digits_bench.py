"""What quantizing costs a classifier that was trained for it here: scikit-learn's digits.

    python bench/digits_bench.py DIGITS.csv.gz

DIGITS is `sklearn/datasets/data/digits.csv.gz` from a scikit-learn wheel: 1,797 images of 8 × 8,
their class in the last column. A small convolutional network is trained on two thirds with
PyTorch (seconds); every scheme is calibrated on 64 of those and measured on the last third.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

EPOCHS = 40
SCHEMES = ("xint8", "a8w8", "a8w8 per tensor", "a16w8", "bf16", "bfp16", "mxint8")


def trained(images: np.ndarray, classes: np.ndarray) -> Any:
    """Train a small network on the images."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    x, y = torch.from_numpy(images), torch.from_numpy(classes)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[part]), y[part]).backward()
            optimizer.step()
    return net.eval()


def main() -> None:
    """Train, quantize, count."""
    import torch

    from vermilion.ir.execute import open_session, run_session
    from vermilion.quantize import quantize_model

    table = np.loadtxt(sys.argv[1], delimiter=",", dtype=np.float32)
    images, classes = table[:, :-1].reshape(-1, 1, 8, 8) / 16.0, table[:, -1].astype(np.int64)
    split = 2 * len(images) // 3
    net = trained(images[:split], classes[:split])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.onnx"
        torch.onnx.export(
            net, (torch.zeros(1, 1, 8, 8),), file, input_names=["x"], opset_version=17, dynamo=False
        )
        model = ir.load(file)

        def accuracy(candidate: ir.Model) -> float:
            session = open_session(candidate)
            found = [
                int(next(iter(run_session(session, {"x": image[None]}).values())).argmax())
                for image in images[split:]
            ]
            return 100.0 * float(np.mean(np.asarray(found) == classes[split:]))

        whole = accuracy(model)
        print(f"float32          {whole:.2f} %")
        for words in SCHEMES:
            name, _, kind = words.partition(" ")
            settings: dict[str, Any] = {"per_channel": False} if kind else {}
            data = ({"x": image[None]} for image in images[:64])
            done = quantize_model(model, data, scheme=name, **settings)
            here = accuracy(done.model)
            print(f"{words:16} {here:.2f} %   {here - whole:+.2f} points")


if __name__ == "__main__":
    main()
