"""What the quantizer's bench calibrates and measures on: noise, photographs and drawn text.

Every function draws one sample from `rng`. Of the options it reads `photos`, a folder, `font`, a
TrueType file, and `evaluating`: calibration sees the even photographs, evaluation the odd ones.
What a line of text says is left in `options.text`.
"""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


def noise(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return an image of normal noise."""
    return rng.standard_normal((1, 3, 224, 224)).astype(np.float32)


def text_line(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a line of text, 48 × 320, as PP-OCR's recognition is fed."""
    return _ocr_input(_draw_text(rng, options, (320, 48), lines=1), 0.5, 0.5)


def text_label(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a line of text, upright or not, 48 × 192, as PP-OCR's direction classifier is fed."""
    image = _draw_text(rng, options, (192, 48), lines=1)
    return _ocr_input(image[::-1, ::-1] if rng.integers(2) else image, 0.5, 0.5)


def text_page(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a page of text, 320 × 320, as PP-OCR's detection is fed."""
    image = _draw_text(rng, options, (320, 320), lines=int(rng.integers(3, 8)))
    return _ocr_input(image, np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225]))


def picture(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a crop as YOLOv8 is fed: 320 × 320, red first, from 0 to 1."""
    from PIL import Image

    crop = Image.fromarray(_photo(rng, options).astype(np.uint8)).resize((320, 320), Image.BILINEAR)
    return (np.asarray(crop, np.float32) / 255.0).transpose(2, 0, 1)[None].copy()


def photo(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a crop as open_nsfw is fed: blue first, means taken off, channels last."""
    image = _photo(rng, options)[:, :, ::-1] - np.array([104.0, 117.0, 123.0])
    return image.astype(np.float32)[None]


def _photo(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    from PIL import Image

    files = sorted(p for p in Path(options.photos).iterdir()) if options.photos else []
    # Calibration sees the even photographs, evaluation the odd ones.
    files = files[options.evaluating :: 2]
    if not files:
        small = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        return np.asarray(small.resize((224, 224), Image.BICUBIC), np.float64)
    image = _opened(files[int(rng.integers(len(files)))])
    side = int(rng.integers(min(224, *image.size), min(image.size) + 1))
    left, top = (int(rng.integers(0, length - side + 1)) for length in image.size)
    crop = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.BILINEAR)
    return np.asarray(crop, np.float64)


@cache
def _opened(file: Path) -> Any:
    from PIL import Image

    return Image.open(file).convert("RGB")


def _draw_text(
    rng: np.random.Generator, options: argparse.Namespace, size: tuple[int, int], lines: int
) -> np.ndarray:
    from PIL import Image, ImageDraw, ImageFont

    width, height = size
    paper = tuple(int(v) for v in rng.integers(170, 256, 3))
    ink = tuple(int(v) for v in rng.integers(0, 90, 3))
    image = Image.new("RGB", size, paper)
    pitch = height // lines
    for line in range(lines):
        words = [str(word) for word in rng.choice(_words(), 4)]
        points = int(rng.integers(pitch // 2, max(pitch // 2 + 1, (3 * pitch) // 4)))
        font = ImageFont.truetype(options.font, min(points, 36)) if options.font else None
        while len(words) > 1 and _length(" ".join(words), font, points) > width - 8:
            words.pop()  # what is not to be seen cannot be read
        text = options.text = " ".join(words)
        if font is not None:
            ImageDraw.Draw(image).text((4, line * pitch + 2), text, fill=ink, font=font)
            continue
        # The built-in font has one size: drawn small, then enlarged.
        strip = Image.new("L", (6 * len(text) + 4, 12))
        ImageDraw.Draw(strip).text((2, 0), text, fill=255, font=ImageFont.load_default())
        strip = strip.resize((int(strip.width * points / 12), points), Image.BICUBIC)
        image.paste(ink, (4, line * pitch + 2), strip)
    dirt = rng.normal(0.0, 4.0, (height, width, 3))
    return np.clip(np.asarray(image, np.float64) + dirt, 0, 255)


@cache
def _words() -> list[str]:
    """Return words that mean something: a reader of text was trained on such."""
    from pydoc_data.topics import topics

    return sorted(set(re.findall(r"\b[A-Za-z]{3,9}\b", " ".join(topics.values()))))


def _length(text: str, font: Any, points: int) -> float:
    """Return the pixels that a line takes."""
    return font.getlength(text) if font is not None else (6 * len(text) + 4) * points / 12


def _ocr_input(image: np.ndarray, mean: Any, deviation: Any) -> np.ndarray:
    return ((image / 255.0 - mean) / deviation).transpose(2, 0, 1).astype(np.float32)[None]
