"""Requests that schemathesis makes up from the OpenAPI document of a real server, of a chat model and of an embedder.

    python -m tests.clients.fuzz_api [--seconds 600] [--seed N]

Right is: no answer has a 5xx status, every one is as the document says (status, content type, JSON), whatever the
document does not allow is refused, and at the end nothing runs, no KV block is held and the engine is the one that
started. Left out is what ends the server (/drain as an administrator), and deadlines below 20 s, which may pass: 504.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clients.conftest import EMBEDDER, MODEL, new_key
from tests.e2e.server import Server, serving

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "negative_data_rejection,unsupported_method,ignored_auth"
)
HOOKS = "tests.clients.fuzz_hooks"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=None, help="of a run that is to be repeated")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        keys = folder / "keys.jsonl"
        key = new_key(keys, "fuzz")
        common = ("--max-model-len", "96", "--threads", "1", "--strict", "--keys-file", str(keys))
        # An embedder has fewer routes that do something.
        for model, share in ((MODEL, 4 / 5), (EMBEDDER, 1 / 5)):
            with serving(model, folder / f"{model.name}.log", *common, key=key) as server:
                engine = server.engine.pid
                failed = fuzz(server, max(5, round(arguments.seconds * share)), arguments.seed)
                if failed:
                    print((folder / f"{model.name}.log").read_text()[-3000:], file=sys.stderr)
                    return failed
                server.wait_until("idle")
                assert server.metric("tidemill_engine_kv_blocks_held") == 0, "KV blocks are held"
                assert server.engine.pid == engine, "the engine had to be started again"
    print("1 passed, 0 failed")
    return 0


def fuzz(server: Server, seconds: int, seed: int | None) -> int:
    """schemathesis' exit code."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {server.key}", "--checks", CHECKS, "--max-time", str(seconds)]
    command += ["--phases", "examples,coverage,fuzzing", "--request-timeout", "60", "--warnings", "off"]
    command += ["--suppress-health-check", "all", "--no-color"]
    command += [] if seed is None else ["--seed", str(seed)]
    found = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": found}
    return subprocess.run(command, check=False, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
