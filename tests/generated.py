"""Requests by the hundred, valid and broken, for every route of the data plane: the same ones for the same seed.

`asks` makes them from tables: each field of a body with values that engines take and values that they refuse, alone and mixed, and
each way to spell a body or a head. Answers take a few tokens, and are the same each time (greedy, or with a seed).
"""

import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
GONE = object()
"""In place of a value: the field is left out."""


@dataclass(frozen=True)
class Ask:
    """One request, as it goes over the wire."""

    name: str
    """Of no other: the route, and what is special."""
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    method: str = "POST"

    @property
    def told(self) -> Json:
        """The body, if it is a JSON object; else nothing."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Surface:
    """A route: a body that it takes, and other values of its fields."""

    path: str
    base: Json
    good: Mapping[str, Sequence[Any]]
    bad: Mapping[str, Sequence[Any]]
    streams: bool = False


HI = [{"role": "user", "content": "Say hi."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

SAMPLING_GOOD: Mapping[str, Sequence[Any]] = {
    "temperature": (0.0, 0.7, 2, None, "0.5", True),
    "top_p": (0.5, 1, None),
    "top_k": (5, 0, -1, None),
    "min_p": (0.1, None),
    "seed": (7, None, -1),
    "presence_penalty": (0.5, -2, None),
    "frequency_penalty": (0.5, None),
    "repetition_penalty": (1.1,),
    "stop": ("e", ["e", "zq"], None, [], ""),
    "stop_token_ids": ([2], None),
    "min_tokens": (1, 0),
    "ignore_eos": (True, "false"),
    "logit_bias": ({"5": 1.5}, None, {}),
    "bad_words": (["the"],),
    "skip_special_tokens": (False,),
    "spaces_between_special_tokens": (False,),
    "include_stop_str_in_output": (True,),
    "n": (None, 1),
    "user": ("u1", None),
    "priority": (0,),
    "return_token_ids": (True,),
    "unheard_of": (1, {"a": [None]}),
    "stream": (None, False),
}  # fmt: skip
SAMPLING_BAD: Mapping[str, Sequence[Any]] = {
    "temperature": (-1, 2.5, "hot", [0]),
    "top_p": (0, 1.5, "x", -0.1),
    "top_k": (-2, 1.5, "x"),
    "min_p": (2, -1, "x"),
    "seed": ("x", 1.5, 1 << 70),
    "presence_penalty": (3, "x"),
    "frequency_penalty": (-3, "x"),
    "repetition_penalty": (0, -1, "x"),
    "stop": (5, [1], {"a": 1}),
    "stop_token_ids": (["x"], 2),
    "min_tokens": (-1, "x", 99),
    "ignore_eos": ("maybe", 2),
    "logit_bias": ({"x": 1}, {"99999999": 1}, "x", {"5": "x"}),
    "n": (0, -1, "x", 1.5, 2),
    "user": (5,),
    "stream_options": ({"include_usage": True},),
    "priority": ("x",),
    "prompt_logprobs": (-2, "x"),
    "allowed_token_ids": ([], [99999999], "x"),
}  # fmt: skip
LENGTH_BAD = (0, -1, 1.5, "two", [1], 99999, True)

CHAT = Surface(
    "/v1/chat/completions",
    {"messages": HI, "max_tokens": 2, "temperature": 0, "seed": 1},
    {
        **SAMPLING_GOOD,
        "messages": (
            [{"role": "system", "content": "Be brief."}, *HI],
            [{"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi."}]}],
            [*HI, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Again, ünïcode ✓ \u0000?"}],
            [{"role": "user", "content": "Hi.", "name": "Ann"}],
            [{"role": "user", "content": ""}],
            [{"role": "developer", "content": "Be brief."}, *HI],
            [*HI, {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "hi"}'}}]},
             {"role": "tool", "tool_call_id": "c1", "content": "a greeting"}],
        ),
        "max_tokens": (1, 3, "2"),
        "max_completion_tokens": (1, None),
        "logprobs": (True, False, None),
        "response_format": ({"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}),
        "tools": ([TOOL], None),
        "tool_choice": ("none", None),
        "add_generation_prompt": (False,),
        "echo": (True,),
        "chat_template_kwargs": ({"a": 1},),
        "parallel_tool_calls": (False,),
        "prompt_logprobs": (1,),
        "reasoning_effort": ("low",),
        "metadata": ({"a": "b"},),
        "store": (False,),
    },
    {
        **SAMPLING_BAD,
        "messages": (
            [], "hi", None, GONE, {"role": "user"}, [{}], ["hi"], [{"role": "user"}], [{"content": "x"}], [{"role": 5, "content": "x"}],
            [{"role": "user", "content": 5}], [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [5]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}],
            [{"role": "user", "content": "word " * 3000}],
            [{"role": "nobody", "content": "x"}],
        ),
        "max_tokens": LENGTH_BAD,
        "max_completion_tokens": LENGTH_BAD,
        "logprobs": ("maybe", 5),
        "top_logprobs": (2, 99, -2, "x"),
        "response_format": ({"type": "nothing"}, "json", {"type": "json_schema"}, {}),
        "tools": ("x", [], [{}], [{"type": "function"}], [5]),
        "tool_choice": ("auto", "required", "x", {"type": "function", "function": {"name": "look_up"}}),
        "continue_final_message": (True,),
        "chat_template": ("{{ messages }}", 5),
        "chat_template_kwargs": ("x",),
        "stream_options": ({"include_usage": True}, "x", 5),
        "stream": ("true", 1, "maybe", 5),
    },
    streams=True,
)  # fmt: skip
TEXT = Surface(
    "/v1/completions",
    {"prompt": "Once upon", "max_tokens": 2, "temperature": 0, "seed": 1},
    {
        **SAMPLING_GOOD,
        "prompt": (
            "a", ["Once", "Twice"], [9, 9, 9], [[9, 9], [8]], "ünïcode ✓", " ", "\u0000", ["a"], "line\nline\t\"quoted\" \\",
        ),
        "max_tokens": (1, 3, "2", None),
        "logprobs": (0, 2, None),
        "echo": (True, False),
        "add_special_tokens": (False,),
        "prompt_logprobs": (1,),
        "suffix": (None, ""),
        "best_of": (1,),
        "response_format": ({"type": "text"}, {"type": "json_object"}),
    },
    {
        **SAMPLING_BAD,
        "prompt": ("", [], None, GONE, 5, {"a": 1}, [""], [[]], [1, "a"], [-1], [99999999], "word " * 3000, True, [1.5]),
        "max_tokens": LENGTH_BAD,
        "logprobs": (-1, 99, "x", True),
        "echo": ("maybe",),
        "suffix": ("end", 5),
        "response_format": ({"type": "nothing"}, "json"),
        "stream_options": ({"include_usage": True}, "x"),
    },
    streams=True,
)  # fmt: skip
RESPONSES = Surface(
    "/v1/responses",
    {"input": "Say hi.", "max_output_tokens": 2, "temperature": 0},
    {
        "input": (HI, [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "ünïcode ✓", ""),
        "max_output_tokens": (1, 3),
        "instructions": ("Be brief.", None),
        "temperature": (0.0,),
        "top_p": (1, None),
        "store": (False, True),
        "metadata": ({"a": "b"}, None),
        "text": ({"format": {"type": "text"}}, {"format": {"type": "json_object"}}),
        "truncation": ("disabled", "auto"),
        "parallel_tool_calls": (False, True),
        "tools": ([],),
        "tool_choice": ("auto", "none"),
        "user": ("u1",),
        "include": ([], None),
        "service_tier": ("auto",),
        "unheard_of": (1,),
        "stream": (None, False),
    },
    {
        "input": (GONE, None, 5, [5], [{}], [{"role": "user"}], {"a": 1}, "word " * 3000, []),
        "max_output_tokens": (0, -1, "two", 1.5, 99999),
        "instructions": (5,),
        "temperature": ("hot", -1, 3),
        "top_p": (0, 2, "x"),
        "previous_response_id": ("resp_nobody_has_this", 5),
        "background": (True, "maybe"),
        "metadata": ("x",),
        "text": ("x", {"format": {"type": "nothing"}}),
        "truncation": ("sometimes",),
        "tools": ("x", [{}], [5]),
        "tool_choice": ("x", "required"),
        "include": (["x"], "x"),
        "store": ("maybe",),
        "top_logprobs": (99, "x"),
        "max_tool_calls": ("x",),
    },
    streams=True,
)  # fmt: skip
MESSAGES = Surface(
    "/v1/messages",
    {"messages": HI, "max_tokens": 2, "temperature": 0},
    {
        "messages": (
            [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            [*HI, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Again."}],
        ),
        "max_tokens": (1, 3, "2"),
        "system": ("Be brief.", [{"type": "text", "text": "Be brief."}], None),
        "stop_sequences": (["e"], [], None),
        "temperature": (0.0,),
        "top_p": (1, None),
        "top_k": (5, None),
        "metadata": ({"user_id": "u"}, None),
        "tools": (None, [{"name": "look_up", "description": "d", "input_schema": SCHEMA}]),
        "tool_choice": ({"type": "none"}, None),
        "unheard_of": (1,),
        "stream": (None, False),
    },
    {
        "messages": (GONE, None, [], "hi", [{}], [{"role": "user"}], [{"role": "nobody", "content": "x"}], [{"role": "user", "content": 5}],
                     [{"role": "user", "content": [{"type": "nothing"}]}], [{"role": "user", "content": "word " * 3000}]),
        "max_tokens": (GONE, None, 0, -1, "two", 1.5, 99999),
        "system": (5, [5]),
        "stop_sequences": ("e", [5], 5),
        "temperature": ("hot", -1, 3),
        "top_p": (0, 2, "x"),
        "top_k": ("x",),
        "metadata": ("x",),
        "tools": ("x", [{}], [5]),
        "tool_choice": ({"type": "x"}, "x"),
    },
    streams=True,
)  # fmt: skip
COUNT = Surface(
    "/v1/messages/count_tokens",
    {"messages": HI},
    {"system": ("Be brief.",), "messages": MESSAGES.good["messages"], "tools": (None,), "unheard_of": (1,)},
    {"messages": (GONE, None, [], "hi", [{}], [{"role": "nobody", "content": "x"}]), "system": (5,), "tools": ("x",)},
)
TOKENIZE = Surface(
    "/tokenize",
    {"prompt": "Hello there"},
    {
        "prompt": ("", "ünïcode ✓", " ", "word " * 3000),
        "add_special_tokens": (False,),
        "return_token_strs": (True, None),
        "unheard_of": (1,),
    },
    {"prompt": (GONE, None, 5, ["a"], {"a": 1}), "add_special_tokens": ("maybe",), "return_token_strs": ("maybe",)},
)
DETOKENIZE = Surface(
    "/detokenize",
    {"tokens": [9, 10, 11]},
    {"tokens": ([], [1]), "unheard_of": (1,)},
    {"tokens": (GONE, None, 5, ["a"], [-1], [1.5], [99999999], "x")},
)
CHAT_TOKENS = Surface(
    "/tokenize",
    {"messages": HI},
    {"add_generation_prompt": (False,), "return_token_strs": (True,)},
    {"messages": ([], "hi", None, [{}]), "continue_final_message": (True,), "chat_template": (5,)},
)
EMBEDDINGS = Surface(
    "/v1/embeddings",
    {"input": "a cat"},
    {
        "input": (["a cat", "a dog"], [101, 4937, 102], [[101, 102], [101, 4937, 102]], "ünïcode ✓", [" "], "\u0000"),
        "encoding_format": ("float", "base64"),
        "user": ("u1", None),
        "truncate_prompt_tokens": (3, -1, None),
        "add_special_tokens": (False,),
        "use_activation": (False, True),
        "unheard_of": (1,),
        "priority": (0,),
    },
    {
        "input": (GONE, None, [], 5, {"a": 1}, [5.5], [-1], [99999999], "word " * 600, [["a"]], True, [""], ""),
        "encoding_format": ("hex", 5),
        "dimensions": (5, 0, -1, "x", 99999),
        "truncate_prompt_tokens": (99999, "x", -2),
        "user": (5,),
        "use_activation": ("maybe",),
    },
)
EMBED_CHAT = Surface("/v1/embeddings", {"messages": HI}, {}, {"messages": ([], "hi", None)})
POOLING = Surface(
    "/pooling",
    {"input": "a cat"},
    {"input": (["a cat", "a dog"], [101, 4937, 102]), "task": ("embed", None), "unheard_of": (1,)},
    {"input": (GONE, None, [], 5), "task": ("nothing", 5), "encoding_format": ("hex",)},
)
SCORE = Surface(
    "/score",
    {"queries": "a cat", "documents": ["a dog", "a kitten"]},
    {"documents": ("a dog", ["a dog"]), "queries": (["a cat", "a house"],), "truncate_prompt_tokens": (3, None), "unheard_of": (1,)},
    {"documents": (GONE, None, [], 5, [5]), "queries": (GONE, None, [], 5, ["a", "b", "c"])},
)  # fmt: skip
PAIRS = Surface("/v1/score", {"text_1": "a cat", "text_2": ["a dog"]}, {}, {"text_2": (GONE, [])})
RERANK_FIELDS = (
    {"query": "a cat", "documents": ["a dog", "a kitten", "a house"]},
    {"documents": (["a dog"], [{"text": "a dog"}]), "top_n": (1, 0, 99), "truncate_prompt_tokens": (3,), "unheard_of": (1,)},
    {"query": (GONE, None, 5, []), "documents": (GONE, None, [], 5, [5]), "top_n": (-1, "x", 1.5)},
)  # fmt: skip
RERANK = tuple(Surface(path, *RERANK_FIELDS) for path in ("/rerank", "/v1/rerank", "/v2/rerank"))
CLASSIFY = Surface("/classify", {"input": "a cat"}, {}, {})

GENERATING = (CHAT, TEXT, RESPONSES, MESSAGES, COUNT, TOKENIZE, CHAT_TOKENS, DETOKENIZE)
STREAMING = frozenset(surface.path for surface in GENERATING if surface.streams)
EMBEDDING = (EMBEDDINGS, EMBED_CHAT, POOLING, SCORE, PAIRS, *RERANK, TOKENIZE, DETOKENIZE)
UNABLE_TO_GENERATE = (CHAT, TEXT, RESPONSES, MESSAGES)
"""Routes that an embedding model has not."""
UNABLE_TO_EMBED = (EMBEDDINGS, SCORE, RERANK[0], CLASSIFY, POOLING)
"""And a generating one."""
UNLISTED = (
    ("GET", "/health"), ("POST", "/sleep"), ("GET", "/is_sleeping"), ("POST", "/v1/chat/completions/batch"), ("POST", "/v1/nothing"),
    ("POST", "/invocations"), ("GET", "/version"), ("POST", "/reset_prefix_cache"), ("GET", "/load"), ("GET", "/server_info"),
)  # fmt: skip
"""Paths that engines answer, or might, and that are not the data plane's."""


class Maker:
    """Makes the requests for one model."""

    def __init__(self, model: str, seed: int) -> None:
        self._model = model
        self._random = random.Random(seed)
        self._names: Counter[str] = Counter()

    def ask(self, surface: Surface, what: str, changes: Json, *, stream: bool = False) -> Ask:
        """`surface`'s body with these changes."""
        body = {"model": self._model, **surface.base, **({"stream": True} if stream else {}), **changes}
        body = {key: value for key, value in body.items() if value is not GONE}
        return self.raw(surface, what + (" streamed" if stream else ""), json.dumps(body).encode())

    def raw(self, surface: Surface, what: str, body: bytes, **headers: str) -> Ask:
        name = f"{surface.path}: {what}"
        self._names[name] += 1
        if self._names[name] > 1:
            name += f" ({self._names[name]})"
        given = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return Ask(name, surface.path, body, {k: v for k, v in given.items() if v})

    def each(self, surface: Surface) -> Iterator[Ask]:
        """The plain request, and every other value of every field by itself."""
        yield self.ask(surface, "plain", {})
        if surface.streams:
            yield self.ask(surface, "plain", {}, stream=True)
        for kind, table in (("good", surface.good), ("bad", surface.bad)):
            for name, values in table.items():
                for value in values:
                    yield self.ask(surface, f"{kind} {name}={_shown(value)}", {name: value})

    def mixed(self, surface: Surface, count: int) -> Iterator[Ask]:
        """Several other values at once, half of them streamed, a quarter with something that is refused."""
        for _ in range(count):
            chosen = self._random.sample(sorted(surface.good), min(len(surface.good), self._random.randint(2, 5)))
            changes = {name: self._random.choice(surface.good[name]) for name in chosen if name != "stream"}
            if surface.bad and self._random.random() < 0.25:
                name = self._random.choice(sorted(surface.bad))
                changes[name] = self._random.choice(surface.bad[name])
            stream = surface.streams and self._random.random() < 0.5
            if stream and self._random.random() < 0.4:
                usage = {"include_usage": True, "continuous_usage_stats": self._random.random() < 0.5}
                changes["stream_options"] = usage if surface in (CHAT, TEXT) else GONE
            what = "mixed " + ", ".join(f"{k}={_shown(v)}" for k, v in changes.items())
            yield self.ask(surface, what, changes, stream=stream)

    def names(self, surface: Surface) -> Iterator[Ask]:
        """The model's name, as it should not be."""
        for value in (
            GONE,
            None,
            "",
            "nobody-knows-this",
            "n/b",
            5,
            [],
            {"a": 1},
            True,
            self._model.upper(),
            self._model + " ",
        ):
            yield self.ask(surface, f"model={_shown(value)}", {"model": value})

    def spellings(self, surface: Surface) -> Iterator[Ask]:
        """The same body, written otherwise; and what is no body."""
        plain = {"model": self._model, **surface.base}
        text = json.dumps(plain)
        name = json.dumps(self._model)
        turned = json.dumps(dict(reversed(plain.items())))
        ways: Mapping[str, str | bytes] = {
            "keys turned round": turned,
            "indented": json.dumps(plain, indent=3),
            "tight": json.dumps(plain, separators=(",", ":")),
            "white space around": f"\r\n\t {text} \n",
            "the model twice, the last one right": f'{{"model": "nobody-knows-this", {text[1:]}',
            "the model twice, the last one wrong": f'{text[:-1]}, "model": "nobody-knows-this"}}',
            "the key in escapes": text.replace('"model"', '"mo\\u0064el"'),
            "the name in escapes": text.replace(name, '"' + "".join(f"\\u{ord(c):04x}" for c in self._model) + '"'),
            "a model further down": f'{{"unheard_of": {{"model": "nobody-knows-this"}}, {text[1:]}',
            "not a number": f'{text[:-1]}, "unheard_of": NaN}}',
            "a large number": f'{text[:-1]}, "unheard_of": {"9" * 400}}}',
            "a number with too many digits": f'{text[:-1]}, "unheard_of": {"9" * 5000}}}',
            "half a pair": f'{text[:-1]}, "unheard_of": "\\ud800"}}',
            "a byte order mark": b"\xef\xbb\xbf" + text.encode(),
            "100 levels": f'{text[:-1]}, "unheard_of": {"[" * 100}{"]" * 100}}}',
            "100,000 levels": f'{text[:-1]}, "unheard_of": {"[" * 100_000}{"]" * 100_000}}}',
            "300 KB more": f'{text[:-1]}, "unheard_of": "{"x" * 300_000}"}}',
            "300 KB before": f'{{"unheard_of": "{"x" * 300_000}", {text[1:]}',
            "no UTF-8": text[:-1].encode() + b', "unheard_of": "\xff"}',
            "Latin-1": f'{text[:-1]}, "unheard_of": "\xe9"}}'.encode("latin-1"),
            "UTF-16": text.encode("utf-16"),
            "nothing": b"",
            "white space": b"  \n",
            "null": b"null",
            "a list": f"[{text}]",
            "a text": json.dumps(text),
            "a number": b"5",
            "a comma too many": f"{text[:-1]},}}",
            "single quotes": text.replace('"', "'"),
            "two objects": f"{text}{text}",
            "a comment": f"{text[:-1]} /* hi */}}",
            "a raw line end in a text": f'{text[:-1]}, "unheard_of": "a\nb"}}',
            "a form": f"model={self._model}&prompt=hi",
        }  # fmt: skip
        for what, body in ways.items():
            yield self.raw(surface, what, body if isinstance(body, bytes) else body.encode())
        for _ in range(6):
            end = self._random.randrange(1, len(text))
            yield self.raw(surface, f"cut at {end}", text[:end].encode())
        for _ in range(6):
            at, byte = self._random.randrange(len(text)), self._random.choice(b'{}[]",:\\ x0\xff\x00')
            damaged = bytearray(text.encode())
            damaged[at] = byte
            if b'"temperature": 0' not in damaged and b"temperature" in text.encode():
                continue  # a greedy answer is the same each time, and no other
            yield self.raw(surface, f"byte {at} is {byte}", bytes(damaged))

    def heads(self, surface: Surface) -> Iterator[Ask]:
        """Other headers, with a body that is right."""
        body = json.dumps({"model": self._model, **surface.base}).encode()
        for what, headers in (
            ("no content type", {"content_type": ""}),
            ("plain text", {"content_type": "text/plain"}),
            ("a form's content type", {"content_type": "application/x-www-form-urlencoded"}),
            ("a charset", {"content_type": "application/json; charset=utf-8"}),
            ("a content type in capitals", {"content_type": "Application/JSON"}),
            ("a kind of JSON", {"content_type": "application/vnd.api+json"}),
            ("no kind of content type", {"content_type": "???"}),
            ("accepts anything", {"accept": "*/*"}),
            ("accepts compressed answers", {"accept_encoding": "gzip, br"}),
            ("a trace", {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}),
            ("its own id", {"x_request_id": "mine-1"}),
            ("an id of other letters", {"x_request_id": "a b"}),
            ("an agent", {"user_agent": "curl/8"}),
            ("a cookie", {"cookie": "a=b"}),
            ("a language", {"accept_language": "de"}),
            ("a range", {"range": "bytes=0-5"}),
            ("a condition", {"if_none_match": '"x"'}),
        ):  # fmt: skip
            yield self.raw(surface, what, body, **headers)
        for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD"):
            yield Ask(
                f"{method} {surface.path}", surface.path, b"" if method in {"GET", "HEAD"} else body, method=method
            )
        for path in (
            f"{surface.path}/",
            f"{surface.path}?a=b",
            f"/{surface.path}",
            surface.path.upper(),
            f"{surface.path}/x",
        ):
            yield Ask(f"at {path}", path, body)


def _shown(value: Any) -> str:
    text = "nothing" if value is GONE else json.dumps(value)
    return text if len(text) < 60 else f"{text[:50]}... of {len(text)}"


def asks(model: str, *, embeds: bool, seed: int = 1, mixed: int = 20) -> list[Ask]:
    """All requests for a model: `mixed` of the random ones for a route that streams, and a third as many for others."""
    make = Maker(model, seed)
    surfaces, unable = (EMBEDDING, UNABLE_TO_GENERATE) if embeds else (GENERATING, UNABLE_TO_EMBED)
    found: list[Ask] = []
    for surface in surfaces:
        found += make.each(surface)
        found += make.mixed(surface, mixed if surface.streams else mixed // 3)
    for surface in (EMBEDDINGS,) if embeds else (CHAT, MESSAGES):
        found += [*make.names(surface), *make.spellings(surface), *make.heads(surface)]
    for surface in () if embeds else (TEXT, RESPONSES, COUNT, TOKENIZE, DETOKENIZE):
        found += make.names(surface)
    found += [make.ask(surface, "no task of its", {}) for surface in unable]
    found += [
        Ask(f"{method} {path}", path, b"{}" if method == "POST" else b"", method=method) for method, path in UNLISTED
    ]
    return found


def every(share: int, asks: Sequence[Ask], statuses: Mapping[str, int]) -> list[Ask]:
    """Those that an engine answers without work, the plain ones, and of others that it has to generate for one of `share`: the same ones each
    time. `statuses` are what it answered."""
    return [
        ask
        for ask in asks
        if statuses.get(ask.name, 0) >= 400
        or ": plain" in ask.name
        or ask.path not in STREAMING
        or zlib.crc32(ask.name.encode()) % share == 0
    ]
