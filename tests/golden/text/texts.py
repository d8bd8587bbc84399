"""Texts and chats that the golden ids are of: digits, contractions, scripts, emoji, code, white space."""

TEXTS = [
    "",
    " ",
    "Hello",
    " Hello",
    "Hello, world! How are you today?",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they've said we'll, you'd, it's, DON'T, I'LL",
    "1",
    "12",
    "1234567890",
    "on 2024-03-22 at 13:37, 3.14159 times 1,000,000",
    "a  1234   5",
    "x=1;y=22;z=333",
    "½ Ⅷ ² ١٢٣ १२३ 一二三",
    "  leading and trailing  ",
    "\n",
    "\n\n\nnew lines\n\n",
    "\r\nWindows\r\nlines\r\n",
    "\ttabs\t\there",
    "words   \n  \n   and spaces before a newline   \n",
    'def f(x: int) -> str:\n    return f"{x!r}"  # comment\n\n\nclass A:\n\tpass\n',
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }",
    '{"key": [1, 2.5, null, true], "other": "va\\"lue"}',
    "https://example.com/path?query=1&other=%20#fragment",
    "C++ & C# <b>bold</b> $100 ^_^ ~|~ `tick` @user #tag",
    "...!!!???---===>>>",
    "don't-stop_me.now/please\\thanks",
    "你好，世界！今天天气怎么样？",
    "日本語のテキストとカタカナ、ひらがな。",
    "한국어 문장입니다.",
    "中文 and English 混合 text 123 汉字",
    "Привет, мир! Ёлка",
    "مرحبا بالعالم، كيف حالك؟",
    "שלום עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "😀 😃👍🏽 👨‍👩‍👧‍👦 🇩🇪",
    "naïve café Zürich Ærø ŒUVRE ß",
    "∑∫√π ≤ ≥ ≠ → ⇒ ∀x∈ℝ",
    "zero\u200bwidth\u200dand\u00a0nbsp\u2003em\u3000ideographic",
    "control \x00\x01\x1f\x7f characters",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 37 + "x" + " " * 3,
    "mixedCASEWords ALLCAPS snake_case kebab-case",
    "'s 't 're 'S 'T",
    "“curly” ‘quotes’ – dashes — … ellipsis",
    "\ufeffbyte order mark",
    "private \ue000 and \U0010fffd last",
    "Ω≈ç√∫˜µ≤≥÷ åß∂ƒ©˙∆˚¬…æ",
]
RULE_TEXTS = [
    "HTTPServer's XMLHttp DON'T I'LL camelCaseTEXT/path//x",
    "ǅ ʰ aʰB Ångström ÅÄÖ straße",
    "x/\n/y //\r\n !!!\n\n a",
    "12345678901 1234 12",
    "a_b__c  \n  x\n",
]
COMPOSED = ["e\u0301 a\u030a n\u0303 \u1112\u1161\u11ab", "cafe\u0301 123", "\u212b \u2126"]
TYPED = ["<|im_start|>", "a<|im_end|>b", "<|im_start|>user\nhi<|im_end|>\n", " <|im_end|> <|im_end|><|im_start|>"]
USER_DEFINED = ["<think>", "x <think> y</think>", "<|im_start|><think>\n"]

SMOLLM2_CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "What is 12 + 34?"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "Tell me about tides."},
    ],
    [{"role": "user", "content": "  leading and trailing  "}],
    [{"role": "user", "content": "\n\nnewlines\n\n"}],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": " "}],
    [{"role": "user", "content": "😀👨‍👩‍👧‍👦 emoji"}],
    [{"role": "user", "content": "你好，世界！123"}],
    [{"role": "user", "content": "مرحبا بالعالم"}],
    [{"role": "user", "content": "def f():\n    return '<b>&amp;</b>'\n"}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "assistant", "content": "I speak first."}],
    [{"role": "system", "content": "only system"}],
    [{"role": "user", "content": "a"}, {"role": "system", "content": "mid"}, {"role": "user", "content": "b"}],
]

TINY_TEMPLATES = {
    "with_bos": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "without_bos": "{% for m in messages %}\n    {%- if not loop.last %}\n{{ m['role'] | upper }}: {{ m['content'] }}\n"
    "    {%- else %}\n{{ m['content'] }}<|im_end|>\n    {%- endif %}\n{% endfor %}{{ messages | tojson }}",
}
TINY_CHATS = SMOLLM2_CHATS[:12]
