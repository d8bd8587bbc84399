"""The most memory that 16 decoding streams take, from the imports on: one line of JSON, in bytes.

    python measure_memory.py MODEL on|off

``on``: weights from the packed cache if it has them; ``off``: packed anew.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tidemill.bench.rig import Rig
from tidemill.bench.work import decode_work
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig
from tidemill.executors.native.executor import NativeExecutor


def main() -> None:
    """Load, fill the KV, decode some steps."""
    work = decode_work(16, 256)
    config = EngineConfig(model=ModelConfig(path=sys.argv[1]), executor=ExecutorConfig(packed_cache=sys.argv[2]))
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _status("VmRSS")
    rig = Rig(config, [work], later=64)
    for number in range(4):
        rig.step(work, number)
    peak = _status("VmHWM")
    assert isinstance(rig.executor, NativeExecutor)
    kv = sum(len(rig.executor.read_blocks(group.name, [0])) for group in rig.graph.kv_groups)
    kv *= work.blocks(config.block_size, 64)
    print(json.dumps({"growth": peak - before, "weights": rig.executor.packed_bytes, "kv": kv, "process": peak}))


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


if __name__ == "__main__":
    main()
