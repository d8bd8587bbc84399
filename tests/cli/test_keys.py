"""``tidemill keys``: a key is shown once, listed without it, and revoked."""

from __future__ import annotations

import json

from tidemill.cli.main import run
from tidemill.serve.access.key_file import KeyFile


def test_add_list_revoke(tmp_path, capsys):
    path = str(tmp_path / "keys.jsonl")
    assert run(["keys", "add", "alice", "--keys-file", path, "--admin", "--tokens-per-minute", "100"]) == 0
    shown = capsys.readouterr()
    key = shown.out.strip()
    (record,) = KeyFile(path).read()
    assert record.fits(key)
    assert (record.name, record.role, record.tokens_per_minute) == ("alice", "admin", 100)
    assert key not in shown.err

    assert run(["keys", "list", "--keys-file", path]) == 0
    listed = capsys.readouterr().out
    assert listed.split()[:2] == [record.id, "admin"]
    assert listed.endswith("alice  100 tokens per minute\n")
    assert record.sha256 not in listed

    assert run(["keys", "revoke", record.id, "--keys-file", path]) == 0
    assert KeyFile(path).read() == []
    assert run(["keys", "revoke", record.id, "--keys-file", path]) == 2
    assert "no key has this id or name" in capsys.readouterr().err


def test_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TIDEMILL_KEYS_FILE", str(tmp_path / "keys.jsonl"))
    assert run(["keys", "add", "bob", "--tenant", "lab", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert KeyFile(tmp_path / "keys.jsonl").read()[0].fits(made.pop("key"))
    assert run(["keys", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [made]
    assert made["tenant"] == "lab"


def test_a_limit_that_cannot_be_is_refused_before_a_key_is_made(tmp_path, capsys):
    path = tmp_path / "keys.jsonl"
    assert run(["keys", "add", "a", "--keys-file", str(path), "--requests-per-minute", "0"]) == 2
    assert "requests_per_minute must be" in capsys.readouterr().err
    assert not path.exists()
