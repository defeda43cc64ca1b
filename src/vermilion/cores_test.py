from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vermilion.cores import allowed_cores, are_limited, at_most, cpu_quota, usable_cores

SECOND = "31 23 0:28 / {place} rw,relatime - cgroup2 cgroup rw\n"
FIRST = "32 31 0:29 {root} {place} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


def process(folder: Path, groups: str, mounts: str) -> Path:
    """Write what `/proc/self` says of a process."""
    (folder / "cgroup").write_text(groups)
    (folder / "mountinfo").write_text(mounts)
    return folder


def second_tree(folder: Path, quotas: dict[str, str]) -> Path:
    """Write a tree of version 2 with the quotas of its groups."""
    for group, quota in quotas.items():
        (folder / "tree" / group).mkdir(parents=True, exist_ok=True)
        (folder / "tree" / group / "cpu.max").write_text(quota + "\n")
    return process(folder, "0::/pods/one\n", SECOND.format(place=folder / "tree"))


@pytest.mark.parametrize(
    ("own", "above", "quota"),
    [
        ("max 100000", "max 100000", None),
        ("50000 100000", "max 100000", 0.5),
        ("max 100000", "150000 100000", 1.5),
        ("400000 100000", "25000 50000", 0.5),  # what holds above holds below
        ("nonsense", "100000 100000", 1.0),
    ],
)
def test_the_least_quota_up_the_tree_counts(
    tmp_path: Path, own: str, above: str, quota: float | None
) -> None:
    assert cpu_quota(second_tree(tmp_path, {"pods": above, "pods/one": own})) == quota


@pytest.mark.parametrize(
    ("root", "group", "quota"),
    [
        ("/", "/docker/7", 0.25),
        ("/docker/7", "/docker/7", 2.0),  # a container sees its own group as the root
        ("/docker/7", "/elsewhere", 2.0),
    ],
)
def test_quotas_of_the_first_version(tmp_path: Path, root: str, group: str, quota: float) -> None:
    tree = tmp_path / "tree"
    for folder, own in ((tree, 200_000), (tree / "docker" / "7", 25_000)):
        folder.mkdir(parents=True)
        (folder / "cpu.cfs_quota_us").write_text(f"{own}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    (tree / "docker" / "cpu.cfs_quota_us").write_text("-1\n")
    (tree / "docker" / "cpu.cfs_period_us").write_text("100000\n")
    mounts = "33 31 0:31 / /other rw - cgroup cgroup rw,cpuset\n"
    mounts += FIRST.format(root=root, place=tree)
    found = cpu_quota(process(tmp_path, f"3:cpuset:/\n4:cpu,cpuacct:{group}\n", mounts))
    assert found == quota


def test_no_such_files_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "nothing") is None
    assert cpu_quota(process(tmp_path, "", "")) is None
    assert cpu_quota(process(tmp_path, "0::/\n", "a line without fields\n")) is None


def test_a_limit_holds_inside_its_block() -> None:
    before = usable_cores()
    with at_most(1):
        assert usable_cores() == 1
        assert are_limited() == ((os.cpu_count() or 1) > 1)
        with at_most(0):
            assert usable_cores() == before
    with at_most(1000):
        assert usable_cores() == before


def test_a_process_bound_to_one_core_has_one() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system binds no process to a core")
    assert 1 <= usable_cores() <= len(allowed_cores())
    core = allowed_cores()[-1]
    assert said_in(f"import os; os.sched_setaffinity(0, {{{core}}})") == "1"


@pytest.fixture
def half_a_core() -> Iterator[Path]:
    """Return a cgroup of version 1 with a quota of half a core."""
    tree = Path("/sys/fs/cgroup/cpu")
    group = tree / f"vermilion-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("20000")
        (group / "cpu.cfs_quota_us").write_text("10000")
    except OSError:
        pytest.skip("this system lets us make no cgroup with a quota")
    yield group
    group.rmdir()


def test_a_process_in_a_group_of_half_a_core_has_one(half_a_core: Path) -> None:
    join = f"open({str(half_a_core / 'cgroup.procs')!r}, 'w').write('0')"
    assert said_in(join) == "1"


def said_in(setting: str) -> str:
    """Return how many cores a process says it has, once it has carried out a line."""
    program = f"{setting}; from vermilion.cores import usable_cores; print(usable_cores())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.strip()
