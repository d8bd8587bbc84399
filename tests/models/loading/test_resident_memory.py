"""How much memory loading takes at its peak: the packed weights and little else, in every format and on every way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.random_model import RandomModel, write_folder, write_gguf

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SIZE = 180_000_000
BESIDE = 18 * 2**20
"""What the plan leaves to its reserve: threads, tables of angles, the file's header, and for each packing thread the
pages it reads from and writes to, which a kernel with large folios maps megabytes at a time."""
ALLOWED = 1.15
"""Peak growth of resident memory, as a share of the packed weights."""

_LOAD = """
import json, re, sys
from pathlib import Path
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig
from tidemill.executors.native.executor import NativeExecutor
from tidemill.graph.passes.fuse import fuse
from tidemill.models.loading import load_model
from tidemill.models.memory_plan import plan_memory

def status(name):
    return 1024 * int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

path, cache, mode = sys.argv[1:]
config = ExecutorConfig(threads=2, cache_dir=cache, packed_cache=mode)
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before = status("VmRSS")
model = load_model(ModelConfig(path=path))
executor = NativeExecutor(fuse(model.graph), model.weights, config)
peak = status("VmHWM")
plan = plan_memory(model, EngineConfig(model=ModelConfig(path=path), executor=config), 2**36)
print(json.dumps({"growth": peak - before, "packed": executor.packed_bytes, "planned": plan.packed,
                  "cached": executor.cached_bytes}))
executor.close()
"""


def measured(path: Path, cache: Path, mode: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(path), str(cache), mode], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module", params=["q4_0", "q4_k", "q4_k head", "f16", "f16 head", "bf16 sharded"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, _, more = request.param.partition(" ")
    sizes = RandomModel.of_bytes(name, SIZE, head=more == "head")
    folder = tmp_path_factory.mktemp("model")
    if more == "sharded":
        write_folder(folder / "m", sizes, 3)
        return folder / "m"
    write_gguf(folder / "m.gguf", sizes)
    return folder / "m.gguf"


def test_peak_stays_near_the_packed_weights_and_within_the_plan(model: Path, tmp_path: Path) -> None:
    for mode, cached in (("off", False), ("on", False), ("on", True)):
        found = measured(model, tmp_path / "cache", mode)
        assert (found["cached"] > 0) == cached
        assert found["growth"] <= ALLOWED * found["packed"], (mode, cached, found)
        assert found["planned"] <= found["growth"] <= found["planned"] + BESIDE, (mode, cached, found)
