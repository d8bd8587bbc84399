"""Our figures of a server beside those of another ruler, GuideLLM, on the same server and load, in turns.

    pip install guidellm                                    in an environment of its own
    tidemill bench stub --port 9000 &
    python benchmarks/peer_ruler.py --url http://127.0.0.1:9000/v1 --guidellm ENVIRONMENT/bin/guidellm

Chats in a closed loop, with prompts of as many words and answers of as many tokens, asked for in the same way: drawing
a token takes a server longer than taking the likeliest. With one caller (--concurrency 1) nothing depends on how
callers fall in with each other. What is compared means the same on both sides: time to first token,
(last - first) / (tokens - 1) of each answer, whole answers, tokens per second from the first request sent to the last
token. The last line is one JSON object; the exit code is 1 if a figure differs by more than --tolerance.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tidemill.bench.job import Job
from tidemill.bench.load.options import LoadOptions, ServerOptions
from tidemill.bench.load.prompt_options import PromptOptions
from tidemill.bench.load.prompts import WordPrompts
from tidemill.bench.tables import table

Figures = dict[str, float]
SAME_BODY = {"temperature": None, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
"""What GuideLLM asks for and our ruler would not: tokens drawn at the server's temperature, a count in every chunk."""


def ours(asked: argparse.Namespace, number: int) -> Figures:
    """One run of our ruler."""
    load = LoadOptions(
        concurrency=asked.concurrency, requests=asked.requests, prompt_tokens=str(asked.words),
        output_tokens=str(asked.output_tokens), seed=number, warmup=0,
    )  # fmt: skip
    job = Job(load=load, prompts=PromptOptions(prompts="words"), prompt_seed=2 * number, progress=False)
    server = ServerOptions(url=asked.url, endpoint="chat", body=json.dumps(SAME_BODY))
    done = asyncio.run(job.at_server(server, asked.model))
    values = done.values
    if values["requests"]["failed"]:
        raise SystemExit(f"ours: {values['requests']['errors']}")
    return {
        "ttft_mean_ms": values["ttft_ms"]["mean"],
        "ttft_p50_ms": values["ttft_ms"]["p50"],
        "tpot_mean_ms": values["tpot_ms"]["mean"],
        "e2e_mean_ms": values["e2e_ms"]["mean"],
        "tokens_per_second": values["rates"]["output_tokens_per_second"],
        "output_tokens": values["tokens"]["output"],
    }


def theirs(asked: argparse.Namespace, number: int, folder: Path) -> Figures:
    """One run of GuideLLM, on prompts of as many words."""
    prompts, found = folder / "prompts.jsonl", folder / f"found{number}.json"
    words = WordPrompts(seed=2 * number + 1)
    rows = [
        {"prompt": words.make((), asked.words, str(k)).text, "output_tokens_count": asked.output_tokens}
        for k in range(asked.requests)
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        asked.guidellm, "run", "--backend",
        f"kind=openai_http,target={asked.url.removesuffix('/v1')},model={asked.model},"
        "request_format=/v1/chat/completions,http2=false,validate_backend=false",
        "--profile", f"kind=concurrent,streams={asked.concurrency}",
        "--constraint", f"kind=max_requests,count={asked.requests}",
        "--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={found}", "--disable-console",
    ]  # fmt: skip
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, cwd=folder
    )
    if done.returncode or not found.is_file():
        raise SystemExit(f"GuideLLM failed: {(done.stderr or done.stdout)[-500:]}")
    (benchmark,) = json.loads(found.read_text())["benchmarks"]
    return figures_of(benchmark)


def figures_of(benchmark: dict[str, Any]) -> Figures:
    """Of one benchmark in GuideLLM's results."""
    metrics, requests = benchmark["metrics"], benchmark["requests"]["successful"]
    if len(requests) != metrics["request_totals"]["total"]:
        raise SystemExit(f"GuideLLM: {metrics['request_totals']}")
    begin = min(one["request_start_time"] for one in requests)
    end = max(one["request_end_time"] for one in requests)
    tokens = sum(one["output_tokens"] for one in requests)
    first = metrics["time_to_first_token_ms"]["successful"]
    return {
        "ttft_mean_ms": first["mean"],
        "ttft_p50_ms": first["percentiles"]["p50"],
        "tpot_mean_ms": statistics.fmean(one["inter_token_latency_ms"] for one in requests),
        "e2e_mean_ms": 1e3 * metrics["request_latency"]["successful"]["mean"],
        "tokens_per_second": tokens / (end - begin),
        "output_tokens": tokens,
    }


def main() -> int:
    """Measure in turns and compare medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="base URL ending in /v1")
    parser.add_argument("--model", default="scripted", help="name of the model in requests")
    parser.add_argument("--guidellm", default=shutil.which("guidellm"), help="its command; default: on PATH")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--words", type=int, default=100, help="words of a prompt")
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=0.03, help="largest difference, as a share")
    asked = parser.parse_args()
    if not asked.guidellm:
        parser.error("there is no guidellm on PATH; name it with --guidellm")
    mine, others = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.rounds):
            mine.append(ours(asked, number))
            others.append(theirs(asked, number, Path(folder)))
            print(f"round {number + 1}: {mine[-1]} {others[-1]}", file=sys.stderr)
    rows = {}
    for name in mine[0]:
        a, b = (statistics.median(one[name] for one in side) for side in (mine, others))
        rows[name] = {"ours": round(a, 3), "guidellm": round(b, 3), "difference": round(a / b - 1, 4)}
    cells = [
        [name, f"{row['ours']:.2f}", f"{row['guidellm']:.2f}", f"{row['difference']:+.2%}"]
        for name, row in rows.items()
    ]
    print(table(["", "ours", "GuideLLM", "difference"], cells))
    apart = [name for name, row in rows.items() if abs(row["difference"]) > asked.tolerance]
    print(json.dumps({"figures": rows, "rounds": asked.rounds, "tolerance": asked.tolerance, "apart": apart}))
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
