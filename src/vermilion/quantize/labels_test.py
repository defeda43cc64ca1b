"""Labels from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vermilion.errors import OptionError
from vermilion.quantize.labels import as_labels, read_labels

TABLES: dict[str, tuple[str, list[Any]]] = {
    "one column": ("3\n1\n", [3, 1]),
    "a head": ("label\n3\n1\n", [3, 1]),
    "text": ('text\n"hello, you"\nworld\n', ["hello, you", "world"]),
    "parts": ("0.5\n1\n", [0.5, 1.0]),
    "files": ("file,class\nb.png,1\na.png,3\n", [3, 1]),
    "files without a head": ("b.png,1\na.png,3\n", [3, 1]),
    "boxes": (
        "image,class,x1,y1,x2,y2\na,1,0,0,2,2\nb,0,1,1,3,3\na,2,4,4,5,5\n",
        [[(1, 0, 0, 2, 2), (2, 4, 4, 5, 5)], [(0, 1, 1, 3, 3)]],
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables(case: str, tmp_path: Path) -> None:
    text, expected = TABLES[case]
    (tmp_path / "l.csv").write_text(text)
    labels = read_labels(tmp_path / "l.csv")
    files = [Path("x/a.png"), Path("x/b.png")]
    assert [labels.of(n, file) for n, file in enumerate(files)] == expected


def test_arrays_lines_and_folders(tmp_path: Path) -> None:
    np.save(tmp_path / "l.npy", np.asarray([4, 5]))
    np.savez(tmp_path / "one.npz", anything=np.asarray([4, 5]))
    np.savez(tmp_path / "many.npz", labels=np.asarray([4, 5]), more=np.zeros(7))
    for name in ("l.npy", "one.npz", "many.npz"):
        assert read_labels(tmp_path / name).of(1, None) == 5
    np.savez(tmp_path / "outputs.npz", a=np.asarray([1, 2]), b=np.asarray([3, 4]))
    assert read_labels(tmp_path / "outputs.npz").of(1, None) == {"a": 2, "b": 4}
    (tmp_path / "l.txt").write_text("one\ntwo\n")
    assert read_labels(tmp_path / "l.txt").of(0, None) == "one"
    for kind in ("cat", "dog"):
        (tmp_path / "kinds" / kind).mkdir(parents=True)
        (tmp_path / "kinds" / kind / "1.png").touch()
    labels = read_labels(tmp_path / "kinds")
    assert labels.of(0, tmp_path / "kinds" / "dog" / "1.png") == 1


def test_labels_that_are_missing(tmp_path: Path) -> None:
    labels = as_labels([1, 2])
    assert labels is not None
    with pytest.raises(OptionError, match="there are 2 labels"):
        labels.of(2, None)
    (tmp_path / "l.csv").write_text("file,label\na.png,1\n")
    with pytest.raises(OptionError, match=r"no label for `b\.png`"):
        read_labels(tmp_path / "l.csv").of(0, Path("b.png"))
    with pytest.raises(OptionError, match="come from no file"):
        read_labels(tmp_path / "l.csv").of(0, None)
    for name, words in {"no.csv": "no labels", "l.doc": "not a kind", "e.csv": "no labels"}.items():
        if name != "no.csv":
            (tmp_path / name).touch()
        with pytest.raises(OptionError, match=words):
            read_labels(tmp_path / name)
    (tmp_path / "w.csv").write_text("a,1\nb\n")
    with pytest.raises(OptionError, match="line 2"):
        read_labels(tmp_path / "w.csv")
