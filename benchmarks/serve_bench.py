"""``tidemill bench run`` on a server with the default model, which is started for it and stopped after it.

    python benchmarks/serve_bench.py                                  8 callers, 64 requests
    python benchmarks/serve_bench.py --prompt-tokens 576 --shared-tokens 512 --concurrency 16
                                                                      prompts that begin alike
    python benchmarks/serve_bench.py --rate 4 --duration 30 --slo "ttft:p99<2s; itl:p95<150ms"
    ... --serve-options "--prefix-cache off"                          the server with other settings
    python benchmarks/serve_bench.py --url http://host:port/v1        another server, and none is started

All other options are those of ``tidemill bench run``. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

TIDEMILL = [sys.executable, "-m", "tidemill.cli"]
LENGTHS = {"--prompt-tokens": "64", "--output-tokens": "64"}
"""Where the command line says nothing else."""


def default_model() -> str:
    """Path of the default model."""
    finder = Path(__file__).parent.parent / "scripts" / "default_model.py"
    return subprocess.run([sys.executable, finder], check=True, capture_output=True, text=True).stdout.strip()


def default_server(options: str) -> AbstractContextManager[str]:
    """A server with the default model and these options on a free port; its base URL. It ends with the block."""
    return server(default_model(), ["--name", "default", *shlex.split(options)])


@contextmanager
def server(model: str, options: Sequence[str]) -> Iterator[str]:
    """The same with any model."""
    command = [*TIDEMILL, "serve", model, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _wait_for_address(process)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://[\w.:\[\]]+/v1", line):
            return found[0]
    raise SystemExit(f"the server ended with exit code {process.wait()} before it was ready")


def measure(url: str, options: Sequence[str]) -> int:
    """Run the command on a server; its exit code."""
    given = {option.partition("=")[0] for option in options}
    load = [word for name, value in LENGTHS.items() if name not in given for word in (name, value)]
    if not given & {"--rate", "--concurrency", "--trace"}:
        load += ["--concurrency", "8"]
    if not given & {"--requests", "--duration", "--trace"}:
        load += ["--requests", "64"]
    return subprocess.run([*TIDEMILL, "bench", "run", "--url", url, *load, *options], check=False).returncode


def main() -> int:
    """Measure the server that is named, or one of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--url", help="base URL ending in /v1; default: start a server")
    parser.add_argument("--serve-options", default="", help="options of the server that is started, as one text")
    own, options = parser.parse_known_args()
    if own.url:
        return measure(own.url, options)
    with default_server(own.serve_options) as url:
        return measure(url, options)


if __name__ == "__main__":
    sys.exit(main())
