"""What the tour's model knows, and the functions that it calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["ANSWERS", "FUNCTIONS", "HEIGHTS", "HELLO", "KNOTS", "MILL", "SCHEMA", "TOOLS", "WAVES", "tide", "wind"]

DATA = Path(__file__).parents[1] / "golden" / "data" / "tide_chat"
ANSWERS: dict[str, list[str]] = {
    name: [answer["answer"] for answer in answers]
    for name, answers in json.loads((DATA / "expected.json").read_text())["answers"].items()
}
"""What transformers says with these weights, by conversation (see tests/golden/generate_tide_chat.py)."""
HELLO, MILL = "Hello", "What is a tide mill?"
WAVES = "What do the waves do?"
"""The answer never ends."""
HEIGHTS = {"Brest": 4.2, "Dover": 6.1, "Cardiff": 9.8}
KNOTS = {"Brest": 7, "Dover": 12}
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "tide", "description": "Height of the tide.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "wind", "description": "Speed of the wind.", "parameters": SCHEMA}},
]


def tide(place: str) -> str:
    """Height of the tide."""
    return f"{HEIGHTS[place]} m"


def wind(place: str) -> str:
    """Speed of the wind."""
    return f"{KNOTS[place]} knots"


FUNCTIONS = {"tide": tide, "wind": wind}
