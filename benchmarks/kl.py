"""How far do rounded activations move the answer? Mean KL divergence to the exact model, ours and llama.cpp's.

Each engine runs the same token ids of the same text over the same GGUF file and writes its log-probabilities; the
report compares them position by position with those of Hugging Face transformers in float32 on the dequantised
weights:  KL(exact || engine) = sum_v p(v) (log p(v) - log q(v)),  averaged over positions.

    python benchmarks/kl.py ids      --model M.gguf --out kl                 # with tidemill's environment
    python benchmarks/kl.py tidemill --model M.gguf --out kl --numerics fast
    python benchmarks/kl.py tidemill --model M.gguf --out kl --numerics exact
    PEER=python-with-torch-transformers-gguf-and-llama-cpp-python
    $PEER benchmarks/kl.py transformers --model M.gguf --out kl
    $PEER benchmarks/kl.py llamacpp     --model M.gguf --out kl
    python benchmarks/kl.py report   --out kl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]
TEXT = Path(__file__).parent.parent / "tests" / "data" / "prose.txt"
CHUNK = 256


def log_softmax(logits: npt.NDArray[Any]) -> Matrix:
    """Rows of log-probabilities, computed in float64."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    return (rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))).astype(np.float32)


def chunks(out: Path) -> list[list[int]]:
    """The text's token ids in pieces of CHUNK (a short last piece is dropped)."""
    ids = json.loads((out / "ids.json").read_text())
    return [ids[i : i + CHUNK] for i in range(0, len(ids) - CHUNK + 1, CHUNK)]


def write_ids(model: Path, out: Path) -> None:
    from tidemill.models.loading import load_text_source
    from tidemill.text.tokenizer import build_tokenizer

    ids = build_tokenizer(load_text_source(str(model))).encode(TEXT.read_text(encoding="utf-8"))
    (out / "ids.json").write_text(json.dumps(ids))
    print(f"{len(ids)} tokens, {len(ids) // CHUNK} chunks of {CHUNK}")


def run_tidemill(model: Path, out: Path, numerics: str, threads: int) -> None:
    from tidemill.core.config import ExecutorConfig, ModelConfig
    from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
    from tidemill.executors.factory import make_executor
    from tidemill.executors.protocol import KvPoolSpec
    from tidemill.graph.passes.fuse import fuse
    from tidemill.models.loading import load_model

    loaded = load_model(ModelConfig(path=str(model)))
    config = ExecutorConfig(numerics="exact" if numerics == "exact" else "fast", threads=threads)
    executor = make_executor(fuse(loaded.graph), loaded.weights, config)
    blocks = CHUNK // 16
    executor.allocate_kv([KvPoolSpec(group=g.name, num_blocks=blocks, block_size=16) for g in loaded.graph.kv_groups])
    table = tuple(list(range(blocks)) for _ in loaded.graph.kv_groups)
    rows = []
    for number, ids in enumerate(chunks(out)):
        plan = StepPlan(
            step=number,
            rows=(
                PlanRow(
                    sequence=SequenceId(number),
                    tokens=ids,
                    start=0,
                    block_tables=table,
                    num_outputs=len(ids),
                    options=RowOptions(),
                ),
            ),
        )
        rows.append(log_softmax(executor.logits(plan)[0]))
    print(executor.description)
    executor.close()
    np.save(out / f"tidemill-{numerics}.npy", np.concatenate(rows))


def run_transformers(model: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(str(model.parent), gguf_file=model.name, dtype=torch.float32)
    network.eval()
    with torch.no_grad():
        rows = [log_softmax(network(torch.tensor([ids])).logits[0].numpy()) for ids in chunks(out)]
    np.save(out / "exact.npy", np.concatenate(rows))


def run_llamacpp(model: Path, out: Path, threads: int) -> None:
    import llama_cpp

    engine = llama_cpp.Llama(
        str(model), n_ctx=CHUNK, n_batch=CHUNK, n_threads=threads, n_threads_batch=threads, logits_all=True,
        flash_attn=True, verbose=False,
    )  # fmt: skip
    rows = []
    for ids in chunks(out):
        engine.reset()
        engine.eval(ids)
        rows.append(log_softmax(np.array(engine.scores[: len(ids)])))
    np.save(out / "llamacpp.npy", np.concatenate(rows))
    print("llama-cpp-python", llama_cpp.__version__)


def report(out: Path) -> None:
    exact = np.load(out / "exact.npy").astype(np.float64)
    figures: dict[str, dict[str, float]] = {}
    for path in sorted(out.glob("*.npy")):
        if path.stem == "exact":
            continue
        other = np.load(path).astype(np.float64)
        kl = (np.exp(exact) * (exact - other)).sum(axis=-1)
        agree = (exact.argmax(axis=-1) == other.argmax(axis=-1)).mean()
        figures[path.stem] = {
            "mean_kl": float(kl.mean()),
            "stderr": float(kl.std(ddof=1) / np.sqrt(len(kl))),
            "p99_kl": float(np.quantile(kl, 0.99)),
            "top1_agreement": float(agree),
            "positions": len(kl),
        }
        print(f"{path.stem:16} mean KL {kl.mean():.6f}  p99 {np.quantile(kl, 0.99):.5f}  top-1 {agree:.2%}")
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ids", "tidemill", "transformers", "llamacpp", "report"])
    parser.add_argument("--model", type=Path, help="the GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="folder for ids and log-probabilities")
    parser.add_argument("--numerics", default="fast", choices=["fast", "exact"])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "report":
        report(args.out)
    elif args.model is None:
        parser.error("--model is needed")
    elif args.what == "ids":
        write_ids(args.model, args.out)
    elif args.what == "tidemill":
        run_tidemill(args.model, args.out, args.numerics, args.threads)
    elif args.what == "transformers":
        run_transformers(args.model, args.out)
    else:
        run_llamacpp(args.model, args.out, args.threads)


if __name__ == "__main__":
    main()
