"""What quantizing costs a classifier that was trained for it here: scikit-learn's digits.

    python bench/digits_bench.py DIGITS.csv.gz [--networks 4]

DIGITS is `sklearn/datasets/data/digits.csv.gz` from a scikit-learn wheel: 1,797 images of 8 × 8,
their class in the last column. Small convolutional networks, each from another seed, are trained
on two thirds with PyTorch (seconds, images moved by up to a pixel); every 8-bit scheme is
calibrated on 256 of those, spread over them, and all are measured on the last third. Exits 1 if
any scheme costs any of the networks half a percentage point.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

EPOCHS = 40
CALIBRATED = 256
MOST_POINTS = 0.5
SCHEMES = ("xint8", "a8w8", "a8w8 per tensor", "a16w8", "bfp16", "mxint8")


def trained(images: np.ndarray, classes: np.ndarray, seed: int) -> Any:
    """Train a small network on the images."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    x, y = torch.from_numpy(images), torch.from_numpy(classes)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            down, right = (int(v) for v in torch.randint(-1, 2, (2,)))
            moved = torch.roll(x[part], (down, right), (2, 3))
            nn.functional.cross_entropy(net(moved), y[part]).backward()
            optimizer.step()
    return net.eval()


def exported(net: Any, file: Path) -> ir.Model:
    """Return the network as a graph that takes any number of images."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter that is on its way out
        torch.onnx.export(
            net,
            (torch.zeros(1, 1, 8, 8),),
            file,
            input_names=["x"],
            dynamic_axes={"x": {0: "n"}},
            opset_version=17,
            dynamo=False,
        )
    return ir.load(file)


def right_percent(model: ir.Model, images: np.ndarray, classes: np.ndarray) -> float:
    """Return the part of the images whose class the model finds."""
    from vermilion.ir.execute import open_session, run_session

    (scores,) = run_session(open_session(model), {"x": images}).values()
    return 100.0 * float(np.mean(scores.argmax(axis=-1) == classes))


def main() -> None:
    """Train, quantize, count."""
    from vermilion.quantize.quantize import quantize_model

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("digits", type=Path)
    parser.add_argument("--networks", type=int, default=4)
    options = parser.parse_args()
    table = np.loadtxt(options.digits, delimiter=",", dtype=np.float32)
    images, classes = table[:, :-1].reshape(-1, 1, 8, 8) / 16.0, table[:, -1].astype(np.int64)
    split = 2 * len(images) // 3
    lost: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    for seed in range(options.networks):
        with tempfile.TemporaryDirectory() as folder:
            net = trained(images[:split], classes[:split], seed)
            model = exported(net, Path(folder) / "digits.onnx")
        whole = right_percent(model, images[split:], classes[split:])
        print(f"network {seed}: float32 {whole:.2f} %", flush=True)
        for words in SCHEMES:
            name, _, kind = words.partition(" ")
            settings: dict[str, Any] = {"per_channel": False} if kind else {}
            data = ({"x": image[None]} for image in images[: split : split // CALIBRATED])
            done = quantize_model(model, data, scheme=name, **settings)
            lost[words].append(whole - right_percent(done.model, images[split:], classes[split:]))
    print("percentage points lost       worst     mean")
    for words, points in lost.items():
        print(f"{words:28} {max(points):+.2f}    {np.mean(points):+.2f}")
    if max(max(points) for points in lost.values()) >= MOST_POINTS:
        raise SystemExit(f"a scheme lost {MOST_POINTS} points or more")


if __name__ == "__main__":
    main()
