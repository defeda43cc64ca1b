"""How a model wants its pictures, from a file: our own form, transformers' or timm's.

ours          a JSON object with `size` and the other fields of `PictureOptions`
transformers  `preprocessor_config.json`, of a processor of images
timm          `config.json` with `pretrained_cfg`, or that object alone

A folder stands for the file of these names in it. What a file says that cannot be done is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vermilion.errors import OptionError
from vermilion.ir.pictures import FILTERS, PictureOptions

_NAMES = ("preprocess.json", "preprocessor_config.json", "config.json")
_OWN = (*("size", "fit", "edge", "fill", "filter", "channels", "factor", "mean", "std", "layout"),)
_TRANSFORMERS = frozenset(
    {"image_mean", "do_normalize", "do_resize", "do_rescale", "image_processor_type", "crop_size"}
)
_TIMM = frozenset({"crop_pct", "interpolation", "input_size"})


def read_preprocessing(place: Path) -> PictureOptions:
    """Return what the file says.

    Raises: OptionError where there is none, or it says what is not known.
    """
    file = _file_at(place)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(
            f"the preprocessing file cannot be read: {error}", where=str(file)
        ) from error
    if not isinstance(found, dict):
        raise OptionError("the preprocessing file is not a JSON object", where=str(file))
    try:
        return _read(found)
    except OptionError as error:
        raise OptionError(error.message, where=error.where or str(file), hint=error.hint) from error
    except (TypeError, ValueError, KeyError) as error:
        raise OptionError(
            f"the preprocessing file holds a value of another kind than expected: {error}",
            where=str(file),
        ) from error


def _file_at(place: Path) -> Path:
    if not place.is_dir():
        if not place.is_file():
            raise OptionError(f"there is no preprocessing file `{place}`")
        return place
    for name in _NAMES:
        if (place / name).is_file():
            return place / name
    raise OptionError(
        f"the folder `{place}` holds no preprocessing file",
        hint=f"known names: {', '.join(_NAMES)}",
    )


def _read(found: Mapping[str, Any]) -> PictureOptions:
    inner = found.get("pretrained_cfg")
    if isinstance(inner, dict):
        return _of_timm(inner)
    if found.keys() & _TRANSFORMERS:
        return _of_transformers(found)
    if found.keys() & _TIMM:
        return _of_timm(found)
    return _own(found)


def _own(found: Mapping[str, Any]) -> PictureOptions:
    for name in found:
        if name not in _OWN:
            near = difflib.get_close_matches(name, _OWN, n=1, cutoff=0.5) or _OWN
            raise OptionError(
                f"pictures have no `{name}`", hint=f"known: {', '.join(f'`{n}`' for n in near)}"
            )
    fields = dict(found)
    if "size" in fields:
        fields["resize"] = _pair(fields.pop("size"))
    for name in ("mean", "std"):
        if name in fields:
            fields[name] = _row(fields[name])
    return PictureOptions(**fields)


def _row(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, list) else (float(value),)


def _pair(value: Any) -> tuple[int, int]:
    """Read `224`, `[height, width]` or `{"height": …, "width": …}`."""
    if isinstance(value, dict):
        return int(value["height"]), int(value["width"])
    height, width = value if isinstance(value, list) else (value, value)
    return int(height), int(width)


def _normalized(mean: Any, std: Any, offset: float = 0.0) -> dict[str, tuple[float, ...]]:
    return {"mean": tuple(m + offset for m in _row(mean)), "std": _row(std)}


def _of_transformers(found: Mapping[str, Any]) -> PictureOptions:
    fields: dict[str, Any] = {}
    size, crops = found.get("size"), found.get("do_center_crop", False)
    if found.get("do_rescale", True):
        factor = float(found.get("rescale_factor", 1.0 / 255.0))
        # Written in decimals: 0.00392156862745098 is 1 ÷ 255.
        fields["factor"] = (
            1.0 / 255.0 if math.isclose(factor, 1.0 / 255.0, rel_tol=1e-6) else factor
        )
    else:
        fields["factor"] = 1.0
    offset = 1.0 if found.get("rescale_offset") else 0.0
    if found.get("do_normalize", True) and "image_mean" in found:
        fields |= _normalized(found["image_mean"], found["image_std"], offset)
    elif offset:
        fields["mean"] = (offset,)
    if "resample" in found:
        fields["filter"] = FILTERS[int(found["resample"])]
    if found.get("do_flip_channel_order"):
        fields["channels"] = "bgr"
    fields |= _transformers_size(found, size, crops) if found.get("do_resize", True) else {}
    if crops and not found.get("do_resize", True):
        fields |= {"fit": "crop", "edge": 0}
    if crops and found.get("crop_size") is not None:
        fields["resize"] = _pair(found["crop_size"])
    return PictureOptions(**fields)


def _transformers_size(found: Mapping[str, Any], size: Any, crops: bool) -> dict[str, Any]:
    edge = size.get("shortest_edge") if isinstance(size, dict) else size if crops else None
    if edge is None:
        return {} if size is None else {"resize": _pair(size)}
    part = found.get("crop_pct")
    if part is not None and edge < _CROPPED_BELOW:
        # ConvNeXt: the size is what is left of a picture that was brought to size ÷ part.
        return {"fit": "crop", "edge": int(edge / part), "resize": (edge, edge)}
    if part is not None:
        return {"resize": (edge, edge)}
    if not crops:
        raise OptionError(
            "the file brings pictures to a shorter side alone, which leaves their size open",
            hint="write a file with `size` and `fit`",
        )
    return {"fit": "crop", "edge": int(edge)}


# Source: transformers, ConvNextImageProcessor: at 384 and above pictures are stretched.
_CROPPED_BELOW = 384


def _of_timm(found: Mapping[str, Any]) -> PictureOptions:
    _, height, width = found["input_size"]
    fields: dict[str, Any] = {"resize": (int(height), int(width))}
    if "mean" in found:
        fields |= _normalized(found["mean"], found["std"])
    if found.get("interpolation") in FILTERS:
        fields["filter"] = found["interpolation"]
    mode, part = found.get("crop_mode") or "center", float(found.get("crop_pct") or 0.875)
    if mode == "center":
        fields |= {"fit": "crop", "edge": math.floor(min(height, width) / part)}
    elif mode != "squash" or part != 1.0:
        raise OptionError(
            f"pictures are not cropped by the mode `{mode}` here",
            hint="write a file with `size` and `fit`",
        )
    return PictureOptions(**fields)


def with_given(options: PictureOptions, **given: Any) -> PictureOptions:
    """Return `options` with what else was given; None stands for nothing."""
    return dataclasses.replace(options, **{n: v for n, v in given.items() if v is not None})
