"""Speeds count steps that are one thing: prompts being read, or one answer being written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.random_model import RandomModel, write_gguf
from tidemill.cli.main import run
from tidemill.core.sampling import SamplingOptions
from tidemill.core.settings import engine_config
from tidemill.core.tokens import TokenRequest
from tidemill.engine.factory import build_loop
from tidemill.engine.speed import Speed, SpeedMeter


def test_steps_are_counted_by_what_they_are() -> None:
    meter = SpeedMeter()
    meter.step([512], 2.0)
    meter.step([256, 256], 2.0)
    for _ in range(20):
        meter.step([1], 0.1)
    meter.step([1, 1], 50.0)  # two streams
    meter.step([1, 500], 50.0)  # mixed
    meter.step([8], 50.0)  # too short to say anything of prompts
    speed = meter.speed()
    assert speed.prefill == pytest.approx(256.0)
    assert speed.decode == pytest.approx(10.0)


def test_too_few_tokens_are_no_speed() -> None:
    meter = SpeedMeter()
    meter.step([100], 1.0)
    for _ in range(15):
        meter.step([1], 0.1)
    assert meter.speed() == Speed(prefill=None, decode=None)


def test_info_shows_what_a_run_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "m.gguf"
    write_gguf(path, RandomModel.of_bytes("q4_0", 10_000_000))

    def info() -> list[dict[str, object]]:
        assert run(["models", "info", str(path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["measured"]
        assert isinstance(found, list)
        return found

    assert info() == []
    assert run(["models", "info", str(path)]) == 0
    assert "measured on this machine: nothing yet" in capsys.readouterr().out
    for from_cache in (False, True):
        loop = build_loop(engine_config(str(path), {"threads": 1}))
        sampling = SamplingOptions(temperature=0.0, max_tokens=20, ignore_eos=True)
        loop.add(TokenRequest(request_id="r", prompt=[5] * 200, sampling=sampling))
        while loop.has_work:
            loop.step()
        loop.close()
        (found,) = info()
        assert found["from_cache"] is from_cache
        assert found["executor"] == loop.info.executor
        for name in ("load_seconds", "prefill", "decode"):
            value = found[name]
            assert isinstance(value, float)
            assert value > 0
    assert run(["models", "info", str(path)]) == 0
    out = capsys.readouterr().out
    assert "weights from the packed cache" in out
    assert f"{found['decode']:.1f} tokens/s" in out


def test_without_the_packed_cache_nothing_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, RandomModel.of_bytes("q4_0", 10_000_000))
    cache = tmp_path / "cache"
    build_loop(engine_config(str(path), {"threads": 1, "packed_cache": "off", "cache_dir": str(cache)})).close()
    assert not cache.exists()
