"""A configuration of llama-swap in our words, and what could not be said in them (docs/from-llama-swap.md has the table)."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final, cast
from urllib.parse import urlsplit

_MACRO: Final = re.compile(r"\$\{([A-Za-z0-9_.:-]+)\}")
_OPTION: Final = re.compile(r"--?[A-Za-z]")
_DEPTH: Final = 10
"""Macros within macros."""
_HERE: Final[Mapping[str, str]] = {"PORT": "{port}", "MODEL_ID": "{model}"}
_QUIET: Final = frozenset(
    {
        "logLevel",
        "logTimeFormat",
        "logToStdout",
        "metricsMaxInMemory",
        "captureBuffer",
        "startPort",
        "includeAliasesInList",
    }
)
"""Keys of the whole file that have no counterpart because there is nothing to say."""
_TOP: Final = _QUIET | {
    "healthCheckTimeout", "globalTTL", "apiKeys", "macros", "models", "groups", "matrix", "hooks", "peers", "sendLoadingState",
}  # fmt: skip
_MODEL: Final = frozenset(
    {
        "macros", "cmd", "cmdStop", "proxy", "name", "description", "env", "aliases", "checkEndpoint", "ttl", "useModelName",
        "filters", "metadata", "concurrencyLimit", "sendLoadingState", "unlisted",
    }
)  # fmt: skip
_EMBEDS: Final = frozenset({"--embedding", "--embeddings"})
"""Options of llama.cpp's server with which it makes embeddings, and generates nothing."""
_OURS: Final = frozenset({"host", "port", "served-model-name", "uds"})
"""Arguments of `vllm serve` that are given to it here."""


@dataclass(slots=True)
class Converted:
    """`config` as a file of ours would hold it; `notes` say what is to be looked at, each naming its place."""

    config: dict[str, Any]
    notes: list[str] = field(default_factory=list[str])


def convert(document: Mapping[str, Any]) -> Converted:
    """`document`: the file as YAML reads it. Never fails on what it does not know: that becomes a note. Raises ValueError for
    what is no configuration of llama-swap at all."""
    models = document.get("models")
    if not isinstance(models, Mapping) or not models:
        raise ValueError("it has no `models`; is it a configuration of llama-swap?")
    return _Conversion(document).run(cast("Mapping[str, Any]", models))


class _Conversion:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._macros: dict[str, str] = {k: str(v) for k, v in _mapping(document.get("macros")).items()}
        self.done = Converted({})

    def run(self, models: Mapping[str, Any]) -> Converted:
        document, config = self._document, self.done.config
        for name in document:
            if name not in _TOP:
                self._note(name, "is not known, and was left out")
        self._access(document.get("apiKeys"))
        defaults: dict[str, Any] = {}
        if (seconds := document.get("healthCheckTimeout")) is not None:
            defaults["start"] = {"stall": f"{seconds}s"}
        if (ttl := document.get("globalTTL")) is not None:
            defaults["idle"] = _idle(ttl)
        if document.get("sendLoadingState"):
            defaults["progress"] = True
            self._note("sendLoadingState", "became comments in the event stream (`progress`), never content")
        if defaults:
            config["defaults"] = defaults
        made = {str(name): self._model(str(name), _mapping(model)) for name, model in models.items()}
        config["models"] = made
        self._groups(made)
        self._preload(made)
        if document.get("matrix"):
            self._note("matrix", "was left out: what fits together is known from the memory of each model (`memory`)")
        if document.get("peers"):
            self._note("peers", "was left out: requests are not passed on to other servers")
        return self.done

    def _note(self, place: str, text: str) -> None:
        self.done.notes.append(f"{place} {text}")

    def _access(self, keys: object) -> None:
        if keys:
            self._note(
                "apiKeys",
                "were left out: make keys with `vllm-mm keys create NAME` (the first start prints an admin token)",
            )
        else:
            self.done.config["auth"] = {"mode": "none"}

    # One model

    def _model(self, name: str, source: Mapping[str, Any]) -> dict[str, Any]:
        place = f"models.{name}"
        macros = {**self._macros, **{k: str(v) for k, v in _mapping(source.get("macros")).items()}}
        for key in source:
            if key not in _MODEL:
                self._note(f"{place}.{key}", "is not known, and was left out")
        made = self._engine(place, name, source, macros)
        if env := [str(item) for item in _sequence(source.get("env"))]:
            pairs = (_expanded(item, macros).partition("=") for item in env)
            made["env"] = {key: value for key, _, value in pairs}
        aliases: list[Any] = [str(alias) for alias in _sequence(source.get("aliases"))]
        aliases += self._filters(place, name, _mapping(source.get("filters")), macros, made)
        if aliases:
            made["aliases"] = aliases
        if (ttl := source.get("ttl")) is not None:
            made["idle"] = _idle(ttl)
        if limit := source.get("concurrencyLimit"):
            made["concurrency"] = int(limit)
        if source.get("sendLoadingState") is not None:
            made["progress"] = bool(source["sendLoadingState"])
        if source.get("useModelName") and "model" not in made:
            self._note(f"{place}.useModelName", f"was left out: the engine is asked for the model `{name}`")
        if source.get("unlisted"):
            self._note(f"{place}.unlisted", "was left out: every model is listed; a key can be kept to some models")
        if (endpoint := source.get("checkEndpoint")) not in {None, "", "/health"}:
            self._note(f"{place}.checkEndpoint", f"({endpoint}) was left out: /health is asked, and then for one token")
        if source.get("cmdStop"):
            self._note(
                f"{place}.cmdStop",
                "was left out: the whole process tree is ended; a container has to end with its client",
            )
        for key in ("name", "description", "metadata"):
            if source.get(key):
                self._note(f"{place}.{key}", "was left out: there is no place for it")
        return made

    def _engine(self, place: str, name: str, source: Mapping[str, Any], macros: Mapping[str, str]) -> dict[str, Any]:
        words = _words(_expanded(str(source.get("cmd") or ""), macros))
        if not words:
            self._note(f"{place}.cmd", "is empty: say how the engine is started")
            return {"engine": "command", "command": []}
        for left in sorted(
            {m for word in words for m in _MACRO.findall(word) if m not in _HERE and not m.startswith("env.")}
        ):
            self._note(f"{place}.cmd", f"uses the macro ${{{left}}}, which is not there")
        if PurePath(words[0]).name == "vllm" and words[1:2] == ["serve"]:
            return self._vllm(place, name, [_expanded(word, _HERE) for word in words])
        words = [_expanded(_escaped(word), _HERE) for word in words]
        embeds = next((word for word in words if word in _EMBEDS), None)
        if embeds is not None:
            self._note(
                place, f"got `task: embed` for its {embeds}: it is ready when it makes an embedding, not a token"
            )
        if not any("{port}" in word for word in words):
            words = self._with_port(place, words, str(source.get("proxy") or ""))
        self._note(place, "needs `memory`: what it takes on each device, such as 10GiB; until then it is estimated")
        made: dict[str, Any] = {"engine": "command", "command": words}
        return made if embeds is None else {**made, "task": "embed"}

    def _with_port(self, place: str, words: list[str], proxy: str) -> list[str]:
        """Where the address is written down, the port in the command is the one to be given."""
        port = str(urlsplit(proxy).port or "")
        found = [n for n, word in enumerate(words) if port and re.search(rf"(^|[=:]){port}(:|$)", word)]
        if len(found) == 1:
            words[found[0]] = re.sub(rf"(^|[=:]){port}(?=:|$)", r"\1{port}", words[found[0]])
        else:
            self._note(
                f"{place}.cmd", "does not say where to listen: put {port} (with {host}), or {socket}, into `command`"
            )
        return words

    def _vllm(self, place: str, name: str, words: Sequence[str]) -> dict[str, Any]:
        """`vllm serve MODEL --option value ...`, which can then sleep and start warm."""
        made: dict[str, Any] = {"engine": "vllm"}
        if words[0] != "vllm":
            made["executable"] = words[0]
        args: dict[str, Any] = {}
        rest = list(words[2:])
        while rest:
            word = rest.pop(0)
            if not _OPTION.match(word):
                made["model"] = word
                continue
            option, mark, value = word.lstrip("-").partition("=")
            values = [value] if mark else []
            while not mark and rest and not _OPTION.match(rest[0]):
                values.append(rest.pop(0))
            if option == "model" and values:
                made["model"] = values[0]
            elif option == "served-model-name":
                made["_served"] = [v for v in values if v not in {name, "{model}"}]
            elif option not in _OURS:
                args[option] = (
                    True if not values else _scalar(values[0]) if len(values) == 1 else [*map(_scalar, values)]
                )
        if served := made.pop("_served", None):
            self._note(place, f"was served as {', '.join(served)}: that is its id here; add aliases if clients ask so")
        if "model" not in made:
            self._note(f"{place}.cmd", "names no model behind `vllm serve`")
        if args:
            made["args"] = args
        return made

    def _filters(
        self, place: str, name: str, filters: Mapping[str, Any], macros: Mapping[str, str], made: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Rules on requests; returns the aliases that have some of their own."""
        # The second is the older spelling.
        strip = _expanded(str(filters.get("stripParams") or filters.get("strip_params") or ""), macros)
        overrides: dict[str, Any] = {p.strip(): None for p in strip.split(",") if p.strip() and p.strip() != "model"}
        overrides |= _mapping(filters.get("setParams"))
        if overrides:
            made["request_overrides"] = overrides
        for key in filters:
            if key not in {"stripParams", "strip_params", "setParams", "setParamsByID"}:
                self._note(f"{place}.filters.{key}", "is not known, and was left out")
        aliases: list[dict[str, Any]] = []
        for alias, values in _mapping(filters.get("setParamsByID")).items():
            alias_name = _expanded(str(alias), {**macros, "MODEL_ID": name})
            if alias_name == name:
                made["request_overrides"] = {**overrides, **_mapping(values)}
            else:
                aliases.append({"name": alias_name, "request_overrides": dict(_mapping(values))})
        return aliases

    # What is said of several models

    def _groups(self, made: dict[str, dict[str, Any]]) -> None:
        for name, group in _mapping(self._document.get("groups")).items():
            settings, place = _mapping(group), f"groups.{name}"
            members = [str(m) for m in _sequence(settings.get("members"))]
            for member in members:
                if member not in made:
                    self._note(place, f"has a member that is no model: {member}")
                elif settings.get("persistent"):
                    made[member]["pinned"] = True
            if not settings.get("persistent"):
                self._note(
                    place,
                    f"was left out: {', '.join(members) or 'its members'} make room for one another by their memory",
                )

    def _preload(self, made: dict[str, dict[str, Any]]) -> None:
        hooks = _mapping(self._document.get("hooks"))
        for model in _sequence(_mapping(hooks.get("on_startup")).get("preload")):
            if str(model) in made:
                made[str(model)]["preload"] = True
            else:
                self._note("hooks.on_startup.preload", f"names what is no model: {model}")
        for key in hooks:
            if key != "on_startup":
                self._note(f"hooks.{key}", "is not known, and was left out")


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def _idle(ttl: object) -> dict[str, Any]:
    """Seconds; there 0 (and -1, which means the default) is never."""
    seconds = ttl if isinstance(ttl, int | float) and ttl > 0 else None
    return {"sleep_after": None, "stop_after": None if seconds is None else f"{seconds}s"}


def _escaped(text: str) -> str:
    """A brace of the command is none of our placeholders'."""
    return re.sub(r"\$\{[^}]*\}|[{}]", lambda m: m[0] if len(m[0]) > 1 else m[0] * 2, text)


def _expanded(text: str, macros: Mapping[str, str]) -> str:
    for _ in range(_DEPTH):
        after = _MACRO.sub(lambda m: macros.get(m[1], m[0]), text)
        if after == text:
            break
        text = after
    return text


def _words(command: str) -> list[str]:
    """As a shell would read it: over several lines, with comments."""
    lines = (line for line in command.splitlines() if not line.lstrip().startswith("#"))
    return shlex.split(" ".join(line.rstrip().removesuffix("\\") for line in lines))


def _scalar(text: str) -> Any:
    """A number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def lines(done: Converted) -> Iterator[str]:
    """The notes as comments for the head of the file."""
    for note in done.notes:
        yield f"# {note}"
