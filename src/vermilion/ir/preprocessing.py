"""How a model wants its pictures, from a file: our own form, transformers' or timm's.

ours          a JSON object with `size` and the other fields of `PictureOptions`
transformers  `preprocessor_config.json`, of a processor of images
timm          `config.json` with `pretrained_cfg`, or that object alone

A folder stands for the file of these names in it. What a file says that cannot be done is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vermilion.errors import OptionError
from vermilion.files import read_object, shown
from vermilion.ir.pictures import (
    FILTERS,
    FITS,
    LAYOUTS,
    NUMBERS,
    ORDERS,
    PictureOptions,
    check_numbers,
)

_NAMES = ("preprocess.json", "preprocessor_config.json", "config.json")
_OWN = (*("size", "fit", "edge", "fill", "filter", "channels", "factor", "mean", "std", "layout"),)
_TRANSFORMERS = frozenset(
    {"image_mean", "do_normalize", "do_resize", "do_rescale", "image_processor_type", "crop_size"}
)
_TIMM = frozenset({"crop_pct", "interpolation", "input_size"})
_ANOTHER = "write a file with `size` and `fit`"


def read_preprocessing(place: Path) -> PictureOptions:
    """Return what the file says.

    Raises: OptionError where there is none, or it says what is not known or cannot be done.
    """
    file = _file_at(place)
    found = read_object(file, OptionError, hint="write an object, as in docs/quantize.md")
    try:
        return _read(found)
    except OptionError as error:
        raise OptionError(error.message, where=error.where or str(file), hint=error.hint) from error


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
            known = ", ".join(f"`{n}`" for n in near)
            raise OptionError(f"pictures have no `{name[:40]}`", hint=f"known: {known}")
    words = {"fit": FITS, "filter": FILTERS, "channels": ORDERS, "layout": LAYOUTS}
    fields: dict[str, Any] = {}
    for name in found:
        if name == "size":
            fields["resize"] = _size(found, name)
        elif name in words:
            fields[name] = _word(found, name, words[name])
        elif name in ("mean", "std"):
            fields[name] = _row(found, name, name)
        else:
            fields[name] = _number(found, name, name)
    return PictureOptions(**fields)


def _error(found: Mapping[str, Any], key: str, takes: str) -> OptionError:
    if key not in found:
        return OptionError(f"the file has no `{key}`", hint=f"add it: {takes}")
    return OptionError(f"`{key}` is {shown(found[key])}", hint=f"it takes {takes}")


def _word(found: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    value = found.get(key)
    if not isinstance(value, str) or value not in known:
        raise _error(found, key, ", ".join(f"`{word}`" for word in known))
    return value


def _flag(found: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return whether something is done; null stands for nothing said."""
    value = default if found.get(key) is None else found[key]
    if not isinstance(value, bool):
        raise _error(found, key, "true or false")
    return value


def _number(found: Mapping[str, Any], key: str, field: str) -> Any:
    if not NUMBERS[field].hold(found.get(key)):
        raise _error(found, key, str(NUMBERS[field]))
    return found[key]


def _row(found: Mapping[str, Any], key: str, field: str) -> tuple[float, ...]:
    """Read one number for all channels, or one for each."""
    value = found.get(key)
    values = value if isinstance(value, list) else [value]
    if value is None or len(values) not in (1, 3):
        raise _error(found, key, "1 number or 3")
    check_numbers(field, values, key)
    return tuple(map(float, values))


def _size(found: Mapping[str, Any], key: str) -> tuple[int, int]:
    """Read `224`, `[height, width]` or `{"height": …, "width": …}`."""
    value = found.get(key)
    if isinstance(value, dict) and value.keys() == {"height", "width"}:
        value = [value["height"], value["width"]]
    pair: list[Any] = value if isinstance(value, list) else [value, value]
    if value is None or isinstance(value, dict) or len(pair) != 2:
        raise _error(found, key, 'a number, [height, width] or {"height": …, "width": …}')
    check_numbers("resize", pair, key)
    return pair[0], pair[1]


# Of transformers: for labels and annotations, and what is always done.
_NOT_OF_PIXELS = frozenset({"do_convert_rgb", "do_reduce_labels", "do_convert_annotations"})
_DONE = frozenset(
    {
        *("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_flip_channel_order"),
        *_NOT_OF_PIXELS,
    }
)


def _of_transformers(found: Mapping[str, Any]) -> PictureOptions:
    for key in found:
        if key.startswith("do_") and key not in _DONE and _flag(found, key, False):
            raise OptionError(f"`{key}` is not done here", hint=_ANOTHER)
    fields = _transformers_numbers(found)
    crops = _flag(found, "do_center_crop", False)
    if _flag(found, "do_flip_channel_order", False):
        fields["channels"] = "bgr"
    if _flag(found, "do_resize", "size" in found):
        fields["filter"] = _filter(found)
        fields |= _transformers_size(found, crops)
    elif crops:
        fields |= {"fit": "crop", "edge": 0}
    if crops and found.get("crop_size") is not None:
        size = _size(found, "crop_size")
        if fields["fit"] == "stretch" and fields["resize"] != size:
            raise OptionError(
                "the file stretches pictures to `size` and cuts `crop_size` out of them, which is "
                "not done here",
                hint=_ANOTHER,
            )
        fields["resize"] = size
    return PictureOptions(**fields)


def _transformers_numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"factor": 1.0}
    if _flag(found, "do_rescale", True):
        factor = 1.0 / 255.0
        if found.get("rescale_factor") is not None:
            factor = _number(found, "rescale_factor", "factor")
        # Written in decimals: 0.00392156862745098 is 1 ÷ 255.
        is_usual = math.isclose(factor, 1.0 / 255.0, rel_tol=1e-6)
        fields["factor"] = 1.0 / 255.0 if is_usual else float(factor)
    offset = 1.0 if _flag(found, "rescale_offset", False) else 0.0
    if _flag(found, "do_normalize", not found.keys().isdisjoint({"image_mean", "image_std"})):
        # What a file leaves out of a step, each class of processors fills in otherwise. A step that
        # it does not speak of is none of its class: MobileViT's does not normalize.
        mean, std = _row(found, "image_mean", "mean"), _row(found, "image_std", "std")
        return {**fields, "mean": tuple(m + offset for m in mean), "std": std}
    return {**fields, "mean": (offset,)}


def _filter(found: Mapping[str, Any]) -> str:
    """Return the filter that `resample` numbers as Pillow does, or names."""
    value = found.get("resample")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(FILTERS):
        return FILTERS[value]
    if isinstance(value, str) and value in FILTERS:
        return value
    raise _error(found, "resample", ", ".join(f"{n} ({name})" for n, name in enumerate(FILTERS)))


def _transformers_size(found: Mapping[str, Any], crops: bool) -> dict[str, Any]:
    kind = found.get("image_processor_type") or found.get("feature_extractor_type")
    if found.get("crop_pct") is None and str(kind).startswith("ConvNext"):
        found = {**found, "crop_pct": 224 / 256}  # what that class takes null for
    size, part = found.get("size"), found.get("crop_pct")
    edge = size if (crops or part is not None) and not isinstance(size, list) else None
    if isinstance(size, dict):
        edge = size["shortest_edge"] if size.keys() == {"shortest_edge"} else None
    if edge is None and part is not None:
        raise _error(found, "size", 'with `crop_pct` a number or {"shortest_edge": …}')
    if edge is None:
        return {"fit": "stretch", "resize": _size(found, "size")}
    check_numbers("resize", [edge], "size")
    if part is not None:
        part = _part(found)
        if crops or edge < _CROPPED_BELOW:
            # ConvNeXt: the size is what is left of a picture that was brought to size ÷ part.
            return {"fit": "crop", "edge": int(edge / part), "resize": (edge, edge)}
        return {"fit": "stretch", "resize": (edge, edge)}
    if not crops:
        raise OptionError(
            "the file brings pictures to a shorter side alone, which leaves their size open",
            hint=_ANOTHER,
        )
    return {"fit": "crop", "edge": edge}


# Source: transformers, ConvNextImageProcessor: at 384 and above pictures are stretched.
_CROPPED_BELOW = 384

# Less would bring a picture to ten times the size that is cut out of it.
_LEAST_PART = 0.1


def _part(found: Mapping[str, Any]) -> float:
    """Return `crop_pct`: which part of a picture's side is left."""
    value = found["crop_pct"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not _LEAST_PART <= value <= 1.0:
        raise _error(found, "crop_pct", f"numbers from {_LEAST_PART} to 1")
    return float(value)


# Source: timm, `resolve_data_config`: what a configuration leaves out.
_TIMM_DEFAULTS = {
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
}


def _of_timm(given: Mapping[str, Any]) -> PictureOptions:
    said = {name: value for name, value in given.items() if value is not None}
    found = {**_TIMM_DEFAULTS, **said}
    sizes = found.get("input_size")
    if not isinstance(sizes, list) or len(sizes) != 3:
        raise _error(found, "input_size", "[channels, height, width]")
    check_numbers("resize", sizes, "input_size")
    _, height, width = sizes
    fields: dict[str, Any] = {
        "resize": (height, width),
        "mean": _row(found, "mean", "mean"),
        "std": _row(found, "std", "std"),
        "filter": _word(found, "interpolation", FILTERS),
    }
    mode = _word(found, "crop_mode", ("center", "squash", "border"))
    part = _part(found)
    if mode == "center" and height == width:
        fields |= {"fit": "crop", "edge": math.floor(height / part)}
    elif mode != "squash" or part != 1.0:
        sides = "" if height == width else f" to {height} × {width}"
        raise OptionError(
            f"pictures are not cropped{sides} by the mode `{mode}` here", hint=_ANOTHER
        )
    return PictureOptions(**fields)


def with_given(options: PictureOptions, **given: Any) -> PictureOptions:
    """Return `options` with what else was given; None stands for nothing."""
    return dataclasses.replace(options, **{n: v for n, v in given.items() if v is not None})
