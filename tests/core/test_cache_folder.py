"""Files of a cache are written whole, and large ones in stretches that file systems keep as huge pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.core.cache_folder import CacheFolder

HUGE_PAGE = 2 << 20


def test_a_large_file_is_written_a_huge_page_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    plain = os.pwrite

    def spy(fd: int, data: bytes, offset: int) -> int:
        calls.append((offset, len(data)))
        return plain(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", spy)
    pieces = [
        (0, b"head"),
        (64, os.urandom(1000)),
        (4096, os.urandom(HUGE_PAGE - 4096)),
        (HUGE_PAGE, os.urandom(2 * HUGE_PAGE + 5)),
        (3 * HUGE_PAGE + 64, b"tail"),
    ]
    with CacheFolder.opened(tmp_path / "base", "packed") as folder:
        with folder.part("file") as part:
            part.write_stretches((offset, memoryview(data)) for offset, data in pieces)
            part.keep()
        content = bytearray(3 * HUGE_PAGE + 68)
        for offset, data in pieces:
            content[offset : offset + len(data)] = data
        assert folder.read("file", 8 * HUGE_PAGE) == bytes(content)
    assert calls == [(at * HUGE_PAGE, HUGE_PAGE) for at in range(3)] + [(3 * HUGE_PAGE, 68)]
