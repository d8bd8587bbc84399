"""What a step costs outside the executor: one line of JSON.

python measure_host.py MODEL
"""

from __future__ import annotations

import json
import sys

from tidemill.bench.host import measure_host
from tidemill.core.config import EngineConfig, ModelConfig


def main() -> None:
    """Measure at one stream and at sixteen, three times each, and print medians of these."""
    config = EngineConfig(model=ModelConfig(path=sys.argv[1]))
    times = measure_host(config, [1, 16] * 3, most=8192)
    found = {}
    for streams in (1, 16):
        middle = sorted((one for one in times if one.streams == streams), key=lambda one: one.share)[1]
        parts = {part: round(1e3 * seconds, 4) for part, seconds in middle.parts.items()}
        found[str(streams)] = {"ms": 1e3 * middle.host, "share": middle.share, "parts_ms": parts}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
