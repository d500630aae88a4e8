"""The first schema: the audit, models, instances, footprints, sleeps, starts, events, requests, keys, sessions, facts about the installation.

Revision ID: 0001_initial
Revises: nothing
"""

import sqlalchemy as sa
from alembic import op

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None


AUDIT_IS_SHUT = {
    "sqlite": (
        "CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END",
        (
            "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit WHEN NOT COALESCE(OLD.at < "
            "(SELECT CAST(value AS REAL) FROM meta WHERE name = 'audit_until'), 0) "
            "BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
        ),
        # REPLACE deletes without asking the trigger above.
        (
            "CREATE TRIGGER audit_no_replace BEFORE INSERT ON audit WHEN EXISTS "
            '(SELECT 1 FROM audit WHERE id = NEW.id OR "row" = NEW."row") BEGIN SELECT RAISE(IGNORE); END'
        ),
    ),
    "postgresql": (
        (
            "CREATE FUNCTION audit_stands() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF TG_OP = 'DELETE' AND OLD.at < (SELECT CAST(value AS double precision) FROM meta WHERE name = 'audit_until') "
            "THEN RETURN OLD; END IF; RAISE EXCEPTION 'the audit is append-only'; END $$"
        ),
        "CREATE TRIGGER audit_stands BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_stands()",
        "CREATE TRIGGER audit_stays BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_stands()",
    ),
}
"""The audit's rows can be added, and deleted when they are older than what retention has written into `meta`; nothing else."""


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("row", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("act", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("object", sa.String(length=400), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("after", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("request", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("row", name=op.f("pk_audit")),
        sa.UniqueConstraint("id", name=op.f("uq_audit_id")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"])
    op.create_index(op.f("ix_audit_kind_object_row"), "audit", ["kind", "object", "row"])

    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_at"), "events", ["at"])
    op.create_index(op.f("ix_events_model_seq"), "events", ["model", "seq"])

    op.create_table(
        "footprints",
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("devices", sa.String(length=512), nullable=False),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("mean", sa.Double(), nullable=False),
        sa.Column("squares", sa.Double(), nullable=False),
        sa.Column("largest", sa.BigInteger(), nullable=False),
        sa.Column("weights", sa.BigInteger(), nullable=False),
        sa.Column("kv_cache", sa.BigInteger(), nullable=False),
        sa.Column("learned_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", "devices", name=op.f("pk_footprints")),
    )
    op.create_table(
        "instances",
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("start_ticks", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("socket", sa.Text(), nullable=True),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("workdir", sa.Text(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("device_bytes", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("launcher", sa.String(length=16), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_instances")),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("old_digest", sa.String(length=64), nullable=True),
        sa.Column("old_until", sa.Double(), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("models", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("acts", sa.JSON(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("progress", sa.Boolean(), nullable=False),
        sa.Column("limits", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_keys_digest")),
    )
    op.create_table(
        "meta",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_meta")),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("declaration", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("updated_by", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
    )
    op.create_table(
        "requests",
        sa.Column("row", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("request_id", sa.String(length=200), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("asked", sa.Text(), nullable=True),
        sa.Column("key", sa.String(length=64), nullable=True),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("queued_s", sa.Double(), nullable=True),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("total_s", sa.Double(), nullable=False),
        sa.Column("bytes_in", sa.BigInteger(), nullable=False),
        sa.Column("bytes_out", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("frozen_s", sa.Double(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("retried", sa.Boolean(), nullable=False),
        sa.Column("itl_p50_s", sa.Double(), nullable=True),
        sa.Column("itl_p95_s", sa.Double(), nullable=True),
        sa.Column("itl_p99_s", sa.Double(), nullable=True),
        sa.Column("load_s", sa.Double(), nullable=True),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.Column("cost_nano", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("row", name=op.f("pk_requests")),
        sa.UniqueConstraint("id", name=op.f("uq_requests_id")),
    )
    op.create_index(op.f("ix_requests_at"), "requests", ["at"])
    op.create_index(op.f("ix_requests_key_at"), "requests", ["key", "at"])
    op.create_index(op.f("ix_requests_model_at"), "requests", ["model", "at"])

    op.create_table(
        "responses",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_responses")),
    )
    op.create_index(op.f("ix_responses_until"), "responses", ["until"], unique=False)

    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_sessions")),
    )
    op.create_table(
        "sleeps",
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("declared", sa.BigInteger(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("kept", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", "level", name=op.f("pk_sleeps")),
    )
    op.create_table(
        "starts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("launcher", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ready_at", sa.Double(), nullable=True),
        sa.Column("phases", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_starts")),
    )
    op.create_index(op.f("ix_starts_model_started_at"), "starts", ["model", "started_at"])

    op.create_table(
        "timings",
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("seconds", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("model", "kind", name=op.f("pk_timings")),
    )
    op.create_table(
        "series",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("step", "kind", "subject", "at", name=op.f("pk_series")),
    )
    op.create_index(op.f("ix_series_step_at"), "series", ["step", "at"], unique=False)
    op.create_table(
        "usage_energy",
        sa.Column("hour", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("joules", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "model", name=op.f("pk_usage_energy")),
    )
    op.create_table(
        "usage_hours",
        sa.Column("hour", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("total_s", sa.Double(), nullable=False),
        sa.Column("queued_s", sa.Double(), nullable=False),
        sa.Column("load_s", sa.Double(), nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.Column("cost_nano", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("hour", "key", "model", "outcome", name=op.f("pk_usage_hours")),
    )
    for statement in AUDIT_IS_SHUT[op.get_context().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("usage_hours")
    op.drop_table("usage_energy")
    op.drop_index(op.f("ix_series_step_at"), table_name="series")

    op.drop_table("series")
    op.drop_table("timings")
    op.drop_index(op.f("ix_starts_model_started_at"), table_name="starts")

    op.drop_table("starts")
    op.drop_table("sleeps")
    op.drop_table("sessions")
    op.drop_index(op.f("ix_responses_until"), table_name="responses")

    op.drop_table("responses")
    op.drop_index(op.f("ix_requests_model_at"), table_name="requests")
    op.drop_index(op.f("ix_requests_key_at"), table_name="requests")
    op.drop_index(op.f("ix_requests_at"), table_name="requests")

    op.drop_table("requests")
    op.drop_table("models")
    op.drop_table("meta")
    op.drop_table("keys")
    op.drop_table("instances")
    op.drop_table("footprints")
    op.drop_index(op.f("ix_events_model_seq"), table_name="events")
    op.drop_index(op.f("ix_events_at"), table_name="events")

    op.drop_table("events")
    op.drop_index(op.f("ix_audit_kind_object_row"), table_name="audit")
    op.drop_index(op.f("ix_audit_at"), table_name="audit")

    op.drop_table("audit")
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_stands()")
