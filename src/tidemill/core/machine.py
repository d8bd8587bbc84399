"""What this process may use of the machine: processors, memory, and what the processor can do.

A container sees the whole host in ``/proc/cpuinfo`` and ``/proc/meminfo``; what it may use stands in its control
groups. Both are read, versions 1 and 2, at every level from the process's own group up to the root, and the smallest
answer counts. Every reader takes the root of the file tree, so that tests hand in trees of their own.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "available_memory", "read_machine", "resident_memory", "usable_cpus"]

_ROOT = Path("/")
_NO_LIMIT = 2**60
"""Control groups of version 1 write "no limit" as a number near 2**63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One reading of the machine, from the inside of this process's limits."""

    cpus: int
    """Threads worth starting: the smaller of affinity and quota, at least 1."""
    affinity: int
    """Processors the process may be scheduled on."""
    cpu_quota: float | None
    """Processors' worth of time the control groups allow; None: as many as there are."""
    memory_total: int
    """Bytes of memory of the host, or the control groups' limit if that is smaller."""
    memory_available: int
    """Bytes that can be taken now without swapping or being killed."""
    memory_limit: int | None
    """Bytes the control groups allow; None: no limit."""
    cpu_model: str
    architecture: str
    """As in ``uname -m``: x86_64, aarch64, arm64."""
    features: frozenset[str]
    """The processor's instruction sets by the kernel's names: avx2, fma, f16c, asimd, ..."""


def read_machine(root: Path = _ROOT, *, affinity: int | None = None) -> Machine:
    """Read everything at once. ``affinity`` replaces the number of processors the scheduler allows."""
    allowed = _affinity() if affinity is None else affinity
    info = _meminfo(root)
    limit = _memory_limit(root)
    total = info.get("MemTotal", _physical_memory())
    model, features = _cpuinfo(root)
    return Machine(
        cpus=usable_cpus(root, affinity=allowed),
        affinity=allowed,
        cpu_quota=_cpu_quota(root),
        memory_total=total if limit is None else min(total, limit),
        memory_available=available_memory(root),
        memory_limit=limit,
        cpu_model=model or platform.processor() or "unknown",
        architecture=platform.machine(),
        features=features,
    )


def usable_cpus(root: Path = _ROOT, *, affinity: int | None = None) -> int:
    """How many threads are worth starting: affinity, cut to the control groups' quota (nearest whole number, halves
    up: with 1.5 processors two threads still finish before one would). At least 1."""
    allowed = _affinity() if affinity is None else affinity
    quota = _cpu_quota(root)
    return max(1, allowed if quota is None else min(allowed, int(quota + 0.5)))


def available_memory(root: Path = _ROOT) -> int:
    """Bytes that can be taken now: the kernel's MemAvailable, cut to what each control group leaves.

    Page cache that a group can drop (``inactive_file``) counts as free, as MemAvailable counts it for the host:
    a model file that was just copied would otherwise look like memory in use.
    """
    room = [_meminfo(root).get("MemAvailable", _physical_memory())]
    for folder in _group_folders(root, "memory"):
        limit = _group_limit(folder)
        used = _bytes(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            room.append(limit - max(0, used - _droppable(folder)))
    return max(0, min(room))


def resident_memory(root: Path = _ROOT) -> int:
    """Bytes that this process has in memory, mapped files and shared pages included; 0 where /proc does not say."""
    words = _read(root / "proc/self/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 and words[1].isdigit() else 0


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS has no affinity


def _physical_memory() -> int:
    """Without /proc (macOS): all of the memory, the best the standard library can tell."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_quota(root: Path) -> float | None:
    quotas = [quota for folder in _group_folders(root, "cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    """Quota over period: ``cpu.max`` holds both (version 2), two files in version 1, where -1 is no limit."""
    words = _read(folder / "cpu.max").split()
    if not words:
        words = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit() or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _memory_limit(root: Path) -> int | None:
    folders = _group_folders(root, "memory")
    return min((limit for folder in folders if (limit := _group_limit(folder)) is not None), default=None)


def _group_limit(folder: Path) -> int | None:
    """The least of what a group may use: its limit, the mark above which the kernel slows it down (``memory.high``),
    and in version 1 the limits of parents that a container does not see."""
    limits = [
        _bytes(folder / "memory.max", folder / "memory.limit_in_bytes"),
        _bytes(folder / "memory.high"),
        dict(_pairs(_read(folder / "memory.stat"))).get("hierarchical_memory_limit"),
    ]
    return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT), default=None)


def _droppable(folder: Path) -> int:
    """Bytes of page cache the group gives back under pressure; version 1 names the group's total separately."""
    values = dict(_pairs(_read(folder / "memory.stat")))
    return values.get("total_inactive_file", values.get("inactive_file", 0))


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups for a controller: its own, then each parent, in each hierarchy.

    A line of /proc/self/cgroup is ``number:controllers:path``; no controllers means version 2. The path counts from the
    hierarchy's root, of which a container may have only a part mounted: what lies above cannot be seen.
    """
    mounts = _mounts(root)
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            for mount in mounts:
                if (controller in mount.controllers) if controllers else not mount.controllers:
                    yield from _upwards(mount.folder_of(path), mount.folder)
                    break


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy of control groups."""

    controllers: frozenset[str]
    """Empty: version 2. Otherwise among other mount options."""
    top: str
    """The group that is mounted, as a path from the hierarchy's root."""
    folder: Path

    def folder_of(self, group: str) -> Path:
        """The folder of a group, or the mount's own where the group cannot be seen in it: a path with ``..`` or one of
        the host's."""
        inside = "/" + group.removeprefix(self.top).lstrip("/") if _within(group, self.top) else group
        own = self.folder / inside.lstrip("/")
        return own if ".." not in own.parts and own.is_dir() else self.folder


def _within(group: str, top: str) -> bool:
    return group == top or group.startswith(top.rstrip("/") + "/")


def _mounts(root: Path) -> list[_Mount]:
    """Hierarchies in /proc/self/mountinfo, whose lines are ``id parent device top folder options... - type source
    options``; without that file, those in the usual places."""
    found = []
    for line in _read(root / "proc/self/mountinfo").splitlines():
        words, _, rest = line.partition(" - ")
        _, _, _, top, folder, *_ = [*words.split(), "", "", "", "", ""]
        type_, _, options = [*rest.split(), "", "", ""][:3]
        if type_ in {"cgroup", "cgroup2"}:
            controllers = frozenset(options.split(",") if type_ == "cgroup" else ())
            found.append(_Mount(controllers, _unescape(top), root / _unescape(folder).lstrip("/")))
    return found or list(_usual_mounts(root / "sys/fs/cgroup"))


def _usual_mounts(folder: Path) -> Iterator[_Mount]:
    for child in sorted(folder.iterdir()) if folder.is_dir() else ():
        if child.is_dir():
            yield _Mount(frozenset(child.name.split(",")), "/", child)
    yield _Mount(frozenset(), "/", folder)


def _unescape(path: str) -> str:
    """Space, tab, newline and backslash are octal in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _upwards(folder: Path, top: Path) -> Iterator[Path]:
    while folder != top:
        yield folder
        folder = folder.parent
    yield top


def _bytes(*files: Path) -> int | None:
    """The number in the first file that exists; None for "max", for no file and for a number that means no limit."""
    for file in files:
        text = _read(file).strip()
        if text:
            return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None
    return None


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    lines = _read(root / "proc/meminfo").replace(":", "").replace(" kB", "")
    return {name: kib * 1024 for name, kib in _pairs(lines)}


def _cpuinfo(root: Path) -> tuple[str, frozenset[str]]:
    """Model name and features of the first processor; x86 says "flags", ARM says "Features"."""
    model, features = "", ""
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model"} and not model:
            model = value.strip()
        if key.strip() in {"flags", "Features"} and not features:
            features = value
    return model, frozenset(features.split())


def _pairs(text: str) -> Iterator[tuple[str, int]]:
    """Lines of a name and a number."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            yield words[0], int(words[1])


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
