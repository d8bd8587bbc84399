#!/usr/bin/env bash
# Writes the models of benchmarks/bench.py: SmolLM2 requantised from the default model's Q4_1 file by llama-quantize, and
# random weights of Qwen2.5-1.5B's sizes; Gemma 3 270M where its packages are installed (`make test-models`).
#   benchmarks/make_models.sh FOLDER [LLAMA-QUANTIZE]
# PEER_PYTHON: an interpreter with torch, transformers, gguf and ctranslate2 writes the folders that CTranslate2 and vLLM read.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?usage: make_models.sh FOLDER [LLAMA-QUANTIZE]}
quantize=${2:-$(command -v llama-quantize)}
python=${PYTHON:-python}
mkdir -p "$out"
source=$("$python" "$here/scripts/default_model.py")
for format in q4_0 q8_0 f16; do
    [ -s "$out/smollm2-$format.gguf" ] || "$quantize" --allow-requantize "$source" "$out/smollm2-$format.gguf" "${format^^}" 2
done
for format in q4_0 q4_k_m q8_0; do
    [ -s "$out/qwen-1.5b-$format.gguf" ] || \
        "$python" "$here/benchmarks/random_model.py" "$out/qwen-1.5b-$format.gguf" --shape qwen2.5-1.5b --format "$format"
done
if [ -n "${PEER_PYTHON:-}" ]; then
    for folder in smollm2-ctranslate2 qwen-1.5b-ctranslate2 smollm2-hf; do
        [ -d "$out/$folder" ] || \
            "$PEER_PYTHON" "$here/benchmarks/convert_for_peers.py" "$out/${folder%-*}-q8_0.gguf" "$out/$folder"
    done
fi
