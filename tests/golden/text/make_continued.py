"""Records how transformers ends the prompt of a conversation that goes on with its last message.

    python tests/golden/text/make_continued.py

Writes ``continued.json``: templates, conversations, and their texts and ids with ``continue_final_message`` and without
a generation prompt, by ``apply_chat_template`` over the tiny tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
_TURN = "<|im_start|>{{ m.role }}\n{{ m.content%s }}<|im_end|>\n"
_REST = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEMPLATES = {
    "as it is": "{% for m in messages %}" + _TURN % "" + _REST,
    "trimmed": "{{ bos_token }}{% for m in messages %}" + _TURN % " | trim" + _REST,
    "last one apart": "{% for m in messages %}{% if loop.last and m.role == 'assistant' %}[{{ m.content }}]"
    "{% else %}" + _TURN % "" + "{% endif %}" + _REST,
}
ASKED = {"role": "user", "content": "Count to five."}
CONVERSATIONS = [
    [ASKED, {"role": "assistant", "content": "One, two"}],
    [ASKED, {"role": "assistant", "content": "One, two, "}],
    [ASKED, {"role": "assistant", "content": " im_end\n"}],
    [ASKED, {"role": "assistant", "content": "One"}, ASKED, {"role": "assistant", "content": "One"}],
    [ASKED, {"role": "assistant", "content": "{"}],
    [ASKED, {"role": "assistant", "content": "Ñandú 🌊 e"}],
]


def main() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(HERE / "tiny_tokenizer.json")),
        bos_token="<|begin|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )

    def of(chat: list, template: str, **how: bool) -> list:
        text = tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False, **how)
        return [text, tokenizer(text, add_special_tokens=False)["input_ids"]]

    found = [
        {
            "template": name,
            "messages": chat,
            "continued": of(chat, template, continue_final_message=True),
            "ended": of(chat, template, add_generation_prompt=False),
        }
        for name, template in TEMPLATES.items()
        for chat in CONVERSATIONS
    ]
    content = {"templates": TEMPLATES, "prompts": found}
    (HERE / "continued.json").write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
