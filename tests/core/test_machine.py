"""Processors and memory as a container sees them, read from file trees made here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.core.machine import available_memory, read_machine, resident_memory, usable_cpus

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files below root; the host has 16 GiB of which 8 are available, unless said otherwise."""
    defaults = {
        "proc/meminfo": "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n",
        "proc/self/cgroup": "0::/\n",
    }
    for name, text in (defaults | files).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_limits_the_host_counts(tmp_path: Path) -> None:
    root = tree(tmp_path, {"sys/fs/cgroup/cgroup.controllers": "cpu memory\n"})
    machine = read_machine(root, affinity=8)
    assert (machine.cpus, machine.cpu_quota) == (8, None)
    assert (machine.memory_total, machine.memory_available) == (16 * GIB, 8 * GIB)
    assert machine.memory_limit is None


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("140000 100000", 1), ("10000 100000", 1)],
)
def test_quota_of_version_2_is_rounded_to_threads(tmp_path: Path, quota: str, cpus: int) -> None:
    root = tree(tmp_path, {"sys/fs/cgroup/cpu.max": quota + "\n"})
    assert usable_cpus(root, affinity=8) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("-1", 8), ("400000", 4), ("50000", 1)])
def test_quota_of_version_1(tmp_path: Path, quota: str, cpus: int) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/\n3:cpu,cpuacct:/\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": quota + "\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert usable_cpus(root, affinity=8) == cpus


def test_affinity_below_the_quota_wins(tmp_path: Path) -> None:
    root = tree(tmp_path, {"sys/fs/cgroup/cpu.max": "800000 100000\n"})
    assert usable_cpus(root, affinity=3) == 3


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    """The pod allows 2 processors and 4 GiB, the container in it says nothing."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{1 * GIB}\n",
            "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/container/memory.max": "max\n",
            "sys/fs/cgroup/pod/container/memory.current": f"{1 * GIB}\n",
        },
    )
    machine = read_machine(root, affinity=8)
    assert machine.cpus == 2
    assert machine.memory_limit == machine.memory_total == 4 * GIB
    assert machine.memory_available == 3 * GIB


def test_page_cache_of_the_group_counts_as_free(tmp_path: Path) -> None:
    """3.5 of 4 GiB are used, 3 of them by a model file that was copied a moment ago."""
    root = tree(
        tmp_path,
        {
            "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{7 * GIB // 2}\n",
            "sys/fs/cgroup/memory.stat": f"anon {GIB // 2}\nfile {3 * GIB}\ninactive_file {3 * GIB}\n",
        },
    )
    assert available_memory(root) == 7 * GIB // 2


def test_memory_of_version_1_with_its_way_to_say_no_limit(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/box\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/box/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 4}\n",
    }
    assert available_memory(tree(tmp_path, files)) == 5 * GIB // 4


def test_no_limit_of_version_1_is_none(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "4096\n",
    }
    machine = read_machine(tree(tmp_path, files))
    assert (machine.memory_limit, machine.memory_available) == (None, 8 * GIB)


@pytest.mark.parametrize("path", ["/host/only/path", "/../../other"])
def test_a_path_that_exists_only_on_the_host_means_the_mount(tmp_path: Path, path: str) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": f"0::{path}\n",
            "sys/other/memory.max": "1\n",
            "sys/other/memory.current": "0\n",
            "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory.current": "0\n",
        },
    )
    assert available_memory(root) == 2 * GIB


def test_the_mark_where_the_kernel_slows_a_group_down_is_a_limit(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory.high": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{GIB}\n",
    }
    machine = read_machine(tree(tmp_path, files))
    assert (machine.memory_limit, machine.memory_available) == (3 * GIB, 2 * GIB)
    unlimited = read_machine(tree(tmp_path, files | {"sys/fs/cgroup/memory.high": "max\n"}))
    assert unlimited.memory_available == 3 * GIB


def test_limits_of_unseen_parents_of_version_1(tmp_path: Path) -> None:
    """A pod's limit stands in its container's memory.stat, though the pod's folder is not mounted."""
    files = {
        "proc/self/cgroup": "4:memory:/kubepods/pod1/container\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"hierarchical_memory_limit {2 * GIB}\n",
    }
    machine = read_machine(tree(tmp_path, files))
    assert (machine.memory_limit, machine.memory_available) == (2 * GIB, GIB)


MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:26 {top} /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:9 - cgroup cgroup rw,cpu,cpuacct
31 22 0:27 {top} /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
"""


def test_a_group_inside_a_container_of_version_1(tmp_path: Path) -> None:
    """The container's own group is mounted; the process is in a group below it, which allows less."""
    files = {
        "proc/self/mountinfo": MOUNTS.format(top="/docker/abc"),
        "proc/self/cgroup": "4:memory:/docker/abc/job\n3:cpu,cpuacct:/docker/abc/job\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "0\n",
    }
    machine = read_machine(tree(tmp_path, files), affinity=8)
    assert (machine.cpu_quota, machine.cpus) == (1.5, 2)
    assert (machine.memory_limit, machine.memory_available) == (GIB, GIB)
    files["proc/self/mountinfo"] = MOUNTS.format(top="/docker/ab")  # the beginning of a name is no parent
    assert read_machine(tree(tmp_path, files), affinity=8).cpus == 4


@pytest.mark.parametrize("top", ["/", "/machine"])
def test_version_2_mounted_elsewhere(tmp_path: Path, top: str) -> None:
    """Controllers of version 2 beside a hierarchy of version 1 that has none of them; a space in the folder's name."""
    files = {
        "proc/self/mountinfo": (
            "30 22 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
            f"31 22 0:27 {top} /my\\040groups rw - cgroup2 cgroup2 rw,nsdelegate\n"
        ),
        "proc/self/cgroup": f"1:name=systemd:/x\n0::{top.rstrip('/')}/box\n",
        "my groups/box/cpu.max": "300000 100000\n",
        "my groups/box/memory.max": f"{GIB}\n",
        "my groups/box/memory.current": "0\n",
    }
    machine = read_machine(tree(tmp_path, files), affinity=8)
    assert (machine.cpus, machine.memory_available) == (3, GIB)


def test_more_used_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    root = tree(tmp_path, {"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "2000\n"})
    assert available_memory(root) == 0


def test_processor_names_and_features(tmp_path: Path) -> None:
    x86 = tree(tmp_path / "x86", {"proc/cpuinfo": "model name\t: Some CPU\nflags\t\t: fpu avx2 fma\n\nflags\t: none\n"})
    arm = tree(tmp_path / "arm", {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd asimddp\n"})
    assert read_machine(x86).cpu_model == "Some CPU"
    assert read_machine(x86).features == {"fpu", "avx2", "fma"}
    assert read_machine(arm).features == {"fp", "asimd", "asimddp"}


def test_an_empty_tree_still_gives_an_answer(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, affinity=1)
    assert machine.cpus == 1
    assert machine.memory_available == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_resident_memory_is_counted_in_pages(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/statm": "9000 1234 500 1 0 300 0\n"})
    assert resident_memory(root) == 1234 * os.sysconf("SC_PAGE_SIZE")


def test_resident_memory_of_systems_that_do_not_say(tmp_path: Path) -> None:
    assert resident_memory(tmp_path) == 0
