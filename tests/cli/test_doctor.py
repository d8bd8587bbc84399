"""What doctor finds here, and what it suggests for machines made up by the test."""

from __future__ import annotations

import json
import platform
from typing import Any

import pytest

from tidemill.cli.doctor import suggestions
from tidemill.cli.main import run

FINE = {
    "native_error": None,
    "isas": ["avx512", "avx2", "portable"],
    "isas_refused": {},
    "isa": "avx512",
    "processors_by_quota": None,
    "processors_by_affinity": 4,
    "memory_available": 8 * 2**30,
}


def test_a_machine_in_order_gets_no_suggestion() -> None:
    assert suggestions(FINE) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"native_error": "no such file"}, "native module does not load"),
        ({"isa": "foo"}, "TIDEMILL_ISA is foo, which cannot run here; there are: avx512, avx2, portable"),
        ({"isa": "portable"}, "TIDEMILL_ISA holds the kernels back to portable; unset it for avx512"),
        ({"isa": "avx2"}, "TIDEMILL_ISA holds the kernels back to avx2; unset it for avx512"),
        ({"isa": "portable", "isas": ["portable"]}, "only the portable kernels run here"),
        ({"isas_refused": {"amx": "no space"}}, "does not let this process use amx, which the processor has: no space"),
        ({"processors_by_quota": 1.5}, "quota allows 1.5 of 4 processors"),
        ({"memory_available": 2**29}, "less than 1 GiB"),
    ],
)
def test_each_trouble_has_its_suggestion(change: dict[str, Any], words: str) -> None:
    (line,) = suggestions(FINE | change)
    assert words in line


def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["architecture"] == platform.machine()
    assert found["threads"] >= 1
    assert found["memory_available"] > 0
    assert 0.1 < found["read_gb_per_second"] < 10_000
    assert 0.1 < found["multiply_add_gflops"] < 1_000_000
    assert found["native_module"] is (found["native_error"] is None)


def test_what_the_system_refuses_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    native = pytest.importorskip("tidemill.executors.native._native", exc_type=ImportError)
    monkeypatch.setattr(native, "refused_isas", lambda: {"amx": "no space"})
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["isas_refused", "amx:", "no", "space"] for line in lines)
    assert any(line.endswith("use amx, which the processor has: no space") for line in lines)


def test_doctor_as_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_ISA", "foo")
    pytest.importorskip("tidemill.executors.native._native", exc_type=ImportError)
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["isa", "foo"] for line in lines)
    assert lines[-1].startswith("suggestion: TIDEMILL_ISA is foo")
