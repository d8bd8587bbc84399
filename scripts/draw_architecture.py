"""Draw docs/architecture.svg: the layers, the two processes, and the path of one request through both.

python scripts/draw_architecture.py > docs/architecture.svg
"""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT = 1000, 720
INK, MUTED, PAPER = "#1d2b3a", "#5a6b7b", "#ffffff"
DOWN, UP = "#b4531f", "#1f6f8b"
FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"
UNITS = (
    (120, 120, "#dcebf3", "serve/", ["HTTP: host check, key, body limit, routes,", "server-sent events, draining"]),
    (
        560,
        120,
        "#dcebf3",
        "llm.py, cli/",
        ["the same text code and engine loop,", "without HTTP, on the caller's thread"],
    ),
    (120, 236, "#d5ecd9", "frontend/", ["checks, encodes, joins choices;", "a token engine becomes a Backend"]),
    (560, 236, "#d5ecd9", "text/", ["tokenizer, chat template in a sandbox,", "detokenizer, stop strings"]),
    (
        120,
        432,
        "#f6e3c8",
        "engine/",
        [
            "plan > submit > collect > commit > emit",
            "one step at a time; sequences and their",
            "tokens; aborts, failures, restarts",
        ],
    ),
    (
        560,
        432,
        "#f6e3c8",
        "scheduling/",
        ["who runs in this step, how many tokens,", "which KV blocks: integers and a clock,", "no arrays, no sockets"],
    ),
    (
        120,
        582,
        "#efd3d0",
        "executors/",
        [
            "native: C++ kernels, arena, thread pool,",
            "paged KV, sampler, in one call",
            "reference: numpy in float64, the oracle",
        ],
    ),
    (
        560,
        582,
        "#efd3d0",
        "models/, graph/",
        ["a model is data: a graph of operations;", "fusion, cost, memory plan;", "GGUF and safetensors, mapped"],
    ),
)


class Drawing:
    """SVG elements in the order they are painted."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def box(self, x: int, y: int, w: int, h: int, *, fill: str, dashed: bool = False) -> None:
        """A rounded rectangle."""
        dash = " stroke-dasharray='7 5'" if dashed else ""
        self.parts.append(
            f"<rect x='{x}' y='{y}' width='{w}' height='{h}' rx='9' fill='{fill}' stroke='{INK}' "
            f"stroke-width='1.4'{dash}/>"
        )

    def text(
        self, x: int, y: int, words: str, *, size: int = 13, bold: bool = False, color: str = INK, anchor: str = "start"
    ) -> None:
        """One line of text."""
        weight = " font-weight='bold'" if bold else ""
        self.parts.append(
            f"<text x='{x}' y='{y}' {FONT} font-size='{size}'{weight} fill='{color}' "
            f"text-anchor='{anchor}'>{escape(words)}</text>"
        )

    def unit(self, x: int, y: int, *, name: str, lines: list[str], fill: str, h: int = 84) -> None:
        """A part of the package: its folder in bold, what it does below."""
        self.box(x, y, 330, h, fill=fill)
        self.text(x + 14, y + 24, name, size=15, bold=True)
        for number, line in enumerate(lines):
            self.text(x + 14, y + 45 + 18 * number, line, size=12, color=MUTED)

    def arrow(self, points: list[tuple[int, int]], *, color: str, label: str, at: tuple[int, int]) -> None:
        """A line with a head at its end and a label beside it."""
        path = " ".join(f"{x},{y}" for x, y in points)
        name = "down" if color == DOWN else "up"
        self.parts.append(
            f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='2.4' marker-end='url(#{name})'/>"
        )
        self.text(*at, label, size=12, color=color)

    def svg(self) -> str:
        """The whole picture."""
        heads = "".join(
            f"<marker id='{name}' viewBox='0 0 10 10' refX='8' refY='5' markerWidth='7' markerHeight='7' "
            f"orient='auto'><path d='M0,0 L10,5 L0,10 z' fill='{color}'/></marker>"
            for name, color in (("down", DOWN), ("up", UP))
        )
        body = "\n".join(self.parts)
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
            f"aria-label='Layers of Tidemill and the path of one request'>\n"
            f"<defs>{heads}</defs>\n<rect width='{WIDTH}' height='{HEIGHT}' fill='{PAPER}'/>\n{body}\n</svg>\n"
        )


def draw() -> str:
    """The picture as SVG text."""
    d = Drawing()
    d.box(20, 84, 960, 250, fill="#f3f7fa", dashed=True)
    d.text(560, 106, "or a Python program", size=13, bold=True, color=MUTED)
    d.text(36, 106, "server process", size=13, bold=True, color=MUTED)
    d.box(20, 396, 960, 304, fill="#fbf6ef", dashed=True)
    d.text(560, 418, "engine process  (the program's own under LLM)", size=13, bold=True, color=MUTED)

    d.unit(120, 14, name="curl, openai client, any program", lines=[], fill=PAPER, h=50)
    d.unit(560, 14, name="LLM in Python, tidemill chat", lines=[], fill=PAPER, h=50)
    for x, y, fill, name, lines in UNITS:
        d.unit(x, y, name=name, lines=lines, fill=fill, h=84 if y < 400 else 102)

    d.arrow([(180, 64), (180, 118)], color=DOWN, label="1 JSON", at=(188, 80))
    d.arrow([(180, 204), (180, 234)], color=DOWN, label="2 messages", at=(190, 220))
    d.arrow([(450, 262), (558, 262)], color=DOWN, label="3 text", at=(478, 255))
    d.arrow([(560, 290), (452, 290)], color=UP, label="4 token ids", at=(468, 308))
    d.arrow([(180, 320), (180, 430)], color=DOWN, label="5 token request", at=(188, 362))
    d.arrow([(450, 462), (558, 462)], color=DOWN, label="6 counters", at=(466, 455))
    d.arrow([(560, 500), (452, 500)], color=UP, label="7 shares", at=(474, 518))
    d.arrow([(180, 534), (180, 580)], color=DOWN, label="8 step plan", at=(188, 562))
    d.arrow([(400, 582), (400, 536)], color=UP, label="9 drawn tokens", at=(288, 562))
    d.arrow([(400, 432), (400, 322)], color=UP, label="10 token deltas", at=(408, 362))
    d.text(560, 362, "a socket: one message a turn of the server's loop,", size=12, color=MUTED)
    d.text(560, 380, "one message a step of the engine", size=12, color=MUTED)
    d.arrow([(400, 236), (400, 206)], color=UP, label="11 text", at=(346, 226))
    d.arrow([(400, 120), (400, 66)], color=UP, label="12 events", at=(328, 80))
    d.arrow([(560, 632), (452, 632)], color=DOWN, label="at start", at=(482, 625))
    d.arrow([(725, 64), (725, 118)], color=DOWN, label="", at=(733, 80))
    return d.svg()


if __name__ == "__main__":
    print(draw(), end="")
