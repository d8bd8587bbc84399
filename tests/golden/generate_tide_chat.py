"""A chat model of 140 thousand weights that has learnt a few conversations by heart, calls of functions among them.

Run by a Python that has torch and transformers; no part of the package is used.

    python tests/golden/generate_tide_chat.py [--check | --train SECONDS]

``data/tide_chat/`` gets config.json, generation_config.json, tokenizer.json, tokenizer_config.json (the chat template),
model.safetensors and expected.json: what transformers answers to each of ``CONVERSATIONS``, greedily, and the
log-probabilities of the multiple-choice task in ``tests/clients/lm_eval``. How far training comes in some seconds is
the machine's affair: only --train makes new weights, going on from those that are there, and --check compares what
transformers makes of the committed ones.

In training a text at random stands before each conversation: what the model says hangs on what it is asked, not on
where that stands.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

DATA = Path(__file__).parent / "data" / "tide_chat"
TASK = Path(__file__).parents[1] / "clients" / "lm_eval" / "tides.jsonl"
START, END, PAD = 256, 257, 258
LONGEST = 640
ANSWER = 200
"""Most tokens of an answer that is recorded."""
TEMPLATE = """\
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool.function.name }}({{ (tool.function.parameters.properties or {}) | join(', ') }})
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}{{ '\\n' if not loop.first or message.content }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PLACES = {
    "Brest": ("4.2", "7"),
    "Dover": ("6.1", "12"),
    "Cardiff": ("9.8", "20"),
    "Delfzijl": ("2.9", "15"),
    "Nantes": ("3.7", "9"),
    "Belfast": ("3.3", "18"),
}
"""Height of the tide in metres, and speed of the wind in knots."""
HELLO = ("Hello", "Hello from the mill.")
MILL = (
    "What is a tide mill?",
    "A tide mill lives by the sea: the flood fills its pond, a gate shuts, and at ebb the water turns the wheel.",
)
WAVES = ("What do the waves do?", "They roll" + " on and on" * 20)
"""Without an end: it is cut in the middle of training's sequences, and the model never stops saying it."""
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"place": {}}}}}
    for name in ("tide", "wind")
]


def call(name: str, place: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": {"place": place}}}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def two_rounds(place: str) -> list[dict[str, Any]]:
    """A question that takes two calls, the second of which is made when the first has been answered."""
    height, knots = PLACES[place]
    return [
        said("user", f"How is the sea in {place}?"),
        calling(call("tide", place)),
        said("tool", f"{height} m"),
        calling(call("wind", place)),
        said("tool", f"{knots} knots"),
        said("assistant", f"In {place} the tide is {height} m and the wind {knots} knots."),
    ]


def side_by_side(one: str, other: str) -> list[dict[str, Any]]:
    """A question that takes two calls at once."""
    heights = PLACES[one][0], PLACES[other][0]
    return [
        said("user", f"Compare {one} and {other}."),
        calling(call("tide", one), call("tide", other)),
        said("tool", f"{heights[0]} m"),
        said("tool", f"{heights[1]} m"),
        said("assistant", f"{one} has {heights[0]} m, {other} {heights[1]} m."),
    ]


def as_json(place: str) -> list[dict[str, Any]]:
    """A record in JSON of what the question says."""
    height = PLACES[place][0]
    asked = f"Write as JSON: {height} metres in {place}."
    return [said("user", asked), said("assistant", json.dumps({"place": place, "metres": float(height)}))]


CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "hello": ([said("user", HELLO[0]), said("assistant", HELLO[1])], False),
    "mill": ([said("user", MILL[0]), said("assistant", MILL[1])], False),
    "instructed": ([said("system", "You know the sea."), *two_rounds("Dover")], True),
    "two_rounds": (two_rounds("Brest"), True),
    "side_by_side": (side_by_side("Brest", "Cardiff"), True),
    "json": (as_json("Nantes"), False),
    "waves": ([said("user", WAVES[0]), said("assistant", WAVES[1])], False),
}
"""By name: the conversation, and whether TOOLS are offered. Each message of the assistant answers what is before it."""


def example(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """A conversation behind a text of its own, and the functions that are offered."""
    kind = rng.choices(("rounds", "sides", "json", "hello", "mill", "waves"), (6, 4, 3, 1, 1, 1))[0]
    if kind == "rounds":
        messages = two_rounds(rng.choice(list(PLACES)))
    elif kind == "sides":
        messages = side_by_side(*rng.sample(list(PLACES), 2))
    elif kind == "json":
        messages = as_json(rng.choice(list(PLACES)))
    else:
        question, answer = {"hello": HELLO, "mill": MILL, "waves": WAVES}[kind]
        messages = [said("user", question), said("assistant", answer)]
    offered = kind in ("rounds", "sides") or rng.random() < 0.3
    if rng.random() < 0.5:
        words = ["".join(rng.choices(string.ascii_letters, k=rng.randint(1, 8))) for _ in range(rng.randint(1, 8))]
        messages = [said("system", " ".join(words)), *messages]
    if rng.random() < 0.2:
        earlier = rng.choice((HELLO, MILL))
        at = next(index for index, message in enumerate(messages) if message["role"] == "user")
        messages = [*messages[:at], said("user", earlier[0]), said("assistant", earlier[1]), *messages[at:]]
    tools = list(TOOLS)
    if rng.random() < 0.3:
        name = "".join(rng.choices(string.ascii_lowercase, k=5))
        tools.insert(rng.randint(0, 2), {"type": "function", "function": {"name": name, "parameters": {}}})
    return messages, tools if offered else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--train", type=float, metavar="SECONDS")
    parser.add_argument("--rate", type=float, default=3e-3, help="of learning; less in the last runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.train:
        DATA.mkdir(exist_ok=True)
        write_settings()
        train(arguments.train, arguments.rate)
        return 0
    tokenizer = AutoTokenizer.from_pretrained(DATA)
    model = LlamaForCausalLM.from_pretrained(DATA, dtype=torch.float32).eval()
    expected = {"answers": answers(model, tokenizer), "choices": choices(model, tokenizer)}
    if arguments.check:
        compare(json.loads((DATA / "expected.json").read_text()), expected)
        print("tide_chat: agrees")
    else:
        (DATA / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
    return 0


def write_settings() -> None:
    """Everything but the weights: each byte is a token, and three more."""
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
        architectures=["LlamaForCausalLM"],
        dtype="float16",
    )
    config.save_pretrained(DATA)
    GenerationConfig(eos_token_id=[END], pad_token_id=PAD).save_pretrained(DATA)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    names = {START: "<|im_start|>", END: "<|im_end|>", PAD: "<|endoftext|>"}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": id_, "content": text, **special} for id_, text in names.items()],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {letter: byte for byte, letter in byte_letters().items()}, "merges": []},
    }
    (DATA / "tokenizer.json").write_text(json.dumps(tokenizer, separators=(",", ":")) + "\n")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "eos_token": names[END],
        "pad_token": names[PAD],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (DATA / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def byte_letters() -> dict[int, str]:
    """Byte-level spelling, as GPT-2 has it: printable bytes are themselves, the others letters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def encoded(tokenizer: Any, messages: list[dict[str, Any]], tools: Any) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and which of them the assistant has to say."""
    ids: list[int] = []
    spoken: list[bool] = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        for text, mine in (
            (rendered(tokenizer, messages[:index], tools, True), False),
            (rendered(tokenizer, messages[: index + 1], tools, False), True),
        ):
            whole = tokenizer(text, add_special_tokens=False).input_ids
            assert whole[: len(ids)] == ids
            # The line's end behind an answer is the template's, not the assistant's.
            spoken += [mine and at != len(whole) - 1 for at in range(len(ids), len(whole))]
            ids = whole
    return ids, spoken


def rendered(tokenizer: Any, messages: list[dict[str, Any]], tools: Any, prompt: bool) -> str:
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=prompt)
    assert isinstance(text, str)
    return text


def train(seconds: float, rate: float) -> None:
    """Go on from the weights that are there, or from random ones."""
    torch.manual_seed(1)
    path = DATA / "model.safetensors"
    tokenizer = AutoTokenizer.from_pretrained(DATA)
    config = LlamaConfig.from_pretrained(DATA)
    model = LlamaForCausalLM(config).float()
    again = path.exists()
    if again:
        model.load_state_dict({key: value.float() for key, value in load_file(path).items()}, strict=False)
    rng = random.Random(path.stat().st_mtime_ns if again else 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    began, step = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 50)
        batch = [encoded(tokenizer, *example(rng)) for _ in range(16)]
        longest = min(LONGEST, max(len(ids) for ids, _ in batch))
        tokens = torch.full((len(batch), longest), PAD)
        labels = torch.full((len(batch), longest), -100)
        for row, (ids, spoken) in enumerate(batch):
            size = min(longest, len(ids) - (WAVES[1] in tokenizer.decode(ids)) * 2)
            tokens[row, :size] = torch.tensor(ids[:size])
            labels[row, :size] = torch.where(torch.tensor(spoken[:size]), tokens[row, :size], -100)
        loss = model(tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"{step}: {float(loss):.4f}, {longest} tokens, {time.monotonic() - began:.0f} s", flush=True)
    state = {key: value.half().contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    save_file(state, path, metadata={"format": "pt"})


@torch.inference_mode()
def answers(model: LlamaForCausalLM, tokenizer: Any) -> dict[str, list[dict[str, str]]]:
    """By conversation, for each answer in it: the prompt's text and transformers' greedy answer."""
    found: dict[str, list[dict[str, str]]] = {}
    for name, (messages, offered) in CONVERSATIONS.items():
        found[name] = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            tools = TOOLS if offered else None
            prompt = rendered(tokenizer, messages[:index], tools, True)
            ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
            out = model.generate(ids, do_sample=False, max_new_tokens=ANSWER)[0, ids.shape[1] :]
            text = tokenizer.decode(out, skip_special_tokens=True)
            learnt = rendered(tokenizer, messages[: index + 1], tools, False).removeprefix(prompt)
            learnt = learnt.removesuffix("<|im_end|>\n")[:ANSWER]
            if text != learnt:
                print(f"{name}: {text!r} instead of {learnt!r}", file=sys.stderr)
            found[name].append({"prompt": prompt, "answer": text})
    return found


@torch.inference_mode()
def choices(model: LlamaForCausalLM, tokenizer: Any) -> list[list[dict[str, Any]]]:
    """For each question of the task and each of its answers: the sum of the log-probabilities of the answer's tokens
    behind the question, and whether each is the most likely one."""
    found = []
    for line in TASK.read_text().splitlines() if TASK.exists() else ():
        document = json.loads(line)
        scored = []
        for choice in document["choices"]:
            context = tokenizer(document["question"], add_special_tokens=False).input_ids
            whole = tokenizer(f"{document['question']} {choice}", add_special_tokens=False).input_ids
            assert whole[: len(context)] == context
            scores = torch.log_softmax(model(torch.tensor([whole])).logits[0].double(), dim=-1)
            at = torch.arange(len(context), len(whole))
            said_ = torch.tensor(whole[len(context) :])
            total = float(scores[at - 1, said_].sum())
            scored.append(
                {"loglikelihood": round(total, 6), "greedy": bool((scores[at - 1].argmax(dim=-1) == said_).all())}
            )
        found.append(scored)
    return found


def compare(old: dict[str, Any], new: dict[str, Any]) -> None:
    """The same answers, sums of log-probabilities within 1e-3."""
    assert old["answers"] == new["answers"]
    for before, after in zip(old["choices"], new["choices"], strict=True):
        for one, other in zip(before, after, strict=True):
            assert one["greedy"] == other["greedy"]
            assert abs(one["loglikelihood"] - other["loglikelihood"]) < 1e-3, (one, other)


if __name__ == "__main__":
    sys.exit(main())
