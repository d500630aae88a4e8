"""Traces: the three formats, errors with their line, and made-up ones."""

import io
from itertools import pairwise
from pathlib import Path

import pytest

from vllm_mm.virtual.generate import Kind, generate, popularity, tag
from vllm_mm.virtual.trace import Request, TraceError, find, parse, read, shipped, write

OWN = "timestamp,model,prompt_tokens,output_tokens\n100.5,a,10,20\n100.0, b ,1,0\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.4799600,396,109\n"
)
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n\n'
    '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}\n'
)


def test_our_own_form_is_sorted_and_begins_at_zero() -> None:
    """Whatever the order in the file."""
    assert parse(OWN.splitlines(), "t.csv") == (Request(0.0, "b", 1, 0), Request(0.5, "a", 10, 20))


def test_azure_and_mooncake_are_read_by_their_own_names() -> None:
    """Dates with seven digits of a second; milliseconds; no model in either; other keys are ignored."""
    azure = parse(AZURE.splitlines(), "azure.csv")
    assert [(round(r.at, 6), r.model, r.prompt, r.output) for r in azure] == [(0.0, "", 374, 44), (0.5, "", 396, 109)]
    mooncake = parse(MOONCAKE.splitlines(), "mooncake.jsonl")
    assert [(round(r.at, 6), r.prompt, r.output) for r in mooncake] == [(0.0, 6955, 52), (3.053, 6472, 26)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "t: it is empty"),
        ("timestamp,prompt_tokens,output_tokens\n", "t: it has a head but no requests"),
        ("time,model,prompt_tokens\n1,a,2\n", "t:1: there is no column for output_tokens, timestamp"),
        (OWN + "1,a,2\n", "t:4: 3 cells, but the head has 4"),
        (OWN + "\n1,a,-2,3\n", "t:5: prompt_tokens: '-2' is no number of tokens"),
        (OWN + "1,a,2,many\n", "t:4: output_tokens: 'many' is no number of tokens"),
        (OWN + "soon,a,2,3\n", "t:4: timestamp: 'soon' is neither seconds nor a date"),
        (OWN + "nan,a,2,3\n", "t:4: timestamp: 'nan' is no time"),
        (MOONCAKE + "[1]\n", "t:4: an object was expected"),
        (MOONCAKE + "{x}\n", "t:4: it is not JSON"),
        (MOONCAKE + '{"timestamp": 1}\n', "t:4: output_tokens, prompt_tokens is missing"),
        (MOONCAKE + '{"timestamp": "x", "input_length": 1, "output_length": 1}\n', "t:4: timestamp: 'x' is no number"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, told: str) -> None:
    """The line of the file, blank lines counted."""
    with pytest.raises(TraceError) as error:
        parse(text.splitlines(keepends=True), "t")
    assert str(error.value).startswith(told)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """To the millisecond."""
    made = generate(Kind.ZIPF, ["a", "b"], 1.0, 100.0, seed=3)
    out = io.StringIO()
    write(made, out)
    (tmp_path / "x.csv").write_text(out.getvalue())
    back = read(find(str(tmp_path / "x.csv")))
    assert [(r.model, r.prompt, r.output) for r in back] == [(r.model, r.prompt, r.output) for r in made]
    assert all(abs(a.at - (b.at - made[0].at)) < 0.0011 for a, b in zip(back, made, strict=True))


def test_traces_come_with_the_product() -> None:
    """By name, with models, and a name that there is not is answered with those that there are."""
    assert set(shipped()) >= {"zipf6", "bursts6", "day4"}
    for name in shipped():
        assert all(r.model for r in read(find(name)))
    with pytest.raises(TraceError, match=r"there is no file nothing; .*zipf6"):
        find("nothing")
    with pytest.raises(TraceError, match="there is no file"):
        find("../traces/zipf6")


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """A folder, and bytes that are no text."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TraceError, match="not text in UTF-8"):
        read(tmp_path / "bytes")
    with pytest.raises(TraceError, match="Is a directory"):
        read(tmp_path)


HEAD = "timestamp,prompt_tokens,output_tokens"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([HEAD, "0,1,1", "2024-05-10 00:00:01,1,1"], "t:3: timestamp: this is a date, but line 2 has seconds"),
        ([HEAD, "2024-05-10 00:00:01,1,1", "3,1,1"], "t:3: timestamp: this is seconds, but line 2 has a date"),
        ([HEAD, "0,1,1", "-3,1,1"], "t:3: timestamp: '-3' is no time; write seconds from 0"),
        (
            ['{"timestamp": -3, "input_length": 1, "output_length": 1}'],
            "t:1: timestamp: -3 is no number of milliseconds",
        ),
    ],
)
def test_times_that_do_not_go_together_are_told(lines: list[str], told: str) -> None:
    """Dates beside seconds would put decades between two requests."""
    with pytest.raises(TraceError) as raised:
        parse(lines, "t")
    assert told in str(raised.value)


@pytest.mark.parametrize("kind", Kind)
def test_made_up_traces_have_the_rate_and_the_seed_that_they_were_asked_for(kind: Kind) -> None:
    """The same seed gives the same trace, another one another; over a day the rate is right; times rise."""
    made = generate(kind, ["a", "b", "c"], 0.1, 86_400.0, seed=5)
    assert made == generate(kind, ["a", "b", "c"], 0.1, 86_400.0, seed=5)
    assert made != generate(kind, ["a", "b", "c"], 0.1, 86_400.0, seed=6)
    assert len(made) == pytest.approx(8640, rel=0.1)
    assert all(a.at <= b.at for a, b in pairwise(made))
    assert all(r.prompt >= 1 and r.output >= 1 for r in made)
    shares = [sum(r.model == m for r in made) / len(made) for m in "abc"]
    if kind is not Kind.DAY:  # there the most wanted model has its best hours when most comes
        assert shares == pytest.approx(popularity(3, 1.0), abs=0.06)


def test_bursts_come_in_runs_and_days_have_a_night() -> None:
    """What the kinds differ in: how often two in a row are for one model, and how busy the hours are."""
    models = [f"m{i}" for i in range(6)]

    def runs(kind: Kind) -> float:
        made = generate(kind, models, 0.1, 86_400.0, seed=1)
        return sum(a.model == b.model for a, b in pairwise(made)) / len(made)

    assert runs(Kind.BURSTS) > 0.8
    assert runs(Kind.ZIPF) < 0.4
    day = generate(Kind.DAY, models, 0.1, 86_400.0, seed=1)
    night, noon = (sum(lo <= r.at < lo + 7200 for r in day) for lo in (0, 42_000))
    assert noon > 4 * night


def test_only_requests_without_a_model_are_tagged() -> None:
    """Evenly where there is no skew; those that have a model keep it."""
    bare = [Request(float(i), "" if i else "mine", 1, 1) for i in range(4001)]
    tagged = tag(bare, ["a", "b"], Kind.ZIPF, seed=1, skew=0.0)
    assert tagged[0].model == "mine"
    assert sum(r.model == "a" for r in tagged[1:]) == pytest.approx(2000, abs=150)
