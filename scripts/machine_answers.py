"""Logits of tiny random models on every instruction set of this machine, and their comparison between machines.

    python scripts/machine_answers.py write ANSWERS.npz
    python scripts/machine_answers.py compare HERE.npz THERE.npz

Runs in the repository's root, on whatever tidemill Python finds: the models come from tests/support. Instruction sets
with fused multiply-add and vectors of eight floats do the same operations in the same order, so their logits are
compared bit by bit; others round or add otherwise, and in exact numerics must come close.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

FORMATS = ("q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "q2_k", "mxfp4", "f16")
ARCHITECTURES = ("llama", "gemma3_text")
SAME_BITS = {"avx2", "neon", "neon-dot"}
CLOSE = 1e-4
LENGTH = 75


def write(file: str) -> None:
    """One array of logits [token, vocabulary] per instruction set, numerics, architecture and weight format."""
    from tests.executors.native.small_graphs import plan_row, step
    from tests.support.tiny import VARIANTS, VOCAB, Rig, tiny_model
    from tidemill.core.config import ExecutorConfig
    from tidemill.executors.native._native import supported_isas
    from tidemill.graph.formats import WeightFormat

    tokens = np.random.default_rng(4).integers(0, VOCAB, LENGTH).tolist()
    row = plan_row(tokens, blocks=range(5), outputs=LENGTH)
    answers = {}
    for architecture in ARCHITECTURES:
        for stored_as in FORMATS:
            model = tiny_model(WeightFormat(stored_as), **VARIANTS.get(architecture, {}))
            plan = step(replace(row, block_tables=row.block_tables * len(model.graph.kv_groups)))
            for isa in supported_isas():
                for numerics in ("fast", "exact"):
                    config = ExecutorConfig(threads=2, isa=isa, numerics=numerics)  # type: ignore[arg-type]
                    executor = Rig(model=model, executor=config).make_executor()
                    answers[f"{isa} {numerics} {architecture} {stored_as}"] = executor.logits(plan)[0]
                    executor.close()
    np.savez(file, **answers)
    print(f"{file}: {len(answers)} models' logits on {', '.join(supported_isas())}")


def compare(here: str, there: str) -> None:
    """Each answer of one file beside the same model's in the other; exits with 1 where they differ too much."""
    mine, theirs = np.load(here), np.load(there)
    equal = wrong = 0
    for name in mine.files:
        isa, _, case = name.partition(" ")
        for other in theirs.files:
            other_isa, _, other_case = other.partition(" ")
            if other_case != case:
                continue
            distance = float(np.max(np.abs(mine[name] - theirs[other])))
            same = mine[name].tobytes() == theirs[other].tobytes()
            equal += same
            must_be_same = {isa, other_isa} <= SAME_BITS
            if (must_be_same and not same) or (case.startswith("exact") and distance > CLOSE):
                wrong += 1
                print(f"{name} | {other}: {distance:g} apart")
    print(f"{equal} pairs with the same bits; {wrong} pairs too far apart")
    sys.exit(1 if wrong or not equal else 0)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "write":
        write(sys.argv[2])
    elif len(sys.argv) == 4 and sys.argv[1] == "compare":
        compare(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)
