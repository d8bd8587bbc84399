"""The file of keys: what is in it, what is not, and what is refused."""

from __future__ import annotations

import json
import stat
import threading
from dataclasses import asdict

import pytest

from tidemill.core.errors import ConfigError
from tidemill.serve.access.key_file import KeyFile, key_id, new_key


def test_a_key_fits_its_line_and_no_other():
    key, record = new_key("alice")
    other, _ = new_key("alice")
    assert record.fits(key)
    assert not any(record.fits(wrong) for wrong in (other, key[:-1], key + "a", "", record.sha256))
    assert key_id(key) == record.id
    assert [key_id(wrong) for wrong in ("", "tm", "sk-abc-def", "plain")] == [""] * 4


def test_the_file_holds_no_key_and_is_its_owners(tmp_path):
    file = KeyFile(tmp_path / "keys.jsonl")
    key, record = new_key("alice", tenant="lab", role="admin", tokens_per_minute=100)
    file.add(record)
    assert file.read() == [record]
    text = file.path.read_text()
    assert key not in text
    assert key.rsplit("-", 1)[1] not in text
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["keys.jsonl"]


def test_equal_keys_have_different_hashes():
    (_, first), (_, second) = new_key("a"), new_key("a")
    assert first.salt != second.salt


def test_removal_by_id_and_by_name(tmp_path):
    file = KeyFile(tmp_path / "keys.jsonl")
    records = [new_key(name)[1] for name in ("a", "b", "a", "c")]
    for record in records:
        file.add(record)
    assert file.remove("nobody") == []
    assert file.remove("a") == [records[0], records[2]]
    assert file.remove(records[1].id) == [records[1]]
    assert file.read() == [records[3]]


def test_writers_at_once_lose_nothing(tmp_path):
    file = KeyFile(tmp_path / "keys.jsonl")

    def write() -> None:
        for _ in range(10):
            file.add(new_key("x")[1])

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(file.read()) == 40


LINE = asdict(new_key("a")[1])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON"),
        ("[]", "must be a JSON object"),
        (json.dumps({**LINE, "rool": "admin"}), "there is no field 'rool'"),
        (json.dumps({**LINE, "role": "root"}), "role must be user or admin, not 'root'"),
        (json.dumps({**LINE, "name": ""}), "name is missing"),
        (json.dumps({**LINE, "name": 7}), "name must be text, not 7"),
        (json.dumps({**LINE, "name": "a\nb"}), "name must be printable text"),
        (json.dumps({**LINE, "salt": "xy"}), "salt must be hexadecimal digits"),
        (json.dumps({**LINE, "sha256": "ab"}), "sha256 must be 64 hexadecimal digits"),
        (json.dumps({**LINE, "tokens_per_minute": 0}), "tokens_per_minute must be a whole number of at least 1, not 0"),
        (json.dumps({**LINE, "requests_per_minute": True}), "requests_per_minute must be a whole number"),
        (json.dumps(LINE) + "\n" + json.dumps(LINE), "line 3: the id"),
    ],
)
def test_lines_that_cannot_be_are_named(tmp_path, line, message):
    path = tmp_path / "keys.jsonl"
    path.write_text("\n" + line + "\n")
    with pytest.raises(ConfigError) as caught:
        KeyFile(path).read()
    assert f"{path} line " in caught.value.message
    assert message in caught.value.message
    assert caught.value.param == "keys_file"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        KeyFile(tmp_path / "none").read()
    with pytest.raises(ConfigError, match=r"the folder .* cannot be opened"):
        KeyFile(tmp_path / "none" / "keys.jsonl").add(new_key("a")[1])
