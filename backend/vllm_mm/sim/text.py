"""Deterministic answers: a function of the model's name, the prompt, and the index of the token, and of nothing else."""

import hashlib
import math
from collections.abc import Sequence

_WORDS = """
the of and to in is that it was for on are as with they at be this from have or by one had not but what all
were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now people my
made over did down only way find use may water long little very after words called just where most know get
through back much before go good new write our used me man too any day same right look think also around
another came come work three must because does part
""".split()  # noqa: SIM905 - a list of literals would fill pages
VOCABULARY = 49_152
"""Numbers below it are taken for tokens, whatever they stand for."""
_MASK = 2**64 - 1
_GARBAGE = "!"


def seed_of(*parts: str) -> int:
    """64 bits that depend on every part."""
    return int.from_bytes(
        hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=8).digest(), "big"
    )


def _mix(seed: int, index: int) -> int:
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Answer:
    """The text that a model gives to a prompt. `garbled`: the weights are not what they should be."""

    __slots__ = ("_garbled", "_seed")

    def __init__(self, model: str, prompt: str, *, garbled: bool = False) -> None:
        self._seed = seed_of(model, prompt)
        self._garbled = garbled

    @property
    def natural_length(self) -> int:
        """Tokens until the model would stop by itself: 16 to 143."""
        return 16 + self._seed % 128

    def token(self, index: int) -> str:
        """One word, with the space before it from the second on."""
        if self._garbled:
            return _GARBAGE
        word = _WORDS[_mix(self._seed, index) % len(_WORDS)]
        return f" {word}" if index else word.capitalize()

    def text(self, start: int, end: int) -> str:
        return "".join([self.token(index) for index in range(start, end)])


class Formed:
    """A text that is given, as an answer of tokens of `size` characters each."""

    __slots__ = ("_size", "_text")

    def __init__(self, text: str, size: int) -> None:
        self._text = text
        self._size = size

    @property
    def natural_length(self) -> int:
        """Tokens of all of it."""
        return max(1, -(-len(self._text) // self._size))

    def token(self, index: int) -> str:
        """Nothing behind the end: as a real engine, whose last tokens show nothing."""
        return self.text(index, index + 1)

    def text(self, start: int, end: int) -> str:
        return self._text[start * self._size : end * self._size]


def cut_at_stop(answer: "Answer | Formed", total: int, stops: Sequence[str]) -> tuple[int, int | None, str | None]:
    """Where a stop text ends the answer: tokens to generate, characters to show (None: all), and the text that stopped it."""
    if not stops:
        return total, None, None
    longest = max(len(stop) for stop in stops)
    text = ""
    for index in range(total):
        before = len(text)
        text += answer.token(index)
        found = [(text.find(stop, max(0, before - longest)), stop) for stop in stops]
        hits = [(at, stop) for at, stop in found if at >= 0]
        if hits:
            at, stop = min(hits)
            return index + 1, at, stop
    return total, None, None


def embedding(model: str, text: str, dimensions: int, *, garbled: bool = False) -> list[float]:
    """A unit vector."""
    seed = seed_of(model, text, "garbled" if garbled else "embedding")
    raw = [_mix(seed, index) / 2**63 - 1.0 for index in range(dimensions)]
    norm = math.sqrt(math.fsum(x * x for x in raw)) or 1.0
    return [x / norm for x in raw]


def score(model: str, query: str, document: str, *, garbled: bool = False) -> float:
    """Between 0 and 1; higher when the texts share words."""
    asked = set(query.lower().split())
    given = set(document.lower().split())
    shared = len(asked & given) / max(1, len(asked))
    noise = _mix(seed_of(model, query, document, "garbled" if garbled else "score"), 0) / 2**64
    return 0.8 * shared + 0.2 * noise if not garbled else noise


def tokenize(text: str) -> list[int]:
    """Four bytes of UTF-8 a token; reversible, and about as many tokens as a real tokenizer makes of English."""
    data = text.encode(errors="surrogatepass")
    return [int.from_bytes(b"\1" + data[at : at + 4], "big") for at in range(0, len(data), 4)]


def count_tokens(text: str) -> int:
    """How many tokens `tokenize` makes."""
    return (len(text.encode(errors="surrogatepass")) + 3) // 4


def in_vocabulary(token: int) -> bool:
    """Whether it is a token of ours, or a number as small as real tokens are."""
    packed = token.to_bytes(max(1, (token.bit_length() + 7) // 8), "big") if token >= 0 else b""
    return 0 <= token < VOCABULARY or (2 <= len(packed) <= 5 and packed[0] == 1)


def detokenize(tokens: Sequence[int]) -> str:
    """The text of these tokens; numbers that are no token of ours become a question mark."""
    data = b""
    for token in tokens:
        packed = token.to_bytes(max(1, (token.bit_length() + 7) // 8), "big")
        data += packed[1:] if len(packed) <= 5 and packed[0] == 1 else b"?"
    return data.decode(errors="replace")
