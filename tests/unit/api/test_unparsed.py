"""A large body that is read past the parser."""

import sys

from vllm_mm.api.unparsed import LargeBody


def test_it_takes_what_is_its_own_and_leaves_the_rest() -> None:
    """In any pieces; what comes behind it is the next request's."""
    body = LargeBody(10, [b"abc", b""])
    assert (body.fill(b"defg"), body.filled, body.complete) == (b"", 7, False)
    assert (body.fill(b"hijPOST"), bytes(body.buffer), body.complete) == (b"POST", b"abcdefghij", True)
    exact = LargeBody(3, [b"ab"])
    assert (exact.fill(b"c"), exact.complete) == (b"", True)


def test_what_is_announced_takes_no_memory() -> None:
    """A thousand clients may announce the largest body that is taken, and send a byte a second of it."""
    body = LargeBody(1 << 30, [b"x" * 1000])
    body.fill(b"x" * 1000)
    assert sys.getsizeof(body.buffer) < 4000
