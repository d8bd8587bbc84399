"""A draft model beside its target: as exact as without, right where the two agree, and its blocks come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deepen import deepen
from tests.support.drafts import draft_proposer
from tests.support.gguf_bytes import gguf_bytes, tiny_llama_metadata, tiny_llama_tensors
from tests.support.tiny import CONFIG, VOCAB, Answer, Rig, TinyModel, request, run, tiny_adapters, tiny_model
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.sampling import SamplingOptions
from tidemill.core.step import RowOptions, SequenceId
from tidemill.core.tokens import EngineStats, TokenRequest
from tidemill.engine.draft_model import DraftModelProposer
from tidemill.engine.factory import build_loop
from tidemill.engine.loop import EngineLoop
from tidemill.engine.proposer import Asked
from tidemill.models.draft_plan import draft_bytes
from tidemill.models.loading import load_model
from tidemill.models.memory_plan import plan_memory
from tidemill.models.shape import read_shape

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
TARGET = tiny_model()
DRAFTS: dict[str, TinyModel] = {"the same": TARGET, "another": tiny_model(seed=12, num_hidden_layers=1)}
SAMPLINGS: list[dict[str, Any]] = [
    {"max_tokens": 50},
    {"temperature": 1.1, "seed": 5, "n": 2, "max_tokens": 40},
    {"temperature": 0.8, "seed": 6, "repetition_penalty": 1.3, "presence_penalty": 0.5, "max_tokens": 40},
    {"temperature": 1.0, "seed": 7, "allowed_token_ids": tuple(range(2, 200, 5)), "min_tokens": 5, "max_tokens": 40},
]


def asked() -> list[TokenRequest]:
    return [
        request(f"r{at}", [1 + (31 * at + 7 * i) % 300 for i in range(12 + 20 * at)], **options)
        for at, options in enumerate(SAMPLINGS)
    ]


def proposer(draft: TinyModel, **changes: Any) -> DraftModelProposer:
    return draft_proposer(draft, **{"vocab_size": VOCAB} | changes)


def answers(made: DraftModelProposer | None, **ways: Any) -> tuple[dict[tuple[str, int], Answer], EngineLoop]:
    loop = Rig(model=TARGET, proposers=[made] if made else [], **ways).make_loop()
    try:
        return run(loop, asked()), loop
    finally:
        loop.close()


PLAIN = answers(None)[0]


@pytest.mark.parametrize(
    "ways",
    [{}, {"max_step_tokens": 16}, {"num_blocks": 13}, {"max_running": 3}, {"prefix_cache": "off"}],
    ids=["plain", "chunks", "preempted", "few at a time", "no cache"],
)
@pytest.mark.parametrize("draft", DRAFTS)
def test_answers_are_those_without_whatever_the_draft_model_says(draft: str, ways: dict[str, Any]) -> None:
    made = proposer(DRAFTS[draft])
    spoken, loop = answers(made, **ways)
    assert spoken == PLAIN
    stats = loop.stats()
    right, guessed = stats.draft_accepted_tokens_total.get("draft", 0), stats.draft_tokens_total["draft"]
    if draft == "the same":
        assert right == guessed, "it draws with the target's noise, penalties and masks"
        assert stats.steps < 200
    else:
        assert right < guessed
    assert made._places._space.pools[0].num_available == 256, "blocks of sequences that have ended"


def test_a_long_prompt_is_read_in_pieces_and_guesses_begin_when_it_is() -> None:
    made = proposer(TARGET, max_step_tokens=16)
    assert answers(made)[0] == PLAIN
    made = proposer(TARGET, max_step_tokens=16)
    loop = Rig(model=TARGET, proposers=[made]).make_loop()
    run(loop, [request("a", [1 + i % 300 for i in range(100)], max_tokens=30)])
    stats = loop.stats()
    # One step reads the prompt, six more tokens come while the model reads 16 a step, then 6 tokens a step.
    assert stats.draft_tokens_total["draft"] == stats.draft_accepted_tokens_total["draft"] > 15
    assert stats.steps == 1 + 6 + -(-23 // 6)
    loop.close()


def test_where_its_blocks_are_short_those_of_others_make_room() -> None:
    """Blocks for one sequence, and answers of several: whoever does not fit is not guessed for."""
    made = proposer(TARGET, num_blocks=9)
    spoken, loop = answers(made)
    assert spoken == PLAIN
    assert loop.stats().draft_accepted_tokens_total["draft"] > 0
    assert made._places._space.pools[0].num_available == 9


def test_nothing_is_guessed_beyond_the_length_that_it_was_made_for() -> None:
    made = proposer(TARGET, max_tokens=40)
    loop = Rig(model=TARGET, proposers=[made]).make_loop()
    run(loop, [request("a", [1 + i % 300 for i in range(30)], max_tokens=60)])
    assert 0 < loop.stats().draft_tokens_total["draft"] <= 10
    loop.close()


def test_tokens_that_only_its_own_table_has_are_not_proposed() -> None:
    """The draft's table is longer, as padded ones are."""
    made = proposer(tiny_model(vocab_size=CONFIG["vocab_size"] + 64), masked=False)  # type: ignore[operator]
    spoken, loop = answers(made)
    assert spoken == PLAIN
    assert loop.stats().draft_tokens_total["draft"] > 0


def test_a_draft_model_that_fails_is_let_alone(caplog: pytest.LogCaptureFixture) -> None:
    made = proposer(TARGET)
    made._executor.close()
    made._executor.submit = _broken  # type: ignore[method-assign]
    spoken, loop = answers(made)
    assert spoken == PLAIN
    assert loop.stats().drafts_total == {}
    assert caplog.text.count("the draft model failed") == 1


def _broken(_: object) -> None:
    raise OSError("gone")


def config(**scheduler: object) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(GOLDEN / "grouped_tied")),
        executor=ExecutorConfig(threads=1, packed_cache="off"),
        scheduler=SchedulerConfig(**scheduler),  # type: ignore[arg-type]
        strict=True,
    )


def said(loop: EngineLoop) -> list[int]:
    sampling = SamplingOptions(temperature=0.0, max_tokens=20, ignore_eos=True)
    loop.add(TokenRequest(request_id="a", prompt=[5, 6, 7, 8], sampling=sampling))
    return [token for _ in range(40) for delta in loop.step() for token in delta.tokens]


def test_a_draft_model_is_loaded_beside_its_target_and_counts_in_the_memory() -> None:
    plain = build_loop(config())
    expected = said(plain)
    plain.close()
    path = GOLDEN / "grouped_tied"
    loop = build_loop(config(speculate=f"ngram,draft:{path}", speculate_length="fixed"))
    assert loop.info.strategies[-2:] == ("ngram-speculation", "draft-speculation")
    assert said(loop) == expected
    assert loop.stats().draft_accepted_tokens_total["draft"] > 5
    loop.close()


def test_a_deeper_model_says_the_same_and_the_original_is_right_about_all_of_it(tmp_path: Path) -> None:
    source = gguf_bytes(tiny_llama_metadata(), tiny_llama_tensors())
    (tmp_path / "deep.gguf").write_bytes(deepen(source, 5))
    (tmp_path / "plain.gguf").write_bytes(source)
    deep = load_model(ModelConfig(path=str(tmp_path / "deep.gguf")))
    plain = load_model(ModelConfig(path=str(tmp_path / "plain.gguf")))
    assert len(deep.weights) == len(plain.weights) + 4 * 9
    names = {name for name in deep.weights if "layers.4." in name}
    for name in names:
        own = deep.weights[name].data
        twin = plain.weights[name.replace("layers.4.", "layers.0.")].data
        zero = "o_proj" in name or "down_proj" in name
        assert not own.any() if zero else (own == twin).all()
    with pytest.raises(ValueError, match="5 layers already"):
        deepen((tmp_path / "deep.gguf").read_bytes(), 5)


@pytest.mark.parametrize(
    ("speculate", "said"),
    [
        ("draft", "draft needs the path of a model, as draft:PATH"),
        ("ngram:x", "ngram takes no path"),
        ("ngrams", "there is no 'ngrams'"),
        ("ngram,ngram", "names a kind twice"),
        ("", "there is no ''"),
    ],
)
def test_a_setting_that_says_nothing_is_refused(speculate: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        build_loop(config(speculate=speculate))
    assert refused.value.param == "speculate"


def test_a_draft_with_another_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    plain, other = tmp_path / "plain.gguf", tmp_path / "other.gguf"
    for path, letter in ((plain, "c"), (other, "x")):
        tokens = ["a", "b", letter, "ab", *tiny_llama_metadata()["tokenizer.ggml.tokens"][4:]]
        changes = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__pre": "gpt-2"}
        path.write_bytes(gguf_bytes(tiny_llama_metadata(**changes), tiny_llama_tensors()))
    made = replace(config(speculate=f"draft:{other}"), model=ModelConfig(path=str(plain)))
    with pytest.raises(ConfigError, match="other has another tokenizer than plain: token 2 is 'x' there and 'c' here"):
        build_loop(made)


def test_a_model_that_makes_vectors_is_no_draft() -> None:
    folder = next(path for path in sorted(GOLDEN.iterdir()) if "bert" in path.name)
    with pytest.raises(ConfigError, match="makes vectors"):
        build_loop(config(speculate=f"draft:{folder}"))


def test_after_guesses_that_were_not_taken_it_goes_on_as_one_that_never_made_them() -> None:
    old, tokens = proposer(TARGET), [1 + 7 * i % 300 for i in range(40)]

    def guess(made: DraftModelProposer, said: list[int]) -> list[int]:
        one = Asked(
            sequence=SequenceId(0), tokens=said, num_prompt=40, scope=("", ""), limit=4, options=lambda _: RowOptions()
        )
        return list(made.propose([one])[0])

    for taken in (4, 0, 2, 1, 3):
        guessed = guess(old, tokens)
        assert guessed == guess(proposer(TARGET), tokens)
        assert len(guessed) == 4
        tokens += [*guessed[:taken], (sum(guessed) + taken) % 300 + 1]


@pytest.mark.parametrize("kv_format", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["gemma3", "mistral_window", "qwen2_window"])
def test_a_draft_with_windows_guesses_to_the_end_of_a_text_in_each_kv_format(name: str, kv_format: Any) -> None:
    """The text goes far beyond what windows alone hold (a pool of 160 tokens)."""
    path = GOLDEN / name
    found = {}
    for speculate in ("off", f"draft:{path}"):
        made = config(speculate=speculate, speculate_length="fixed", max_running=4, max_step_tokens=32)
        executor = replace(made.executor, kv_format=kv_format, kv_check=0)
        loop = build_loop(replace(made, model=ModelConfig(path=str(path)), executor=executor))
        prompt = [1 + i * i % 90 for i in range(170)]
        found[speculate] = run(loop, [request("a", prompt, max_tokens=60)]), loop.stats()
        loop.close()
    (plain, _), (spoken, stats) = found.values()
    assert spoken == plain
    # The draft reads the prompt in pieces of 32 tokens while the target says six more; then all that it says is right.
    assert stats.draft_tokens_total["draft"] == stats.draft_accepted_tokens_total["draft"] >= 40


@pytest.mark.parametrize("kv_format", ["f16", "q8_0", "q4_0"])
def test_a_draft_model_guesses_beside_adapters(kv_format: Any) -> None:
    """It has none itself: right about all that the model says without one, and about less with."""
    executor = ExecutorConfig(threads=1, kv_format=kv_format)
    rows = [replace(one, adapter=adapter) for adapter in ("", "a1", "a3") for one in asked()]
    rows = [replace(one, request_id=f"{one.request_id}{one.adapter}") for one in rows]
    found = []
    for proposers in ([], [proposer(TARGET, executor=executor)]):
        loop = Rig(model=TARGET, executor=executor, adapters=tiny_adapters(TARGET), proposers=proposers).make_loop()
        found.append(run(loop, rows))
        rates = []
        for adapter in ("", "a1", "a3"):
            before = loop.stats()
            run(loop, [one for one in rows if one.adapter == adapter])
            rates.append(_right(loop.stats()) - _right(before))
        loop.close()
    assert found[0] == found[1]
    assert rates[0] > 2 * rates[1] > 0
    assert rates[0] > 2 * rates[2]


def test_adapters_and_a_draft_model_load_together() -> None:
    """Both by the settings: the adapter is the target's alone."""
    found = []
    for speculate in ("off", f"draft:{GOLDEN / 'grouped_tied'}"):
        made = config(speculate=speculate, speculate_length="fixed")
        loop = build_loop(replace(made, model=replace(made.model, lora=(f"all={GOLDEN / 'lora_all'}",))))
        one = request("a", [5, 6, 7, 8], max_tokens=30)
        found.append([run(loop, [replace(one, adapter=adapter)])["a", 0] for adapter in ("", "all")])
        assert loop.stats().draft_tokens_total.get("draft", 0) > 0 or speculate == "off"
        loop.close()
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def _right(stats: EngineStats) -> int:
    return stats.draft_accepted_tokens_total.get("draft", 0)


def test_its_memory_is_taken_off_that_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.engine.factory.available_memory", lambda: 136 * 2**20)
    blocks = []
    for speculate in ("off", f"draft:{GOLDEN / 'grouped_tied'}"):
        loop = build_loop(config(speculate=speculate))
        blocks.append(loop.stats().kv_blocks_total)
        loop.close()
    assert blocks[1] < blocks[0]


def test_the_plan_names_it() -> None:
    made = config(speculate=f"draft:{GOLDEN / 'grouped_tied'}")
    available = 2**30
    draft = draft_bytes(made, available)
    plan = plan_memory(read_shape(made.model), made, available, draft=draft)
    assert plan.total == plan.packed + plan.workspace + plan.kv_bytes + draft
    assert any("the draft model, with a KV of its own" in line for line in plan.explain())
    assert draft_bytes(config(), available) == 0
    assert "draft" not in "".join(plan_memory(read_shape(made.model), config(), available).explain())
