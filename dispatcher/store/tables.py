"""The tables for SQLAlchemy; a test keeps them equal to `migrations/`.

The hot tables (`appwrapper`, `attempt`, `attempt_object`) are narrow and unpartitioned, and leave room in each page for
updated rows. History (`event`, `cluster_event`, the samples, `past_appwrapper`, `past_attempt`) is append-only and
partitioned by month; `store.history.partitions` makes its partitions. Phases are plain text, so a new one needs no
migration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from dispatcher.core.model.notifications import TOLD

metadata: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

_HOT: Final = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.02}
_TOLD: Final = ", ".join(f"'{cause}'::text" for cause in TOLD)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, server_default=text("''"))


def _count(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default=text("0"))


def _amount(name: str) -> Column[Decimal]:
    return Column(name, Numeric, nullable=False)


def _moment(name: str, *, nullable: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


hub: Final = Table(
    "hub",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    Column("id", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    Column("incarnation", Integer, nullable=False, server_default=text("1")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    _text("fingerprint"),
    _moment("restored_at", nullable=True),
    _moment("settled_at", nullable=True),
    _text("history_dropped_month"),
    _moment("history_dropped_at", nullable=True),
    Column("seal_key", LargeBinary),
    _moment("sealed_since", nullable=True),
    Column("queues_seen", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("members_seen", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("priority_classes_seen", JSONB),
    CheckConstraint("singleton", name="one_row"),
)

history_grant: Final = Table(
    "history_grant",
    metadata,
    Column("role_name", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    PrimaryKeyConstraint("role_name", "namespace"),
    comment="Which roles see which namespaces in the views of schema tenant.",
)

leader_lease: Final = Table(
    "leader_lease",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    _moment("expires_at"),
)

leader_epoch: Final = Table(
    "leader_epoch",
    metadata,
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
)

appwrapper: Final = Table(
    "appwrapper",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("api_group", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("phase", Text, nullable=False),
    _moment("phase_since"),
    Column("version", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("priority_slope", Double, nullable=False),
    _moment("created_at"),
    Column("enqueue_seq", BigInteger, Identity(always=False), nullable=False),
    Column("spec_hash", Text, nullable=False),
    Column("demand", JSONB, nullable=False),
    Column("pods", BigInteger, nullable=False),
    Column("pod_sets", JSONB, nullable=False),
    Column("conditions", JSONB, nullable=False),
    _text("message"),
    Column("pending_reason", Text),
    Column("pending_message", Text),
    Column("pending_resource", Text),
    Column("pending_cluster", Text),
    _moment("eligible_at", nullable=True),
    _moment("blocked_since", nullable=True),
    Column("attempts", Integer, nullable=False),
    Column("attempt", Integer),
    Column("cluster", Text),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    _text("reason"),
    Column("unhealthy_reason", Text),
    Column("unhealthy_message", Text),
    _moment("unhealthy_since", nullable=True),
    _count("requeuings"),
    _count("retries"),
    _count("requeuing_seconds"),
    _count("expected_seconds"),
    _count("limit_seconds"),
    _moment("kept_until", nullable=True),
    _text("cluster_selector"),
    _text("cluster_preference"),
    Column("kinds", JSONB, nullable=False, server_default=text("'[]'")),
    Column("ruled_out", JSONB, nullable=False, server_default=text("'[]'")),
    Column("pending_clusters", JSONB, nullable=False, server_default=text("'[]'")),
    _text("user_name"),
    Column("user_groups", JSONB, nullable=False, server_default=text("'[]'")),
    _moment("taken_in_at"),
    _moment("first_queued_at", nullable=True),
    _moment("ended_at", nullable=True),
    _text("outcome"),
    _moment("last_event_at", nullable=True),
    Column("more_queues", JSONB, nullable=False, server_default=text("'[]'")),
    Column("is_preempting", Boolean, nullable=False, server_default=text("false")),
    Column("preempted_at", JSONB, nullable=False, server_default=text("'[]'")),
    _text("pending_queue"),
    Column("pending_quota", JSONB),
    Column("pending_preempting", JSONB, nullable=False, server_default=text("'[]'")),
    Column("pending_approvals", JSONB, nullable=False, server_default=text("'[]'")),
    Column("unprovisioned", JSONB, nullable=False, server_default=text("'[]'")),
    _count("provisioning_failures"),
    _moment("aged_from", nullable=True),
    _moment("age_stopped_at", nullable=True),
    Column("pods_never_preempt", Boolean, nullable=False, server_default=text("false")),
    Column("class_never_preempts", Boolean, nullable=False, server_default=text("false")),
    _text("notifications"),
    # Far beyond any use. A slope that takes a priority past a double would make the order of the whole queue
    # unreadable.
    CheckConstraint("priority_slope BETWEEN -1e12 AND 1e12", name="priority_slope"),
    Index("ix_appwrapper_namespace_name", "namespace", "name"),
    Index(
        "ix_appwrapper_queued",
        "queue",
        text("priority DESC"),
        "created_at",
        "enqueue_seq",
        postgresql_where=text("phase = 'Queued'"),
    ),
    Index("ix_appwrapper_live", "uid", postgresql_where=text("phase <> 'Deleted'")),
    Index("ix_appwrapper_deleted", "phase_since", postgresql_where=text("phase = 'Deleted'")),
    Index("ix_appwrapper_spec_hash", "spec_hash"),
    postgresql_with=_HOT,
)

spec_blob: Final = Table(
    "spec_blob",
    metadata,
    Column("spec_hash", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

attempt: Final = Table(
    "attempt",
    metadata,
    Column("uid", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("cluster", Text, nullable=False),
    _text("cluster_uid"),
    Column("epoch", BigInteger, nullable=False),
    _moment("decided_at"),
    _moment("created_at", nullable=True),
    _moment("started_at", nullable=True),
    _moment("ended_at", nullable=True),
    _text("outcome"),
    Column("demand", JSONB, nullable=False),
    _text("reason"),
    Column("assignment", JSONB, nullable=False, server_default=text("'[]'")),
    _text("preempted_by"),
    Column("queues", JSONB),
    Column("growth", JSONB),
    Column("provisioning", JSONB),
    Column("growth_request", JSONB),
    Column("shrinking", JSONB),
    PrimaryKeyConstraint("uid", "number"),
    Index("uq_attempt_live", "uid", unique=True, postgresql_where=text("ended_at IS NULL")),
    Index("ix_attempt_growth", "uid", postgresql_where=text("growth IS NOT NULL")),
    postgresql_with=_HOT,
)

attempt_object: Final = Table(
    "attempt_object",
    metadata,
    Column("uid", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("item", Integer, nullable=False),
    Column("api_version", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    _text("object_uid"),
    Column("intent", Text, nullable=False),
    Column("done", Boolean, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("uid", "attempt", "item"),
    postgresql_with=_HOT,
)

member_cluster: Final = Table(
    "member_cluster",
    metadata,
    Column("name", Text, primary_key=True),
    Column("cluster_uid", Text, nullable=False),
    Column(
        "first_seen_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")
    ),
    _moment("unreachable_since", nullable=True),
    Column("is_declared", Boolean, nullable=False, server_default=text("true")),
    Column("is_cordoned", Boolean, nullable=False, server_default=text("false")),
    Column("is_draining", Boolean, nullable=False, server_default=text("false")),
    _text("closed_reason"),
)

namespace_pool_failures: Final = Table(
    "namespace_pool_failures",
    metadata,
    Column("cluster", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("failures", Integer, nullable=False),
    _moment("distrusted_until"),
    Column("is_confirmed", Boolean, nullable=False),
    PrimaryKeyConstraint("cluster", "pool", "namespace"),
)

cluster_snapshot: Final = Table(
    "cluster_snapshot",
    metadata,
    Column("cluster", Text, primary_key=True),
    _moment("taken_at"),
    Column("body", LargeBinary, nullable=False),
)

queue_declaration: Final = Table(
    "queue_declaration",
    metadata,
    Column("queue", Text, nullable=False),
    Column("weight", Numeric, nullable=False),
    Column("nominal", JSONB, nullable=False),
    _moment("valid_from"),
    _moment("valid_to", nullable=True),
    PrimaryKeyConstraint("queue", "valid_from"),
    Index("uq_queue_declaration_valid", "queue", unique=True, postgresql_where=text("valid_to IS NULL")),
)

queue_spec: Final = Table(
    "queue_spec",
    metadata,
    Column("queue", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("spec", JSONB, nullable=False),
    _moment("valid_from"),
    _moment("valid_to", nullable=True),
    PrimaryKeyConstraint("queue", "valid_from"),
    Index("uq_queue_spec_valid", "queue", unique=True, postgresql_where=text("valid_to IS NULL")),
)

event: Final = Table(
    "event",
    metadata,
    Column("id", BigInteger, Identity(always=True), nullable=False),
    _moment("at"),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("uid", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("from_phase", Text),
    Column("to_phase", Text, nullable=False),
    _text("reason"),
    _text("message"),
    _text("cluster"),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("epoch", BigInteger, nullable=False),
    Column("change", JSONB, nullable=False, server_default=text("'{}'")),
    _text("termination_message"),
    Index("ix_event_uid_at", "uid", "at"),
    Index("ix_event_at", "at", postgresql_using="brin"),
    Index("ix_event_dispatched_at", "at", postgresql_where=text("cause = 'dispatched'")),
    Index("ix_event_told", "id", postgresql_where=text(f"cause = ANY (ARRAY[{_TOLD}])")),
    postgresql_partition_by="RANGE (at)",
)

cluster_event: Final = Table(
    "cluster_event",
    metadata,
    Column("id", BigInteger, Identity(always=True), nullable=False),
    _moment("at"),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("cluster", Text, nullable=False),
    Column("event", Text, nullable=False),
    _text("reason"),
    _text("message"),
    _text("actor"),
    Column("epoch", BigInteger, nullable=False),
    Index("ix_cluster_event_cluster_at", "cluster", "at"),
    postgresql_partition_by="RANGE (at)",
)

capacity_sample: Final = Table(
    "capacity_sample",
    metadata,
    _moment("at"),
    Column("cluster", Text, nullable=False),
    Column("resource", Text, nullable=False),
    _amount("capacity"),
    _amount("held"),
    _amount("other"),
    _amount("free"),
    Column("is_reachable", Boolean, nullable=False),
    Index("ix_capacity_sample_cluster_resource_at", "cluster", "resource", "at"),
    postgresql_partition_by="RANGE (at)",
)

queue_sample: Final = Table(
    "queue_sample",
    metadata,
    _moment("at"),
    Column("queue", Text, nullable=False),
    Column("queued", Integer, nullable=False),
    _amount("queued_cpu"),
    _amount("queued_memory"),
    _amount("queued_gpu"),
    Column("running", Integer, nullable=False),
    _amount("running_cpu"),
    _amount("running_memory"),
    _amount("running_gpu"),
    Index("ix_queue_sample_queue_at", "queue", "at"),
    postgresql_partition_by="RANGE (at)",
)

past_appwrapper: Final = Table(
    "past_appwrapper",
    metadata,
    Column("uid", Text, nullable=False),
    Column("api_group", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("kinds", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("user_groups", JSONB, nullable=False),
    Column("priority", Integer, nullable=False),
    _moment("submitted_at"),
    _moment("eligible_at", nullable=True),
    _moment("first_dispatched_at", nullable=True),
    _moment("first_started_at", nullable=True),
    _moment("ended_at", nullable=True),
    _moment("deleted_at", nullable=True),
    Column("state", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("last_cluster", Text),
    Column("attempts", Integer, nullable=False),
    Column("evictions", Integer, nullable=False),
    Column("requeues", Integer, nullable=False),
    Column("pods", BigInteger, nullable=False),
    _amount("cpu"),
    _amount("memory_gib"),
    _amount("gpu"),
    Column("wait_s", Double),
    Column("queue_s", Double),
    Column("startup_s", Double),
    Column("run_s", Double, nullable=False),
    Column("lost_s", Double, nullable=False),
    Column("cpu_h", Double, nullable=False),
    Column("memory_gib_h", Double, nullable=False),
    Column("gpu_h", Double, nullable=False),
    Index("ix_past_appwrapper_uid", "uid"),
    Index("ix_past_appwrapper_name", "name", "namespace"),
    Index("ix_past_appwrapper_life", text("tstzrange(submitted_at, ended_at)"), postgresql_using="gist"),
    postgresql_partition_by="RANGE (ended_at)",
)

past_attempt: Final = Table(
    "past_attempt",
    metadata,
    Column("uid", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("cluster", Text, nullable=False),
    _moment("decided_at"),
    _moment("created_at", nullable=True),
    _moment("started_at", nullable=True),
    _moment("ended_at", nullable=True),
    Column("outcome", Text, nullable=False),
    Column("preempted_by", Text),
    Column("error_class", Text, nullable=False),
    Column("held_s", Double, nullable=False),
    Column("run_s", Double, nullable=False),
    _amount("cpu"),
    _amount("memory_gib"),
    _amount("gpu"),
    Column("cpu_h", Double, nullable=False),
    Column("memory_gib_h", Double, nullable=False),
    Column("gpu_h", Double, nullable=False),
    Column("demand", JSONB, nullable=False),
    Column("queues", JSONB),
    Column("growth", JSONB),
    Column("provisioning", JSONB),
    Column("places", ARRAY(Integer)),
    Index("ix_past_attempt_uid", "uid"),
    Index("ix_past_attempt_decided_at", "decided_at"),
    Index("ix_past_attempt_unplaced", "ended_at", postgresql_where=text("places IS NULL")),
    Index("ix_past_attempt_held", text("tstzrange(decided_at, ended_at)"), postgresql_using="gist"),
    Index(
        "ix_past_attempt_growth",
        text("tstzrange(decided_at, ended_at)"),
        postgresql_using="gist",
        postgresql_where=text("growth IS NOT NULL"),
    ),
    postgresql_partition_by="RANGE (ended_at)",
)

past_node: Final = Table(
    "past_node",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("last_month", Date, nullable=False),
    Index("uq_past_node", "cluster", "name", unique=True),
    comment="The names of the nodes of past attempts.",
)

past_template: Final = Table(
    "past_template",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("name", Text, nullable=False),
    Column("requests", JSONB, nullable=False),
    Column("last_month", Date, nullable=False),
    Index("uq_past_template", "digest", unique=True),
    comment="The pod templates of past attempts, with the requests of one pod.",
)


def types(table: Table, *without: str) -> dict[str, str]:
    """The Postgres type of each column by name, except of the columns in `without`."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it untyped
    return {str(each.name): each.type.compile(dialect) for each in table.columns if each.name not in without}


def listed(columns: Iterable[str]) -> str:
    """The names of columns for a statement."""
    return ", ".join(columns)


def recordset(types_by_column: Mapping[str, str]) -> str:
    """The rows `t` for a statement, from the JSON document bound as `rows`."""
    columns = ", ".join(f"{name} {type_}" for name, type_ in types_by_column.items())
    return f"json_to_recordset(CAST(:rows AS json)) AS t({columns})"
