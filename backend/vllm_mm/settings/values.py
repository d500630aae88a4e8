"""Single values that have the right type and are of no use all the same: the server would start and do nothing well."""

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any, TypeAlias

from vllm_mm.settings.models import ModelConfig, StartConfig
from vllm_mm.settings.nodes import KeyPath
from vllm_mm.settings.root import Settings

Finding: TypeAlias = tuple[KeyPath, str]

URL_FORM = "sqlite+aiosqlite:///state.db"
_ASYNC_DRIVERS: Mapping[str, tuple[str, ...]] = {
    "sqlite": ("aiosqlite",),
    "postgresql": ("asyncpg", "psycopg", "psycopg_async"),
}
"""The databases that the store knows, and their drivers that SQLAlchemy can use from asyncio."""
_POSITIVE = (
    "limits.body", "limits.upload", "limits.header", "limits.header_timeout", "limits.body_timeout", "limits.body_rate",
    "limits.send_timeout", "captures.total", "captures.age", "queue.request_timeout",
)  # fmt: skip
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]{1,5})?")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")
_PLACEHOLDERS = frozenset({"host", "port", "socket", "model", "api_key"})
_TOO_SMALL = "has to be greater than zero"


def check_values(settings: Settings) -> Iterator[Finding]:
    """What is wrong outside of the models."""
    yield from _host(settings.server.host)
    for key in _POSITIVE:
        section, name = key.split(".")
        if not getattr(getattr(settings, section), name):
            yield (section, name), _TOO_SMALL
    yield from _timeouts(settings)
    yield from _origins(settings.cors.origins)
    message = _database_url(settings.database.url)
    if message:
        yield ("database", "url"), message
    if not isinstance(settings.devices, str):
        for i, device in enumerate(settings.devices):
            if device.memory == 0:
                advice = (
                    "write what it is to have, such as 24GiB"
                    if device.simulated
                    else "leave it out for what the device has"
                )
                yield ("devices", i, "memory"), f"{_TOO_SMALL}; {advice}"
    defaults = settings.defaults
    yield from _start(("defaults", "start"), defaults.start)
    yield from _environment(("defaults", "env"), defaults.env)
    yield from _program(("defaults", "executable"), defaults.executable)
    yield from _argument_names(("defaults", "args"), defaults.args)


def check_model_values(model: ModelConfig) -> Iterator[Finding]:
    """What is wrong in one model; paths begin inside it."""
    yield from _start(("start",), model.start)
    yield from _environment(("env",), model.env)
    yield from _argument_names(("args",), model.args)
    if model.executable is not None:
        yield from _program(("executable",), model.executable)
    if model.model is not None:
        if not model.model.strip():
            yield ("model",), "is empty; name a Hugging Face id or a folder, or leave it out for the model's own id"
        elif model.model.startswith("-"):
            yield (
                ("model",),
                f"{model.model!r} would be taken for an option; a folder of that name is `./{model.model}`",
            )
        elif "\0" in model.model:
            yield ("model",), "cannot contain a NUL character"
    if model.memory == 0:
        yield ("memory",), f"{_TOO_SMALL}; write `auto` to let it be learned"
    yield from _command(model.command)


def placeholders(command: tuple[str, ...]) -> frozenset[str]:
    """The names in braces that a start would fill in; doubled braces are text."""
    return frozenset(m.group(1) for part in command for m in _PLACEHOLDER.finditer(part) if m.group(1))


def _command(command: tuple[str, ...]) -> Iterator[Finding]:
    # The engine layer says the same, in these words, to what comes to it by another way.
    for i, part in enumerate(command):
        if "\0" in part:
            yield ("command", i), "cannot contain a NUL character"
        for name in sorted(placeholders((part,)) - _PLACEHOLDERS):
            known = "{host}, {port}, {socket}, {model} and {api_key}"
            yield (
                ("command", i),
                f"the command has an unknown placeholder {{{name}}}; known are {known} (write {{{{ for a bracket)",
            )
    if command and not command[0].strip():
        yield ("command", 0), "is empty; it has to be a program"
    names = placeholders(command)
    if "socket" in names and names & {"host", "port"}:
        yield ("command",), "the command mixes {socket} with {host} and {port}; use the one or the other"


def _environment(path: KeyPath, env: Mapping[str, str]) -> Iterator[Finding]:
    """No process could be started with it (environ(7))."""
    for name, value in env.items():
        if not name:
            yield (*path, name), "a variable needs a name"
        elif "=" in name or "\0" in name:
            what = "`=`" if "=" in name else "a NUL character"
            yield (*path, name), f"the name of a variable cannot contain {what}; write it like `NAME: value`"
        elif "\0" in value:
            yield (*path, name), "the value of a variable cannot contain a NUL character"


def _program(path: KeyPath, executable: str) -> Iterator[Finding]:
    if not executable.strip():
        yield path, "is empty; name a program, such as `vllm`, or leave it out"
    elif "\0" in executable:
        yield path, "cannot contain a NUL character"


def _argument_names(path: KeyPath, args: Mapping[str, Any]) -> Iterator[Finding]:
    for name in args:
        if not name or re.search(r"[\s\0]", name):
            yield (
                (*path, name),
                "an argument's name cannot be empty or contain blanks; write it like `max-model-len: 8192`",
            )


def _start(path: KeyPath, start: StartConfig) -> Iterator[Finding]:
    for name in ("stall", "deadline", "probe"):
        if not getattr(start, name):
            yield (*path, name), f"{_TOO_SMALL}, else every start fails"


def _timeouts(settings: Settings) -> Iterator[Finding]:
    timeouts = settings.timeouts
    for name in type(timeouts).model_fields:
        if not getattr(timeouts, name):
            yield ("timeouts", name), _TOO_SMALL
    if "stop_grace" in timeouts.model_fields_set and 0 < timeouts.stop < timeouts.stop_grace:
        name = "stop" if "stop" in timeouts.model_fields_set else "stop_grace"
        message = (
            f"`timeouts.stop` ({timeouts.stop:g}s) is shorter than `timeouts.stop_grace` ({timeouts.stop_grace:g}s), "
            "which is a part of it; make `stop` longer or `stop_grace` shorter"
        )
        yield ("timeouts", name), message


def _host(host: str) -> Iterator[Finding]:
    path: KeyPath = ("server", "host")
    if not host.strip():
        yield path, "is empty; write 127.0.0.1 for this machine only, 0.0.0.0 for all addresses"
    elif "[" in host or "]" in host:
        yield path, f"{host!r}: write an IPv6 address without brackets, like `::1`; the port goes into `server.port`"
    elif re.search(r"[\s/]", host):
        yield path, f"{host!r} is no address; write only a host, like 127.0.0.1, without scheme and path"
    elif host.count(":") == 1:
        yield path, f"{host!r} has a port in it; put the port into `server.port`"
    elif ":" in host:
        try:
            ip_address(host)
        except ValueError:
            yield path, f"{host!r} is no IPv6 address; write it like `::1`, the port goes into `server.port`"


def _origins(origins: tuple[str, ...]) -> Iterator[Finding]:
    for i, origin in enumerate(origins):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            yield (
                ("cors", "origins", i),
                f"{origin!r} is no origin; write `*`, or scheme://host[:port] without a path, like https://chat.example.org",
            )


def _database_url(url: str) -> str:
    """What is wrong with it, without showing it: it may have a password. "" when nothing is."""
    form = f"write it like {URL_FORM}"
    match = re.fullmatch(r"([A-Za-z0-9_]+)(?:\+([A-Za-z0-9_]+))?:(//.*)", url, re.DOTALL)
    if match is None:
        return f"is no SQLAlchemy URL; {form}"
    database, driver, rest = match.groups()
    drivers = _ASYNC_DRIVERS.get(database)
    if drivers is None:
        return f"`{database}` is no database that is supported; {form}, or postgresql+asyncpg://user@host/name"
    if driver not in drivers:
        said = f"`{driver}` is no async driver" if driver else "has no async driver"
        if database == "sqlite":
            return f"{said}; it has to begin with sqlite+aiosqlite, {form}"
        return f"{said}; write it like postgresql+asyncpg://user@host/name"
    if database == "sqlite":
        return "" if re.match(r"///(?!:memory:)[^?]", rest) else f"names no file; {form}"
    return _unparsable(url)


def _unparsable(url: str) -> str:
    from sqlalchemy import make_url  # noqa: PLC0415  # it takes its time, and SQLite's URLs need none of it
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415  # as above

    try:
        make_url(url)
    except (ArgumentError, ValueError):
        return "is no SQLAlchemy URL; write it like postgresql+asyncpg://user@host:5432/name"
    return ""
