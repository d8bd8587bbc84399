"""Each format on small files made by hand: what is read, what is counted, what is refused and in which words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tidemill.bench.traces.formats import FORMATS, format_of, load_trace
from tidemill.bench.traces.options import ReadOptions
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.trace import Trace
from tidemill.core.errors import SetupError

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read_text(text: str, *, name: str = "trace.txt", read_as: str = "auto", **options: Any) -> Trace:
        path = tmp_path / name
        path.write_text(text)
        return load_trace(path, read_as=read_as, options=ReadOptions(**options))

    return read_text


def refusal(read: Any, text: str, **options: Any) -> str:
    """The message without the folder; it is one line."""
    with pytest.raises(SetupError) as caught:
        read(text, **options)
    assert "\n" not in caught.value.message
    return caught.value.message.rpartition("/")[2]


def shapes(trace: Trace) -> list[tuple[float, int, int]]:
    return [(row.at, row.prompt_tokens, row.output_tokens) for row in trace.rows]


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# -- BurstGPT


def test_burstgpt_counts_from_its_first_row_and_names_model_and_log(read: Any) -> None:
    trace = read(BURST + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n")
    assert (trace.format, trace.notes) == ("burstgpt", ())
    assert shapes(trace) == [(0.0, 472, 18), (40.0, 1087, 230)]
    assert [row.tenant for row in trace.rows] == ["ChatGPT Conversation log", "GPT-4 API log"]


@pytest.mark.parametrize(
    "header",
    [
        "Log Type,Response tokens,Timestamp,Request tokens",
        "log_type,response_tokens,timestamp,request_tokens",
        '"LOG TYPE","RESPONSE TOKENS","TIMESTAMP","REQUEST TOKENS"',
        "\ufeffLog Type,Response tokens,Timestamp,Request tokens",
    ],
)
def test_burstgpt_columns_go_by_name_not_by_place(read: Any, header: str) -> None:
    trace = read(f"{header}\nAPI log,20,1.5,100\nAPI log,30,2.25,200\n")
    assert trace.format == "burstgpt"
    assert shapes(trace) == [(0.0, 100, 20), (0.75, 200, 30)]


def test_burstgpt_sessions_have_turns_and_the_time_between_them(read: Any) -> None:
    trace = read(
        BURST_3
        + "10,a,4,GPT-4,100,20,120,Conversation log\n"
        + "11,,2,GPT-4,50,5,55,API log\n"
        + "20,a,3,GPT-4,140,20,160,Conversation log\n"
        + "21,a,3,GPT-4,180,20,200,Conversation log\n"
    )
    assert [(row.session, row.turn, row.think) for row in trace.rows] == [
        ("a", 0, None),
        (None, 0, None),
        ("a", 1, 6.0),  # 20 - (10 + 4)
        ("a", 2, None),  # sent before the answer of 20 had ended
    ]
    assert trace.notes == (
        "1 turns came before the answer of the turn before had ended; their time to think is unknown",
    )


def test_failed_requests_are_counted_and_can_be_kept(read: Any) -> None:
    text = BURST + "1,ChatGPT,100,0,100,API log\n2,ChatGPT,0,0,0,API log\n3,ChatGPT,10,1,11,API log\n"
    dropped = read(text)
    assert shapes(dropped) == [(2.0, 10, 1)]
    assert dropped.notes == (
        "1 rows have no output tokens (failed requests) and were left out",
        "1 rows have an empty prompt and were left out",
    )
    kept = read(text, empty="keep")
    assert shapes(kept) == [(0.0, 100, 1), (2.0, 10, 1)]
    assert kept.notes[0] == "1 rows have no output tokens (failed requests) and ask for one"


def test_a_wrong_total_is_counted(read: Any) -> None:
    trace = read(BURST + "1,ChatGPT,100,10,111,API log\n2,ChatGPT,100,10,110,API log\n")
    assert trace.notes == ("1 rows have a total that is not the sum of their tokens; the sum counts",)


def test_rows_out_of_order_are_sorted_and_counted(read: Any) -> None:
    trace = read(BURST + "5,a,1,1,2,x\n7,a,2,1,3,x\n3,a,3,1,4,x\n7,a,4,1,5,x\n")
    assert shapes(trace) == [(0.0, 3, 1), (2.0, 1, 1), (4.0, 2, 1), (4.0, 4, 1)]
    assert trace.notes == ("1 rows came earlier than the row above them; rows were put into order of arrival",)
    with_sessions = read(BURST_3 + "5,s,1,a,1,1,2,x\n3,s,1,a,2,1,3,x\n")
    assert [(row.at, row.prompt_tokens, row.turn, row.think) for row in with_sessions.rows] == [
        (0.0, 2, 0, None),
        (2.0, 1, 1, 1.0),
    ]
    assert with_sessions.notes == trace.notes


# -- Azure


def test_azure_gaps_are_exact_whatever_the_digits(read: Any) -> None:
    """Rows 2, 3, 7 and 14 ms after the first: a fraction cut to two digits would make a burst of them."""
    stamps = ["46.6805900", "46.6825900", "46.68359", "46.687590", "46.69459"]
    trace = read(AZURE + "".join(f"2023-11-16 18:15:{stamp},10,5\n" for stamp in stamps))
    assert trace.format == "azure"
    assert [row.at for row in trace.rows] == [0.0, 0.002, 0.003, 0.007, 0.014]


@pytest.mark.parametrize(
    ("first", "second", "gap"),
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.017335+00:00", 0.007405),
        ("2024-05-10T00:00:00Z", "2024-05-10T01:00:01+01:00", 1.0),
        ("2024-05-10 00:00:00-0530", "2024-05-10 05:30:00.5", 0.5),
        ("2023-12-31 23:59:59", "2024-01-01 00:00:00.1", 1.1),
        ("2024-05-10 00:00:00.123456789", "2024-05-10 00:00:00.123456790", 1e-9),
    ],
)
def test_azure_time_zones(read: Any, first: str, second: str, gap: float) -> None:
    assert read(f"{AZURE}{first},10,5\n{second},10,5\n").rows[1].at == gap


# -- Mooncake


def test_mooncake_blocks_are_pieces_and_the_last_may_be_short(read: Any) -> None:
    trace = read(
        lines(
            {"timestamp": 27482, "input_length": 1124, "output_length": 52, "hash_ids": [5, 46, 47]},
            {"timestamp": 30535, "input_length": 512, "output_length": 26, "hash_ids": [5]},
            {"timestamp": 30535, "input_length": 100, "output_length": 3, "hash_ids": [5 + 2**32]},
            {"timestamp": 30536, "input_length": 100, "output_length": 3},
        )
    )
    assert trace.format == "mooncake"
    assert shapes(trace) == [(0.0, 1124, 52), (3.053, 512, 26), (3.053, 100, 3), (3.054, 100, 3)]
    assert [row.prefix for row in trace.rows] == [
        (Segment("5", 512), Segment("46", 512), Segment("47", 100)),
        (Segment("5", 512),),
        (Segment("4294967301", 100),),
        (),
    ]


@pytest.mark.parametrize(("tokens", "ids"), [(30, 2), (512, 2), (1025, 2), (0, 0)])
def test_mooncake_ids_have_to_fit_the_prompt(read: Any, tokens: int, ids: int) -> None:
    good = {"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    bad = {"timestamp": 2, "input_length": tokens, "output_length": 1, "hash_ids": list(range(ids))}
    if not ids:
        assert read(lines(good, bad)).notes == ("1 rows have an empty prompt and were left out",)
        return
    assert refusal(read, lines(good, bad)) == (
        f"trace.txt:2: hash_ids: 2 ids of 512 tokens do not fit a prompt of {tokens}; "
        "correct the row, or say the block's tokens with --hash-block"
    )


def test_mooncake_blocks_of_another_size(read: Any) -> None:
    record = {"timestamp": 1, "input_length": 30, "output_length": 1, "hash_ids": [1, 2]}
    assert read(lines(record), hash_block=16).rows[0].prefix == (Segment("1", 16), Segment("2", 14))


# -- conversations

TALK = {
    "id": "x",
    "conversations": [
        {"from": "system", "value": "s" * 40},
        {"from": "human", "value": "h" * 8},
        {"from": "gpt", "value": "g" * 12},
        {"from": "human", "value": "i" * 4},
        {"from": "gpt", "value": "j" * 5},
    ],
}


@pytest.mark.parametrize("whole", [True, False], ids=["array", "lines"])
def test_later_turns_of_a_conversation_begin_with_the_earlier(read: Any, whole: bool) -> None:
    other = {"messages": [{"role": "system", "content": "s" * 40}, {"role": "user", "content": "?"}]}
    other["messages"] += [{"role": "assistant", "content": [{"type": "text", "text": "yes."}]}]
    trace = read(json.dumps([TALK, other], indent=1) if whole else lines(TALK, other))
    assert trace.format == "conversations"
    assert shapes(trace) == [(0.0, 12, 3), (0.0, 16, 2), (0.0, 11, 1)]
    first, second, third = trace.rows
    assert second.prefix[:2] == first.prefix
    assert third.prefix[0] == first.prefix[0]
    assert third.prefix[1] != first.prefix[1]
    assert [(row.session, row.turn, row.think) for row in trace.rows] == [("0", 0, None), ("0", 1, 0.0), ("1", 0, None)]
    assert trace.notes == (
        "tokens are estimated at 4 bytes of text each; --tokenizer counts those of a model",
        "conversations have no arrivals (all at 0 s) and no times to think (0 s)",
    )


def test_tokens_of_a_tokenizer(read: Any) -> None:
    trace = read(lines(TALK), encode=lambda text: list(text.encode()))
    assert shapes(trace) == [(0.0, 48, 12), (0.0, 64, 5)]
    assert not any("estimated" in note for note in trace.notes)


def test_what_a_conversation_lacks_is_counted(read: Any) -> None:
    unanswered = {"conversations": [{"from": "gpt", "value": "hello"}, {"from": "human", "value": "hi"}]}
    assert read(lines(TALK, unanswered)).notes[2:] == (
        "1 answers follow no message of a user; they are part of the prompts after them",
        "1 last messages of users have no answer and were left out",
        "1 conversations have no answered message of a user and were left out",
    )


# -- vLLM


def test_vllm_prompts_that_begin_alike_share_pieces(read: Any) -> None:
    same = "x" * 128
    trace = read(lines({"prompt": same + "abc", "output_tokens": 7}, {"prompt": list(range(20)), "output_tokens": 1}))
    assert (trace.format, shapes(trace)) == ("vllm-prompts", [(0.0, 33, 7), (0.0, 20, 1)])
    assert [piece.tokens for row in trace.rows for piece in row.prefix] == [16, 16, 1, 16, 4]
    assert refusal(read, lines({"prompt": "a"})) == (
        "trace.txt:1: output_tokens: is missing; add it, or give --output-tokens for all such rows"
    )
    assert shapes(read(lines({"prompt": "a"}), output_tokens=9)) == [(0.0, 1, 9)]


def test_vllm_results(read: Any) -> None:
    result = {
        "model_id": "m",
        "input_lens": [10, 20, 30],
        "output_lens": [5, 0, 7],
        "errors": ["", "", "late"],
        "start_times": [100.5, 101.0, 103.0],
    }
    trace = read(json.dumps(result, indent=2))
    assert (trace.format, shapes(trace)) == ("vllm-results", [(0.0, 10, 5)])
    assert trace.notes == ("2 requests failed or have no output tokens and were left out",)
    assert shapes(read(json.dumps(result), empty="keep")) == [(0.0, 10, 5), (0.5, 20, 1), (2.5, 30, 7)]
    del result["start_times"]
    assert "the result has no start_times: all requests are at 0 s" in read(json.dumps(result)).notes
    result["output_lens"] = [5]
    assert "output_lens: is no list with a value for each request" in refusal(read, json.dumps(result))


# -- the simulators' and our own


def test_columns_of_simulators(read: Any) -> None:
    head = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
    trace = read(head + "0,2,0,1,1,4096,32\n1,2,0,3,1,2048,8\n")
    assert (trace.format, shapes(trace)) == ("splitwise", [(0.0, 4096, 32), (2.0, 2048, 8)])
    trace = read("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,7,8\n0.75,9,1\n")
    assert (trace.format, shapes(trace)) == ("vidur", [(0.0, 7, 8), (0.25, 9, 1)])
    trace = read("num_prefill_tokens,num_decode_tokens,pd_ratio\n7,8,1\n")
    assert trace.notes == ("the file has lengths and no arrivals: all requests are at 0 s",)


def test_our_own_keeps_its_times(read: Any) -> None:
    record = {"at": 2.5, "prompt_tokens": 9, "output_tokens": 1, "prefix": [["a", 4], ["b", 5]], "turn": 3}
    record |= {"session": "s", "think": 0.5, "tenant": "t", "priority": -1}
    trace = read(lines({"at": 1, "prompt_tokens": 1, "output_tokens": 1}, record))
    assert trace.rows == (
        TraceRow(at=1.0, prompt_tokens=1, output_tokens=1),
        TraceRow(
            at=2.5,
            prompt_tokens=9,
            output_tokens=1,
            prefix=(Segment("a", 4), Segment("b", 5)),
            session="s",
            turn=3,
            think=0.5,
            tenant="t",
            priority=-1,
        ),
    )


# -- every format


OWN = {"at": 0, "prompt_tokens": 4, "output_tokens": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BURST + "1,a,2,3,5,x\n\n4,a,oops,3,5,x\n", "trace.txt:4: Request tokens: 'oops' is not a number"),
        (BURST + "1,a,2.5,3,5,x\n", "trace.txt:2: Request tokens: '2.5' is not a count of tokens"),
        (BURST + "1,a,-2,3,5,x\n", "trace.txt:2: Request tokens: '-2' is not a count of tokens"),
        (BURST + "1,a,99999999999,3,5,x\n", "trace.txt:2: Request tokens: '99999999999' is not a count"),
        (BURST + "nan,a,2,3,5,x\n", "trace.txt:2: Timestamp: 'nan' is not a number; write a finite number"),
        (BURST + "1,a,2,3\n", "trace.txt:2: row: has 4 columns where the header has 6; complete the row or remove it"),
        (BURST_3 + "1,s,-4,a,1,1,2,x\n", "trace.txt:2: Elapsed time: '-4' is below 0"),
        (BURST.replace("Model", "Timestamp"), "trace.txt:1: Timestamp: stands twice in the header"),
        (AZURE + "yesterday,1,2\n", "trace.txt:2: TIMESTAMP: 'yesterday' is not a time; write it as 2023-11-16 18:15"),
        (AZURE + "2023-13-01 00:00:00,1,2\n", "trace.txt:2: TIMESTAMP: '2023-13-01 00:00:00': month must be"),
        (AZURE + "2023-01-01 00:00:00+99:00,1,2\n", "trace.txt:2: TIMESTAMP: '2023-01-01 00:00:00+99:00': "),
        (AZURE, "trace.txt: no request is left; name a file with at least one"),
        (AZURE + "2023-11-16 18:15:46,1,0\n", "trace.txt: no request is left (1 rows have no output tokens"),
        ("", "trace.txt: the file is empty; name a file with at least one request"),
        ("a,b\n1,2\n", "trace.txt:1: no known format: its header is 'a,b'; name one with --format: tidemill, mooncake"),
        ('{"x": 1}\n', "trace.txt:1: no known format: its first record has the keys x; name one with --format"),
        ("[]", "trace.txt:1: no known format: its first record has the keys (none)"),
        (lines(OWN) + "{oops\n", "trace.txt:2: column 2: not JSON (Expecting property name enclosed in double quotes)"),
        (lines(OWN, [1]), "trace.txt:2: record: is no JSON object; write {...}"),
        (lines(OWN | {"at": -1}), "trace.txt:1: at: -1 is below 0; write a number of at least 0"),
        (lines(OWN | {"at": True}), "trace.txt:1: at: True is not a number"),
        (lines(OWN | {"prompt_tokens": 0}), "trace.txt:1: prompt_tokens: 0 is not a count of tokens"),
        (lines(OWN | {"color": 1}), "trace.txt:1: color: is no field of a request; remove it; the fields are at, prom"),
        (lines(OWN | {"prefix": [["a", 5]]}), "trace.txt:1: prefix: has 5 tokens and the prompt 4; make it no longer"),
        (lines(OWN | {"prefix": [["a", 1], ["b", 0]]}), "trace.txt:1: prefix[1]: is no piece of a prompt"),
        (lines(OWN | {"session": 7}), "trace.txt:1: session: 7 is no text; write it in quotes, or leave it out"),
        (lines(OWN | {"priority": "high"}), "trace.txt:1: priority: 'high' is no whole number"),
        (lines({"timestamp": -1, "input_length": 1, "output_length": 1}), "trace.txt:1: timestamp: -1 is below 0"),
        (lines({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 7}), "trace.txt:1: hash_ids: is no"),
        (lines({"conversations": "hi"}), "trace.txt:1: conversations: is no list of messages"),
        (lines({"messages": [{"role": "user"}]}), "trace.txt:1: messages[0]: has no role or no text"),
        ("[" * 100_000, "trace.txt:1: column 1: not JSON"),
    ],
)
def test_what_is_wrong_is_named_by_file_line_and_column(read: Any, text: str, message: str) -> None:
    assert refusal(read, text).startswith(message)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="No such file or directory; name a file that can be read"):
        load_trace(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(AZURE.encode() + b"\xff\xfe\n")
    with pytest.raises(SetupError, match="is not UTF-8; convert the file"):
        load_trace(tmp_path / "latin.csv")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(AZURE.encode() * 1000)[:-20])
    with pytest.raises(SetupError, match=r"cut.csv.gz: .*; name a file that can be read"):
        load_trace(tmp_path / "cut.csv.gz")


def test_packed_files_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv.gz"
    path.write_bytes(gzip.compress((BURST + "1,a,2,3,5,x").replace("\n", "\r\n").encode()))
    assert shapes(load_trace(path)) == [(0.0, 2, 3)]


def test_a_format_can_be_named(read: Any) -> None:
    assert "--format: 'csv' is no format; it is auto or one of tidemill" in refusal(read, BURST, read_as="csv")
    message = refusal(read, BURST + "1,a,2,3,5,x\n", read_as="vidur")
    assert message == "trace.txt:2: numprefilltokens: is missing; add it, or name the file's format with --format"


def test_formats_do_not_take_each_others_files(tmp_path: Path) -> None:
    examples = {
        "tidemill": lines(OWN),
        "mooncake": lines({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1]}),
        "vllm-results": lines({"input_lens": [1], "output_lens": [1]}),
        "conversations": lines(TALK),
        "vllm-prompts": lines({"prompt": "a", "output_tokens": 1}),
        "burstgpt": BURST,
        "azure": AZURE,
        "splitwise": "arrival_timestamp,prompt_size,token_size\n",
        "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n",
    }
    assert examples.keys() == FORMATS.keys()
    for name, text in examples.items():
        (tmp_path / name).write_text(text)
        assert format_of(tmp_path / name).name == name
