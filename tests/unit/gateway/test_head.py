"""What is read from a request's headers, and what the engine gets to see of them."""

import re
from pathlib import Path

import pytest

from vllm_mm import gateway
from vllm_mm.domain.errors import BadRequest
from vllm_mm.gateway.head import Names, priority, read_head, seconds_to_wait, wants_progress, wants_timings


def test_only_end_to_end_headers_go_on() -> None:
    """Secrets, hop-by-hop headers, those that Connection names and our own stay here."""
    head = read_head(
        [
            (b"host", b"h"), (b"authorization", b"Bearer s"), (b"x-api-key", b"s"), (b"cookie", b"c"), (b"connection", b"close, X-One"),
            (b"connection", b"x-two"), (b"x-one", b"1"), (b"x-two", b"2"), (b"te", b"t"), (b"upgrade", b"h2c"), (b"expect", b"100-continue"),
            (b"content-length", b"3"), (b"transfer-encoding", b"chunked"), (b"accept-encoding", b"gzip"), (b"x-vllm-mm-wait", b"3"),
            (b"x-vllm-mm-anything", b"3"), (b"x-request-id", b"r"), (b"proxy-authorization", b"p"), (b"content-type", b"application/json"),
            (b"traceparent", b"00-1"), (b"origin", b"https://o"), (b"content-encoding", b"gzip"), (b"x-other", b""),
        ]
    )  # fmt: skip
    assert head.forward == [
        (b"content-type", b"application/json"), (b"traceparent", b"00-1"), (b"origin", b"https://o"),
        (b"x-other", b""),
    ]  # fmt: skip
    assert (head.authorization, head.api_key, head.request_id, head.wait) == (b"Bearer s", b"s", b"r", b"3")
    assert (head.origin, head.encoding) == (b"https://o", b"gzip")


def test_wait() -> None:
    """0 to 600 seconds; without the header the default."""
    assert seconds_to_wait(None, 30.0) == 30.0
    assert [seconds_to_wait(v, 1) for v in (b"0", b"600", b"1.5", b"007")] == [0, 600, 1.5, 7]
    for bad in (b"", b"-1", b"600.1", b"1e2", b"nan", b"inf", b"five", b" 5", b"9" * 5000):
        with pytest.raises(BadRequest, match="0 to 600"):
            seconds_to_wait(bad, 1)


def test_priority_and_progress() -> None:
    """Whole numbers from -100 to 100; 0 or 1."""
    assert [priority(v) for v in (None, b"0", b"-100", b"100")] == [0, 0, -100, 100]
    for bad in (b"", b"101", b"-101", b"1.0", b"high"):
        with pytest.raises(BadRequest):
            priority(bad)
    assert [wants_progress(v, default=False) for v in (None, b"0", b"1")] == [False, False, True]
    assert [wants_timings(v, default=True) for v in (None, b"0", b"1")] == [True, False, True]
    with pytest.raises(BadRequest):
        wants_progress(b"yes", default=True)


def test_names() -> None:
    """Ours never repeat; a client's own is taken when it is harmless."""
    names = Names()
    assert len({names.new() for _ in range(1000)}) == 1000
    assert names.given(b"abc-1.2:3/x=@~+_") == "abc-1.2:3/x=@~+_"
    for bad in (None, b"", b"a b", b"x" * 129, b"\xff", b"a\x00", b'"'):
        assert names.given(bad) is None


def test_every_header_of_ours_is_documented() -> None:
    """In the tables of docs/requests.md, and no other there."""
    source = "".join(path.read_text() for path in sorted(Path(gateway.__path__[0]).glob("*.py")))
    ours = set(re.findall(r'b"(x-vllm-mm-[a-z-]*[a-z])"', source))
    ours |= {f"x-vllm-mm-{name}" for name in re.findall(r'_OURS \+ b"([a-z-]+)"', source)}
    page = (Path(__file__).parents[3] / "docs/requests.md").read_text()
    tables = "".join(line.split("| ")[1] for line in page.splitlines() if line.startswith("| `X-"))
    assert {"x-vllm-mm-wait", "x-vllm-mm-rules", "x-vllm-mm-ttft-ms"} < ours
    assert {name.lower() for name in re.findall(r"`(X-VLLM-MM-[A-Za-z-]+)`", tables)} == ours
