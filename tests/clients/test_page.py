"""The programs of docs/clients.md, run as they stand there against a real server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clients.conftest import Tour
from tests.clients.sea import ANSWERS

pytestmark = pytest.mark.clients
HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "clients.md").read_text()
PROGRAMS = re.findall(r"^## ([^\n]+)\n\n```(python|js)\n(.*?)^```$", PAGE, re.S | re.M)
SAYS = {
    "OpenAI, Python": ANSWERS["mill"][0][:60],
    "OpenAI, Node.js": ANSWERS["mill"][0][:60],
    "Anthropic, Python": ANSWERS["mill"][0][:60],
    "LangChain": "'name': 'tide', 'args': {'place': 'Brest'}",
    "LlamaIndex": ANSWERS["hello"][0],
}
GREEDY = {
    "OpenAI, Python": {"max_tokens=60": "temperature=0"},
    "OpenAI, Node.js": {"max_tokens: 60": "temperature: 0"},
    "Anthropic, Python": {"max_tokens=60": 'extra_body={"temperature": 0}'},
    "LangChain": {"stream_usage=True": "temperature=0"},
    "LlamaIndex": {"context_window=2048": "temperature=0"},
}


def test_every_client_has_its_program() -> None:
    assert [name for name, _, _ in PROGRAMS] == list(SAYS)


@pytest.mark.parametrize(("name", "language", "code"), PROGRAMS, ids=[name for name, _, _ in PROGRAMS])
def test_the_program(tour: Tour, tmp_path: Path, name: str, language: str, code: str) -> None:
    needed = re.findall(r"^from (langchain_openai|llama_index)", code, re.M)
    if (needed and find_spec(needed[0]) is None) or (language == "js" and not shutil.which("node")):
        pytest.skip(f"`make test-clients` installs what {name} needs")
    code = code.replace("http://127.0.0.1:8000", tour.server.url).replace("unused", tour.key).replace("my-model", "m")
    for before, greedy in GREEDY[name].items():  # so that what is said is known
        assert before in code
        code = code.replace(before, f"{before}, {greedy}")
    if language == "js":
        command = ["node", "--input-type=module", "--eval", code]
    else:
        (tmp_path / "program.py").write_text(code)
        command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=HERE)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
