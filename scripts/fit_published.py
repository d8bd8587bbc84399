"""Write the models of traces that come with the package: src/tidemill/bench/traces/fits/*.json.

python scripts/fit_published.py FOLDER

FOLDER has azure/AzureLLMInferenceTrace_{code,conv}.csv (github.com/Azure/AzurePublicDataset, CC-BY 4.0) and
mooncake/conversation_trace.jsonl (github.com/kvcache-ai/Mooncake, Apache-2.0). Only their statistics are kept.
BurstGPT's model is made from published figures alone and needs no file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from tidemill.bench.traces.arrivals import Arrivals  # noqa: E402
from tidemill.bench.traces.fit import fit_model  # noqa: E402
from tidemill.bench.traces.formats import load_trace  # noqa: E402
from tidemill.bench.traces.joint import Joint, fit_joint  # noqa: E402
from tidemill.bench.traces.model import VERSION, TraceModel, model_json  # noqa: E402

FITS = ROOT / "src" / "tidemill" / "bench" / "traces" / "fits"
FILES = {
    "azure-code-2023": (
        "azure/AzureLLMInferenceTrace_code.csv",
        "Azure LLM inference trace 2023, code (Patel et al., Splitwise, ISCA 2024); statistics, CC-BY 4.0",
    ),
    "azure-conv-2023": (
        "azure/AzureLLMInferenceTrace_conv.csv",
        "Azure LLM inference trace 2023, conversation (Patel et al., Splitwise, ISCA 2024); statistics, CC-BY 4.0",
    ),
    "mooncake-conversation": (
        "mooncake/conversation_trace.jsonl",
        "Mooncake conversation trace (Qin et al., FAST 2025, arXiv:2407.00079); statistics, Apache-2.0",
    ),
}
HOURLY = (45, 27, 16, 7, 6, 6, 6, 6, 20, 105, 157, 160, 67, 92, 154, 184, 188, 133, 78, 100, 118, 107, 93, 75)
"""Median requests an hour of the conversations with ChatGPT, from midnight on, read off the data set's figure of daily
periodicity."""
SHAPE = 0.25
"""Gamma shape of the gaps in the authors' own generator."""
MEAN_REQUEST, LONGEST_REQUEST = 621, 2048
"""Mean request tokens of the data set, and the longest ones in the figure below. Zipf's law is the paper's form."""
RESPONSES = (
    (5, 10, 20, 190),
    (25, 30, 240, 500),
    (50, 25, 170, 585),
    (100, 15, 85, 440),
    (150, 13, 100, 360),
    (300, 15, 110, 360),
    (400, 17, 110, 385),
    (500, 22, 160, 445),
    (700, 38, 200, 520),
    (900, 50, 215, 480),
    (1000, 55, 245, 490),
    (1200, 75, 300, 520),
    (1400, 110, 335, 560),
    (1600, 150, 370, 600),
    (1800, 175, 410, 640),
    (2048, 195, 440, 700),
)
"""Request tokens; of their responses the 5th, 50th and 95th percentile, read off the data set's figure of request and
response tokens (ChatGPT, conversations)."""


def zipf_exponent(mean: float, longest: int) -> float:
    """The exponent with which Zipf's law on 1 to ``longest`` has this mean."""
    values = np.arange(1, longest + 1, dtype=np.float64)
    low, high = 0.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        weights = values**-middle
        low, high = (middle, high) if float(values @ weights / weights.sum()) > mean else (low, middle)
    return low


def burstgpt_lengths(count: int = 200_000) -> Joint:
    """Requests by Zipf's law, responses by the percentiles for their request's length."""
    numbers = np.random.default_rng(0)
    values = np.arange(1, LONGEST_REQUEST + 1)
    weights = values ** -zipf_exponent(MEAN_REQUEST, LONGEST_REQUEST)
    requests = numbers.choice(values, size=count, p=weights / weights.sum())
    table = np.array(RESPONSES, dtype=np.float64)
    low, middle, high = (np.interp(requests, table[:, 0], table[:, column]) for column in (1, 2, 3))
    ranks = numbers.random(count)  # straight between the percentiles and on to 1 and to 1.2 times the last
    below = np.where(ranks < 0.05, 1 + (low - 1) * ranks / 0.05, low + (middle - low) * (ranks - 0.05) / 0.45)
    above = np.where(ranks < 0.95, middle + (high - middle) * (ranks - 0.5) / 0.45, high * (1 + 4 * (ranks - 0.95)))
    return fit_joint(requests, np.round(np.where(ranks < 0.5, below, above)))


def burstgpt() -> TraceModel:
    """The conversations with ChatGPT in BurstGPT."""
    return TraceModel(
        version=VERSION,
        source="BurstGPT, conversations with ChatGPT: published figures (Wang et al., arXiv:2401.17644), not the trace",
        requests=sum(HOURLY),
        arrivals=Arrivals(window=3600.0, rates=tuple(round(count / 3600, 6) for count in HOURLY), shape=SHAPE),
        lengths=burstgpt_lengths(),
        notes=("request lengths follow Zipf's law with the published mean; sessions and sharing are not published",),
    )


def main(arguments: list[str]) -> int:
    """Write the files."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    FITS.mkdir(exist_ok=True)
    (FITS / "burstgpt-conv.json").write_bytes(model_json(burstgpt()))
    for name, (file, source) in FILES.items():
        (FITS / f"{name}.json").write_bytes(model_json(fit_model(load_trace(Path(arguments[0]) / file), source=source)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
