"""The pages say what the code does: settings, strategies, errors, rules, links, and examples that run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from tidemill.core import errors
from tidemill.core.config import (
    EngineConfig,
    ExecutorConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from tidemill.core.metrics import METRICS
from tidemill.core.sampling import SamplingOptions
from tidemill.core.strategy import STRATEGIES, Strategy
from tidemill.executors import strategies as _registers_executors  # noqa: F401
from tidemill.scheduling import strategies as _registers_scheduling  # noqa: F401

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "benchmarks" / "LOG.md"])
CONFIGS = (ModelConfig, ExecutorConfig, SchedulerConfig, EngineConfig, ServerConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A fenced block of a page, with the mark ``<!-- test: MARK -->`` above it, if there is one."""

    page: str
    line: int
    language: str
    mark: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets() -> Iterator[Snippet]:
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(r"(?:<!-- test: (\w+) -->\n)?^```(\w+)\n(.*?)^```$", text, re.S | re.M):
            mark, language, code = found.groups()
            line = text.count("\n", 0, found.start()) + 1
            yield Snippet(page=page.name, line=line, language=language, mark=mark or "", code=code)


SNIPPETS = list(snippets())
PYTHON = [snippet for snippet in SNIPPETS if snippet.language == "python"]


def test_generated_pages_are_as_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("owner", CONFIGS, ids=lambda owner: owner.__name__)
def test_every_setting_is_on_the_settings_page(owner: type) -> None:
    page = (DOCS / "settings.md").read_text()
    nested = {"model", "executor", "scheduler"} if owner is EngineConfig else set()
    for item in fields(owner):
        assert item.name in nested or f"| `{item.name}` |" in page


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=lambda strategy: strategy.name)
def test_every_strategy_has_its_setting_metric_and_section(strategy: Strategy) -> None:
    owner, _, name = strategy.setting.partition(".")
    (config,) = [item for item in CONFIGS if item.__name__ == owner]
    assert name in {item.name for item in fields(config)}
    page, _, anchor = strategy.doc.partition("#")
    section = section_of(DOCS / page, anchor)
    assert f"`{name}`" in section
    assert f"`{strategy.metric}`" in section
    assert strategy.metric in {spec.name for spec in METRICS}
    baseline = {"False": "off", "True": "on"}.get(strategy.baseline, f"`{strategy.baseline}`")
    assert f"baseline {baseline}" in section


def test_every_metric_is_in_the_pages() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [spec.name for spec in METRICS if f"`{spec.name}`" not in text] == []


def error_classes() -> list[type[errors.TidemillError]]:
    return [one for name in errors.__all__ if isinstance(one := getattr(errors, name), type)]


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_every_error_is_in_the_architecture_page_with_its_code_and_status(error: type[errors.TidemillError]) -> None:
    page = (DOCS / "architecture.md").read_text()
    status = "exit code 2" if issubclass(error, errors.SetupError) else str(error.status)
    retryable = ", retryable" if error.retryable else ""
    assert f"| `{error.__name__}` | `{error.code}` | {status}{retryable} |" in page


def test_every_sampling_option_is_explained() -> None:
    page = (DOCS / "sampling.md").read_text()
    for item in fields(SamplingOptions):
        assert f"| `{item.name}` |" in page


def test_rules_name_tests_that_exist() -> None:
    """Each rule of the table is kept by a test, or says that there is no such operation yet."""
    section = section_of(DOCS / "architecture.md", "nine-rules-for-bit-identical-answers")
    rows = re.findall(r"^\| (\d) \| .* \| (.*) \|$", section, re.M)
    assert [number for number, _ in rows] == [str(number) for number in range(1, 10)]
    written = "".join(file.read_text() for file in (ROOT / "tests" / "rules").glob("test_*.py"))
    for number, keeper in rows:
        if keeper != "no such operation yet":
            assert f"test_rule_{number}_*" in keeper
            assert f"def test_rule_{number}_" in written
        for path in re.findall(r"`([\w/]+\.(?:cpp|py))`", keeper):
            assert (ROOT / path).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert section_of(file, anchor), f"{page.name}: {target}"


def section_of(page: Path, anchor: str) -> str:
    """The text under the heading with this anchor; empty if there is none."""
    text = page.read_text()
    for found in re.finditer(r"^#+ (.+)$", text, re.M):
        slug = re.sub(r"[^\w\- ]", "", found[1].lower()).replace(" ", "-")
        if slug == anchor:
            return re.split(r"^#+ ", text[found.end() :], maxsplit=1, flags=re.M)[0]
    return ""


@pytest.mark.parametrize("snippet", PYTHON, ids=str)
def test_python_in_the_pages_compiles(snippet: Snippet) -> None:
    compile(snippet.code, str(snippet), "exec")


@pytest.mark.model
@pytest.mark.parametrize("snippet", [item for item in PYTHON if item.mark == "model"], ids=str)
def test_python_in_the_pages_runs(snippet: Snippet, smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(snippet.code.replace("model.gguf", str(smollm2_path)), str(snippet), "exec"), {})
    assert capsys.readouterr().out or "print" not in snippet.code


@pytest.mark.model
@pytest.mark.parametrize("snippet", [item for item in SNIPPETS if item.mark == "plan"], ids=str)
def test_plans_in_the_pages_are_what_is_printed(
    snippet: Snippet, smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tidemill.cli.main import run

    command, _, expected = snippet.code.partition("\n")
    words = command.removeprefix("$ tidemill ").split()
    assert run([str(smollm2_path) if word.endswith(".gguf") else word for word in words]) == 0
    assert capsys.readouterr().out == expected


def test_the_kv_table_is_what_the_formula_gives() -> None:
    """Sizes in docs/memory.md, worked out from the columns beside them."""
    page = (DOCS / "memory.md").read_text()
    cells = r"(\d+) \| (\d+) \| (\d+) \| ([\d,]+) \| ([\d.]+) (\w+) \| ([\d.]+) (\w+)"
    rows = re.findall(rf"^\| [\w.-]+ \| {cells} \|$", page, re.M)
    assert len(rows) == 4
    units = {"MiB": 2**20, "GiB": 2**30}
    for layers, heads, size, token, one, one_unit, many, many_unit in rows:
        exact = 2 * int(layers) * int(heads) * int(size) * 2
        assert int(token.replace(",", "")) == exact
        assert float(one) * units[one_unit] == pytest.approx(exact * 2048, rel=0.02)
        assert float(many) * units[many_unit] == pytest.approx(exact * 2048 * 64, rel=0.02)


def test_make_commands_in_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        used = set(re.findall(r"(?:`|^)make ([a-z][a-z0-9-]*)", page.read_text(), re.M))
        assert used <= targets, f"{page.name}: {used - targets}"


def test_both_readmes_have_the_same_examples() -> None:
    """The Chinese page may word things its own way; commands and code are the same."""
    blocks = {name: [s.code for s in SNIPPETS if s.page == name] for name in ("README.md", "README.zh-CN.md")}
    assert blocks["README.md"] == blocks["README.zh-CN.md"]
