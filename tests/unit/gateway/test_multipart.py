"""Forms with files in them: the model is found, what is broken is told, and every split gives the same bytes."""

import asyncio
from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mm.domain.errors import BadRequest, MMError, PayloadTooLarge
from vllm_mm.gateway import upload
from vllm_mm.gateway.multipart import VALUE, Form
from vllm_mm.gateway.ports import Rules
from vllm_mm.gateway.upload import IN_MEMORY, Upload

BOUNDARY = "----b"
TYPE = f'multipart/form-data; boundary="{BOUNDARY}"'.encode()


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    file = f'; filename="{filename}"' if filename is not None else ""
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value + b"\r\n"


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


FILE = part("file", b"\r\n------\r\n----b\x00\xff" * 50, "a.wav")
MODEL = part("model", b"org/model-1")
STREAM = part("stream", b"True")
WHOLE = body(MODEL, STREAM, FILE)
LATE = body(FILE, part("prompt", b"x" * 2000), MODEL)
PIECES = st.lists(st.integers(0, 4000), max_size=40)


def split(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({p % (len(data) + 1) for p in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(marks)]


def read(pieces: list[bytes], content_type: bytes = TYPE) -> Form:
    form = Form(content_type)
    for piece in pieces:
        form.feed(piece)
    form.finish()
    return form


@settings(max_examples=300)
@given(st.sampled_from([WHOLE, LATE]), PIECES)
def test_the_model_is_found_in_any_split(data: bytes, places: list[int]) -> None:
    """And where its value stands."""
    form = read(split(data, places))
    assert form.model == "org/model-1"
    assert form.span is not None
    assert data[slice(*form.span)] == b"org/model-1"
    assert form.stream == (data is WHOLE)
    assert form.size == len(data)


def test_a_file_that_is_called_like_a_field_is_none() -> None:
    """What has a file name is a file."""
    with pytest.raises(BadRequest, match="names no model"):
        read([body(part("model", b"x", "model.txt"))])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "ends after 0 bytes, without its last boundary"),
        (b"hello", "broken at byte 0"),
        (WHOLE[:-8], f"ends after {len(WHOLE) - 8} bytes, without its last boundary"),
        (body(FILE), "names no model"),
        (body(part("model", b"")), "names no model"),
        (body(MODEL, part("model", b"other")), "names two models"),
        (body(part("model", b"\xff")), "not valid UTF-8"),
        (body(part("model", b"x" * (VALUE + 1))), "`model` is longer than 1024 bytes"),
        (f"--{BOUNDARY}\r\nContent-Type: x\r\n\r\n\r\n".encode() + body(MODEL), "no `Content-Disposition: form-data`"),
        (f"--{BOUNDARY}\r\nbad header\r\n\r\n".encode() + body(MODEL), "broken at byte"),
        (f"--{BOUNDARY}x\r\n".encode() + body(MODEL), "broken at byte"),
    ],
)
def test_what_is_broken_is_told(data: bytes, told: str) -> None:
    """However it is split."""
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        with pytest.raises(BadRequest) as caught:
            read(pieces)
        assert told in caught.value.message


@pytest.mark.parametrize(
    "kind", [b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=" + b"x" * 300]
)
def test_what_is_no_form(kind: bytes) -> None:
    """It says what to send."""
    with pytest.raises(BadRequest):
        Form(kind)


def test_the_same_model_twice_is_one() -> None:
    """Only two different ones contradict each other."""
    assert read([body(MODEL, MODEL)]).model == "org/model-1"


async def gathered(pieces: list[bytes], before: int, rename: str | None, rules: Rules) -> tuple[bytes, int | None]:
    """What an engine gets that comes when `before` pieces are there."""
    data = b"".join(pieces)
    it = Upload(Form(TYPE), len(data), rules)
    taken: list[bytes] = []

    async def send() -> None:
        for piece in pieces:
            await it.room()
            it.push(piece)
        it.complete()

    async def take() -> None:
        name, _ = await it.named()
        assert name == "org/model-1"
        while it.size < sum(map(len, pieces[:before])):
            await asyncio.sleep(0)
        if rename is not None:
            it.rename(rename)
        taken.append(b"%d" % (it.length or 0))
        taken.extend([piece async for piece in it.pieces()])

    with closing(it):
        await asyncio.gather(send(), take())
    return b"".join(taken[1:]), int(taken[0])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([WHOLE, LATE]), PIECES, st.integers(0, 40), st.sampled_from([None, "m", "a/longer/name/than/that"])
)
def test_every_split_gives_the_same_bytes(data: bytes, places: list[int], before: int, rename: str | None) -> None:
    """Whenever the engine comes; with another name in place of the model's, where that is wanted, and the length that is told."""
    got, length = asyncio.run(gathered(split(data, places), before, rename, Rules()))
    assert got == (data if rename is None else data.replace(b"org/model-1", rename.encode()))
    assert length == len(got)


async def test_a_form_that_names_its_model_too_late() -> None:
    """413 that says which limit, and to send it first; not when it comes first."""
    rules = Rules(upload_held=1000)
    with closing(Upload(Form(TYPE), None, rules)) as late:
        with pytest.raises(PayloadTooLarge, match=r"first 1000 bytes \(limits.upload_held\). Send it before the file"):
            late.push(LATE[:2000])
        with pytest.raises(PayloadTooLarge):
            await late.named()
    with closing(Upload(Form(TYPE), None, rules)) as early:
        early.push(MODEL + LATE[:2000])
        assert await early.named() == ("org/model-1", False)


async def test_no_more_is_read_than_may_be_held() -> None:
    """Before the engine comes: `upload_held`; afterwards what it has not read yet, in memory."""
    it = Upload(Form(TYPE), None, Rules(upload_held=1 << 20))
    it.push(MODEL + part("file", b"", "x")[:-2])
    pushed = 0

    async def send() -> None:
        nonlocal pushed
        for _ in range(64):
            await it.room()
            it.push(b"x" * (1 << 16))
            pushed += 1

    async def stops_at(count: int) -> None:
        async with asyncio.timeout(20):
            while pushed < count:
                await asyncio.sleep(0.001)
        for _ in range(20):  # and goes no further
            await asyncio.sleep(0.001)
        assert pushed == count

    sending = asyncio.create_task(send())
    pieces = it.pieces()
    try:
        await stops_at(16)
        await anext(pieces)
        await stops_at(16 + IN_MEMORY // (1 << 16))
        await anext(pieces)
    finally:
        it.close()
        with pytest.raises(BadRequest, match="over before its body"):
            await asyncio.wait_for(sending, 20)
        await pieces.aclose()


async def test_what_is_wrong_is_told_to_who_waits() -> None:
    """At once, wherever the request is: for the name, in the queue, or in the middle of the body."""
    with closing(Upload(Form(TYPE), None, Rules())) as it:
        told: list[MMError] = []
        it.on_fail = told.append
        it.push(MODEL)
        with pytest.raises(BadRequest):
            it.push(f"--{BOUNDARY}\r\nbad header\r\n\r\n".encode())
        assert len(told) == 1
        with pytest.raises(BadRequest):
            [piece async for piece in it.pieces()]


async def test_the_whole_has_a_limit_too() -> None:
    """413 with the limit, for a body whose length was not told."""
    with (
        closing(Upload(Form(TYPE), None, Rules(upload=100))) as it,
        pytest.raises(PayloadTooLarge, match=r"larger than 100 bytes \(limits.upload\)"),
    ):
        it.push(LATE)
    assert upload.too_large(7).message.startswith("The form is larger than 7 bytes")
