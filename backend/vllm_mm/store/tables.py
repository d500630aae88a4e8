"""The tables. Private to the store and the migrations; everybody else sees domain types.

Times are Unix seconds. JSON columns hold what only programs read back whole.
"""

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Index, Integer, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite aliases its row id only to a column of the exact type INTEGER.
_BIG_KEY = BigInteger().with_variant(Integer(), "sqlite")


class Base(DeclarativeBase):
    """Constraints have names by rule, so that migrations can find them on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {dict[str, Any]: JSON, list[str]: JSON(none_as_null=True)}


class Meta(Base):
    """Facts about this installation: its owner mark, the reserved event numbers, what was done once."""

    __tablename__ = "meta"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class Model(Base):
    """Models made over the API, in the words of the configuration file."""

    __tablename__ = "models"
    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    declaration: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    updated_at: Mapped[float]
    updated_by: Mapped[str] = mapped_column(String(200))


class Instance(Base):
    """The launch of each model that has one (`LaunchRecord`)."""

    __tablename__ = "instances"
    model: Mapped[str] = mapped_column(String(200), primary_key=True)
    generation: Mapped[int]
    token: Mapped[str] = mapped_column(String(64))
    pid: Mapped[int]
    start_ticks: Mapped[int] = mapped_column(BigInteger)
    boot_id: Mapped[str] = mapped_column(String(64))
    socket: Mapped[str | None] = mapped_column(Text)
    host: Mapped[str] = mapped_column(String(255))
    port: Mapped[int]
    workdir: Mapped[str] = mapped_column(Text)
    log: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(String(64))
    device_bytes: Mapped[dict[str, Any]]
    started_at: Mapped[float]
    launcher: Mapped[str] = mapped_column(String(16))
    answer: Mapped[str] = mapped_column(Text)


class Footprint(Base):
    """Memory that the launches of a spec took on each device of a set, beside the KV cache. `squares`: the sum of the squared
    distances from the mean (Welford)."""

    __tablename__ = "footprints"
    fingerprint: Mapped[str] = mapped_column(String(64), primary_key=True)
    devices: Mapped[str] = mapped_column(String(512), primary_key=True)
    launches: Mapped[int]
    mean: Mapped[float]
    squares: Mapped[float]
    largest: Mapped[int] = mapped_column(BigInteger)
    weights: Mapped[int] = mapped_column(BigInteger)
    kv_cache: Mapped[int] = mapped_column(BigInteger)
    learned_at: Mapped[float]


class Sleep(Base):
    """What the sleeps of a spec at one level taught (`domain.sleep.Experience`). `mode` and `declared` (bytes that were said to stay) as they were
    declared; `kept`: bytes that were seen to stay, by device."""

    __tablename__ = "sleeps"
    fingerprint: Mapped[str] = mapped_column(String(64), primary_key=True)
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    mode: Mapped[str] = mapped_column(String(16))
    declared: Mapped[int | None] = mapped_column(BigInteger)
    failures: Mapped[int]
    reason: Mapped[str] = mapped_column(Text)
    kept: Mapped[dict[str, Any]]


class Start(Base):
    """The history of starts."""

    __tablename__ = "starts"
    id: Mapped[int] = mapped_column(_BIG_KEY, primary_key=True, autoincrement=True)
    model: Mapped[str] = mapped_column(String(200))
    generation: Mapped[int]
    launcher: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[float]
    ready_at: Mapped[float | None]
    phases: Mapped[dict[str, Any]]
    outcome: Mapped[str] = mapped_column(String(64))
    reason: Mapped[str] = mapped_column(Text)

    __table_args__ = (Index(None, "model", "started_at"),)


class Timing(Base):
    """How long what is done to a model's engine took lately, other than starts (`estimates.Kind`)."""

    __tablename__ = "timings"
    model: Mapped[str] = mapped_column(String(200), primary_key=True)
    kind: Mapped[str] = mapped_column(String(32), primary_key=True)
    seconds: Mapped[list[float]] = mapped_column(JSON)
    """Newest last."""


class Event(Base):
    """The journal."""

    __tablename__ = "events"
    seq: Mapped[int] = mapped_column(_BIG_KEY, primary_key=True, autoincrement=False)
    at: Mapped[float] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(String(64))
    model: Mapped[str | None] = mapped_column(String(200))
    cause: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]]

    __table_args__ = (Index(None, "model", "seq"),)


class Request(Base):
    """The ledger: one row for each request."""

    __tablename__ = "requests"
    row: Mapped[int] = mapped_column(_BIG_KEY, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(200), unique=True)
    request_id: Mapped[str] = mapped_column(String(200))
    """The client's own if it gave one: it may repeat."""
    at: Mapped[float] = mapped_column(index=True)
    hour: Mapped[int]
    """Hours since 1970-01-01 in UTC, for sums by hour and day that every database can do."""
    route: Mapped[str] = mapped_column(String(200))
    model: Mapped[str | None] = mapped_column(String(200))
    asked: Mapped[str | None] = mapped_column(Text)
    key: Mapped[str | None] = mapped_column(String(64))
    stream: Mapped[bool]
    outcome: Mapped[str] = mapped_column(String(32))
    status: Mapped[int]
    error: Mapped[str | None] = mapped_column(Text)
    queued_s: Mapped[float | None]
    ttft_s: Mapped[float | None]
    total_s: Mapped[float]
    bytes_in: Mapped[int] = mapped_column(BigInteger)
    bytes_out: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int | None] = mapped_column(BigInteger)
    completion_tokens: Mapped[int | None] = mapped_column(BigInteger)
    cached_tokens: Mapped[int | None] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int | None] = mapped_column(BigInteger)
    generation: Mapped[int | None]
    frozen_s: Mapped[float]
    reason: Mapped[str | None] = mapped_column(String(32))
    retried: Mapped[bool]
    itl_p50_s: Mapped[float | None]
    itl_p95_s: Mapped[float | None]
    itl_p99_s: Mapped[float | None]
    load_s: Mapped[float | None]
    device_s: Mapped[float]
    cost_nano: Mapped[int | None] = mapped_column(BigInteger)
    """Billionths."""

    __table_args__ = (Index(None, "model", "at"), Index(None, "key", "at"))


class UsageHour(Base):
    """Sums of ledger rows by hour; an empty text stands for what a row does not have."""

    __tablename__ = "usage_hours"
    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(200), primary_key=True)
    outcome: Mapped[str] = mapped_column(String(32), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger)
    total_s: Mapped[float]
    queued_s: Mapped[float]
    load_s: Mapped[float]
    device_s: Mapped[float]
    cost_nano: Mapped[int | None] = mapped_column(BigInteger)


class UsageEnergy(Base):
    """Joules by hour and model."""

    __tablename__ = "usage_energy"
    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    model: Mapped[str] = mapped_column(String(200), primary_key=True)
    joules: Mapped[float]


class SeriesRow(Base):
    """Time series (`domain.series.Row`). `data`: its values as JSON, which is read beside the event loop."""

    __tablename__ = "series"
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    subject: Mapped[str] = mapped_column(String(200), primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    data: Mapped[str] = mapped_column(Text)

    __table_args__ = (Index(None, "step", "at"),)


class Response(Base):
    """Stored responses: which launch holds each, and whose it is. `until`: Unix time at which that is forgotten."""

    __tablename__ = "responses"
    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    model: Mapped[str] = mapped_column(String(200))
    generation: Mapped[int]
    key: Mapped[str] = mapped_column(String(64))
    asked: Mapped[str] = mapped_column(Text)
    until: Mapped[float] = mapped_column(index=True)


class Key(Base):
    """API keys: the digest, never the secret."""

    __tablename__ = "keys"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    prefix: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    old_digest: Mapped[str | None] = mapped_column(String(64))
    old_until: Mapped[float | None]
    scopes: Mapped[list[str]]
    models: Mapped[list[str] | None]
    acts: Mapped[list[str]]
    weight: Mapped[float]
    progress: Mapped[bool]
    limits: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class AuditEntry(Base):
    """Who did what (`domain.audit.Entry`). Triggers of the migrations refuse changes, and deletes but those by age."""

    __tablename__ = "audit"
    row: Mapped[int] = mapped_column(_BIG_KEY, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(200))
    name: Mapped[str] = mapped_column(String(200))
    source: Mapped[str] = mapped_column(String(200))
    act: Mapped[str] = mapped_column(String(200))
    kind: Mapped[str] = mapped_column(String(64))
    object: Mapped[str] = mapped_column(String(400))
    status: Mapped[int]
    before: Mapped[Any] = mapped_column(JSON(none_as_null=True), nullable=True)
    after: Mapped[Any] = mapped_column(JSON(none_as_null=True), nullable=True)
    request: Mapped[str] = mapped_column(String(200))

    __table_args__ = (Index(None, "kind", "object", "row"),)


class DashboardSession(Base):
    """Who is signed in to the dashboard: a hash of what the cookie holds."""

    __tablename__ = "sessions"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float]
    expires_at: Mapped[float]
