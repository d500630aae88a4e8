"""The sections about the server itself: where it listens, who may use it, where it keeps its state, what it logs."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, IPvAnyNetwork, SecretStr

from vllm_mm.settings.fields import Section, Switch, Text
from vllm_mm.settings.units import Duration, Size
from vllm_mm.settings.xdg import default_cache_dir, default_data_dir

WEBHOOK_EVENTS: Final = ("failed", "back", "over_budget")
"""What webhooks call the events that matter most."""


def _folder(value: object) -> object:
    """Else the empty text would mean the working directory."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("is empty; name a folder, or leave it out")
    return value


def _state_dir() -> Path:
    return default_data_dir(os.environ)


def _cache_dir() -> Path:
    return default_cache_dir(os.environ)


class ServerConfig(Section):
    host: str = "127.0.0.1"
    """Address to listen on. With `0.0.0.0` everybody who reaches this machine reaches the server: keep `auth.mode: keys`."""
    port: int = Field(default=8000, ge=0, le=65535)
    """TCP port; 0 takes a free one."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that accept connections and move bytes. 1: the controller itself. More pay where one processor core is not enough
    for all requests; see docs/workers.md."""
    shutdown_grace: Duration = 30.0
    """After SIGTERM, how long requests in flight may go on."""
    timings: Switch = False
    """Tell every client at the end of its stream how long it took, by a comment or in trailers; without it those that ask
    (`X-VLLM-MM-Timings: 1`)."""
    keep_alive: Duration = 75.0
    """How long an idle client connection is kept open."""


class LimitsConfig(Section):
    body: Size = 64 * 1024**2
    """Largest request body; a bigger one is answered with 413."""
    upload: Size = 1024**3
    """Largest form with a file in it (audio), which is passed on as it comes."""
    upload_held: Size = 128 * 1024**2
    """So much of such a form is held in a temporary file until its model is known and ready."""
    header: Size = 64 * 1024
    """Largest request head, all headers together."""
    header_timeout: Duration = 10.0
    """How long a client may take to send the head of a request."""
    body_timeout: Duration = 60.0
    """How long a request's body may pause before it is answered with 408."""
    body_rate: Size = 1024
    """Bytes a second at which a body has to come on the whole, after `body_timeout`; a slower one is answered with 408."""
    send_timeout: Duration = 60.0
    """How long a client may take nothing of its answer before that is cut."""
    connections: int = Field(default=10_000, ge=1)
    """Client connections open at the same time."""
    responses: int = Field(default=20_000, ge=1)
    """Stored responses (`/v1/responses`) of which it is remembered which engine holds them; the oldest are forgotten."""
    responses_age: Duration = 86_400.0
    """For how long that is remembered."""


class CapturesConfig(Section):
    """Whole requests and answers, kept for a while. Off unless models or keys are named."""

    models: tuple[str, ...] = ()
    """Ids of models whose requests are captured; `*` for all."""
    keys: tuple[str, ...] = ()
    """Names or ids of keys whose requests are captured; `*` for all."""
    body: Size = Field(default=64 * 1024, le=16 * 1024**2)
    """So much is kept of a request's body, and of its answer's."""
    total: Size = 256 * 1024**2
    """Room for all captures together; the oldest are deleted."""
    age: Duration = 7 * 86400.0
    """Age at which they are deleted."""
    redact: tuple[str, ...] = ()
    """JSON fields, at any depth, whose values are not kept. Keys and cookies are never kept."""


class RealtimeConfig(Section):
    """Sessions over `/v1/realtime`."""

    model_timeout: Duration = 30.0
    """How long a session may take to name its model."""
    idle_timeout: Duration = 300.0
    """A session in which neither side says anything for so long is closed."""
    max_session: Duration = 3600.0
    """The longest that a session lasts, from when it has its model."""
    max_message: Size = 16 * 1024**2
    """Largest message of a client; a bigger one ends its session (close code 1009)."""


class CorsConfig(Section):
    origins: tuple[str, ...] = ()
    """Web origins (`https://chat.example.org`, or `*`) whose pages may call the API from a browser."""
    max_age: Duration = 600.0
    """How long a browser may remember the answer to a preflight."""


class ProxyAuthConfig(Section):
    """Who asks is told by a proxy in a header. It has to take that header out of what its own clients send."""

    header: str = Field(default="X-Forwarded-User", pattern="^[A-Za-z0-9-]{1,100}$")
    """Header with the user's name, from a proxy in front that knows who asks (docs/security.md): for the admin API and the dashboard,
    never for requests to models."""
    addresses: tuple[IPvAnyNetwork, ...] = ()
    """Addresses of that proxy, such as `10.0.0.0/8`; from any other the header means nothing."""
    scopes: tuple[Literal["read", "operate", "admin"], ...] = ()
    """What everybody may do whom it names, such as `[read]`; needed where there are `addresses`."""


class AuthConfig(Section):
    mode: Literal["keys", "none"] = "keys"
    """`keys`: every request needs a key. `none`: everybody is an administrator; only on loopback."""
    force: Switch = False
    """Allow `mode: none` on an address that other machines reach."""
    subprotocol_keys: Switch = True
    """A page in a browser may send its key as a WebSocket subprotocol (`openai-insecure-api-key.KEY`), where it cannot set headers."""
    secret: SecretStr | None = Field(default=None, min_length=32)
    """With it keys are hashed and sessions signed; write `${env.NAME}`. Null: the file `auth.secret` of the data directory, made at the
    first start. Keep it with the backups of the database: with another one no key is good any more."""
    revoke_running: Switch = True
    """What runs with a key that is revoked is ended as well, and not only what waits or comes after."""
    session: Duration = 12 * 3600.0
    """How long somebody stays signed in to the dashboard."""
    sign_in_tries: int = Field(default=10, ge=1, le=1000)
    """Wrong keys that one address may try at the sign-in in a minute; all addresses together ten times as many."""
    proxy: ProxyAuthConfig = ProxyAuthConfig()


class DatabaseConfig(Section):
    url: str = "sqlite+aiosqlite:///state.db"
    """SQLAlchemy URL with an async driver. A relative SQLite path is inside `paths.data_dir`."""
    spool: int = Field(default=100_000, ge=1_000, le=10_000_000)
    """Rows of the request ledger that are kept for a database that does not take them: a full disk, a locked file, a lost connection. Beyond
    that the oldest are given up, and counted. The audit has as many."""
    spool_dir: Path | None = None
    """Folder in which such rows are kept as well, over an end of the server; null: one in the system's temporary directory."""
    backup: Switch = True
    """Copy the database into `backups` in `paths.data_dir` before its schema changes; PostgreSQL with `pg_dump`, without which the change is
    refused."""


class RetentionConfig(Section):
    events: Duration | None = 30 * 86400.0
    """Age at which events are deleted; null keeps them."""
    max_events: int | None = Field(default=1_000_000, ge=1)
    """The oldest events beyond this many are deleted; null sets no bound."""
    requests: Duration | None = 30 * 86400.0
    """Age at which rows of the request ledger are deleted; null keeps them."""
    max_requests: int | None = Field(default=5_000_000, ge=1)
    """The oldest ledger rows beyond this many are deleted; null sets no bound."""
    usage: Duration | None = 2 * 365 * 86400.0
    """Age at which the hourly sums of usage are deleted, into which ledger rows go; null keeps them."""
    audit: Duration | None = 365 * 86400.0
    """Age at which entries of the audit are deleted; null keeps them."""


class SeriesConfig(Section):
    """What the dashboard's charts are drawn from: samples of models and devices, kept in the database ever more coarsely."""

    enabled: Switch = True
    """Take samples."""
    seconds: Duration = Field(default=6 * 3600.0, ge=3600)
    """Age at which rows of 10 seconds are deleted."""
    minutes: Duration = Field(default=7 * 86400.0, ge=3600)
    """Age at which rows of a minute are deleted."""
    quarters: Duration = Field(default=365 * 86400.0, ge=3600)
    """Age at which rows of 15 minutes are deleted."""

    @property
    def kept(self) -> dict[int, float]:
        """The ages in seconds, by the seconds that a row covers."""
        return {10: self.seconds, 60: self.minutes, 900: self.quarters}


class PathsConfig(Section):
    data_dir: Annotated[Path, BeforeValidator(_folder)] = Field(default_factory=_state_dir)
    """State: database, logs of the engines, sockets. Made with mode 0700. Default `$XDG_STATE_HOME/vllm-mm`."""
    cache_dir: Annotated[Path, BeforeValidator(_folder)] = Field(default_factory=_cache_dir)
    """What may be deleted at any time, such as compile caches. Default `$XDG_CACHE_HOME/vllm-mm`."""


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["text", "json"] = "text"
    """`json` writes one object per line, for log collectors."""
    engine_size: Size = Field(default=16 * 1024**2, ge=64 * 1024)
    """Size at which the log file of an engine is rotated."""
    engine_files: int = Field(default=1, ge=1, le=100)
    """Old log files that are kept of each model."""


def _address(value: str) -> str:
    """Of a web server."""
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(c.isspace() for c in value):
        raise ValueError("has to be an address such as https://hooks.example.org/vllm-mm")
    return value


def _wish(value: str) -> str:
    """A name or a pattern of kinds; a word that is neither is a name with a typo."""
    if value not in WEBHOOK_EVENTS and not any(c in value for c in ".*"):
        near = get_close_matches(value, WEBHOOK_EVENTS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"names are {', '.join(WEBHOOK_EVENTS)}"
        raise ValueError(f"{value!r} is neither a name nor a kind of events such as `alert.*`; {hint}")
    return value


class WebhookConfig(Section):
    """Where events are sent to; see docs/observability.md."""

    url: Annotated[str, AfterValidator(_address)]
    """Address that gets a POST for each event."""
    events: Annotated[tuple[Annotated[str, AfterValidator(_wish)], ...], Field(min_length=1)] = WEBHOOK_EVENTS
    """`failed` (a model failed, a device is out of use), `back` (it is ready or well again), `over_budget` (a key has used up a
    budget), or kinds of events with `*` for anything, such as `alert.*`."""
    secret: Text = ""
    """Signs each request (HMAC-SHA256); empty signs none. Take it from the environment: `${env.HOOK_SECRET}`."""
    name: str | None = Field(default=None, min_length=1, max_length=60)
    """What it is called in `GET /api/webhooks` and in metrics; its host, when null."""


class TracesConfig(Section):
    """OpenTelemetry traces of requests; needs the extra `otel`."""

    endpoint: Annotated[str, AfterValidator(_address)] | None = None
    """Where spans are sent to, by OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`; null makes none."""
    sample: float = Field(default=1.0, ge=0, le=1)
    """Share of the requests that are traced; where a client's `traceparent` says whether, that holds."""
    service: str = Field(default="vllm-mm", min_length=1, max_length=100)
    """What the server is called in traces."""


class MetricsConfig(Section):
    enabled: Switch = True
    """Serve `/metrics`."""
    public: Switch = False
    """Serve it without a key also to other machines. Loopback never needs one."""
    engines: Switch = True
    """Add the engines' own metrics, with a `model` label."""
