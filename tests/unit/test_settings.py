"""What an operator can set, where from, within which bounds, and what is said of a mistake."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from dispatcher.settings import Settings

DEFAULTS: dict[str, Any] = {
    "database_url": SecretStr(""),
    "database_tls": "verified",
    "kubeconfig": "",
    "namespace": "",
    "listen_address": "127.0.0.1",
    "listen_port": 8081,
    "lease_seconds": 15.0,
    "renew_seconds": 3.0,
    "write_timeout_seconds": 5.0,
    "read_timeout_seconds": 10.0,
    "cycle_seconds": 0.05,
    "poll_seconds": 10.0,
    "declared_demand": "larger",
    "growth": "grant",
    "kinds_file": "",
    "fit": "node",
    "provisioning": "",
    "potential": "",
    "max_priority": None,
    "max_priority_slope": None,
    "queued_per_namespace": 5000,
    "queue_policy": "BestEffortFIFO",
    "queue_access": "selected",
    "starvation_bound_seconds": 600.0,
    "reservation_bound_seconds": 86400.0,
    "kueue_wait_seconds": 86400.0,
    "kept_seconds": 604800.0,
    "history_days": 400.0,
    "reader_seconds": 300.0,
    "probe_seconds": 5.0,
    "unreachable_seconds": 15.0,
    "unlisted_seconds": 60.0,
    "sample_seconds": 300,
    "snapshot_seconds": 10.0,
    "queue_status_seconds": 10.0,
    "concurrency": 32,
    "submitter": "namespace",
    "author_check": "policy",
    "denied_namespaces": "kube-system,kube-public,kube-node-lease",
    "wrapped_secrets": "refused",
    "field_validation": "Warn",
    "log_level": "info",
    "log_format": "auto",
}


def test_defaults_are_the_documented_ones() -> None:
    assert Settings().model_dump() == DEFAULTS


@pytest.mark.parametrize(
    ("variable", "value", "name", "expected"),
    [
        (
            "DISPATCHER_DATABASE_URL",
            "postgresql://host/name",
            "database_url",
            SecretStr("postgresql://host/name"),
        ),
        ("DISPATCHER_DATABASE_TLS", "unverified", "database_tls", "unverified"),
        ("DISPATCHER_KUBECONFIG", "/etc/hub.kubeconfig", "kubeconfig", "/etc/hub.kubeconfig"),
        ("DISPATCHER_NAMESPACE", "gpu-hub", "namespace", "gpu-hub"),
        ("DISPATCHER_LISTEN_ADDRESS", "0.0.0.0", "listen_address", "0.0.0.0"),  # noqa: S104  # as in a pod
        ("DISPATCHER_LISTEN_PORT", "0", "listen_port", 0),
        ("DISPATCHER_LEASE_SECONDS", "30", "lease_seconds", 30.0),
        ("DISPATCHER_RENEW_SECONDS", "2.5", "renew_seconds", 2.5),
        ("DISPATCHER_WRITE_TIMEOUT_SECONDS", "4", "write_timeout_seconds", 4.0),
        ("DISPATCHER_READ_TIMEOUT_SECONDS", "20", "read_timeout_seconds", 20.0),
        ("DISPATCHER_CYCLE_SECONDS", "0", "cycle_seconds", 0.0),
        ("DISPATCHER_POLL_SECONDS", "60", "poll_seconds", 60.0),
        ("DISPATCHER_DECLARED_DEMAND", "trusted", "declared_demand", "trusted"),
        ("DISPATCHER_KINDS_FILE", "/etc/dispatcher/kinds.yaml", "kinds_file", "/etc/dispatcher/kinds.yaml"),
        ("DISPATCHER_FIT", "aggregate", "fit", "aggregate"),
        ("DISPATCHER_PROVISIONING", '{"className": "x"}', "provisioning", '{"className": "x"}'),
        ("DISPATCHER_POTENTIAL", '{"pools": []}', "potential", '{"pools": []}'),
        ("DISPATCHER_MAX_PRIORITY", "-1", "max_priority", -1),
        ("DISPATCHER_MAX_PRIORITY_SLOPE", "0.5", "max_priority_slope", 0.5),
        ("DISPATCHER_QUEUED_PER_NAMESPACE", "10", "queued_per_namespace", 10),
        ("DISPATCHER_QUEUE_POLICY", "StrictFIFO", "queue_policy", "StrictFIFO"),
        ("DISPATCHER_QUEUE_ACCESS", "open", "queue_access", "open"),
        ("DISPATCHER_STARVATION_BOUND_SECONDS", "0", "starvation_bound_seconds", 0.0),
        ("DISPATCHER_RESERVATION_BOUND_SECONDS", "90", "reservation_bound_seconds", 90.0),
        ("DISPATCHER_KUEUE_WAIT_SECONDS", "0", "kueue_wait_seconds", 0.0),
        ("DISPATCHER_KEPT_SECONDS", "0", "kept_seconds", 0.0),
        ("DISPATCHER_READER_SECONDS", "60", "reader_seconds", 60.0),
        ("DISPATCHER_PROBE_SECONDS", "1", "probe_seconds", 1.0),
        ("DISPATCHER_UNREACHABLE_SECONDS", "0", "unreachable_seconds", 0.0),
        ("DISPATCHER_SAMPLE_SECONDS", "60", "sample_seconds", 60),
        ("DISPATCHER_SNAPSHOT_SECONDS", "0.5", "snapshot_seconds", 0.5),
        ("DISPATCHER_QUEUE_STATUS_SECONDS", "60", "queue_status_seconds", 60.0),
        ("DISPATCHER_CONCURRENCY", "1", "concurrency", 1),
        ("DISPATCHER_SUBMITTER", "annotation", "submitter", "annotation"),
        ("DISPATCHER_AUTHOR_CHECK", "off", "author_check", "off"),
        (
            "DISPATCHER_DENIED_NAMESPACES",
            "kube-system, gpu-operator",
            "denied_namespaces",
            "kube-system, gpu-operator",
        ),
        ("DISPATCHER_WRAPPED_SECRETS", "stored", "wrapped_secrets", "stored"),
        ("DISPATCHER_GROWTH", "charge", "growth", "charge"),
        ("DISPATCHER_FIELD_VALIDATION", "Strict", "field_validation", "Strict"),
        ("DISPATCHER_LOG_LEVEL", "debug", "log_level", "debug"),
        ("DISPATCHER_LOG_FORMAT", "json", "log_format", "json"),
    ],
)
def test_every_setting_has_its_variable(variable: str, value: str, name: str, expected: object) -> None:
    assert Settings.read({variable: value}).model_dump() == {**DEFAULTS, name: expected}


def test_no_setting_is_without_a_test_of_its_variable() -> None:
    assert Settings.model_fields.keys() == DEFAULTS.keys()


def test_given_settings_go_before_the_environment() -> None:
    assert Settings.read({"DISPATCHER_LISTEN_PORT": "1"}, {"listen_port": 2}).listen_port == 2


def test_other_variables_of_that_prefix_are_no_mistake() -> None:
    assert Settings.read({"DISPATCHER_TEST_POSTGRES_URL": "x"}).model_dump() == DEFAULTS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listen_port", -1),
        ("listen_port", 65536),
        ("lease_seconds", 0.5),
        ("lease_seconds", 301),
        ("renew_seconds", 0),
        ("renew_seconds", 61),
        ("write_timeout_seconds", 0),
        ("read_timeout_seconds", 0),
        ("cycle_seconds", -1),
        ("poll_seconds", 0),
        ("sample_seconds", 0),
        ("sample_seconds", 601),
        ("concurrency", 0),
        ("concurrency", 1025),
        ("starvation_bound_seconds", -1),
        ("reservation_bound_seconds", 0),
        ("kueue_wait_seconds", -1),
        ("kueue_wait_seconds", 366 * 86400 + 1),
        ("kept_seconds", -1),
        ("kept_seconds", 366 * 86400 + 1),
        ("queue_policy", "FIFO"),
        ("queue_access", "closed"),
        ("declared_demand", "derived"),
        ("growth", "grants"),
        ("fit", "nodes"),
        ("max_priority", 2**31),
        ("max_priority_slope", -1),
        ("queued_per_namespace", 0),
        ("submitter", "label"),
        ("author_check", "on"),
        ("field_validation", "warn"),
        ("log_format", "xml"),
    ],
)
def test_value_out_of_bounds_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(**{name: value})
    assert [error["loc"] for error in caught.value.errors()] == [(name,)]


def test_review_of_authors_needs_to_know_who_they_are() -> None:
    with pytest.raises(
        ValidationError,
        match="DISPATCHER_SUBMITTER=namespace names no user: apply manifests/submitter-policy",
    ):
        Settings(author_check="review")
    assert Settings(author_check="review", submitter="annotation").author_check == "review"


@pytest.mark.parametrize(
    ("lease", "renew", "write", "works"),
    [
        pytest.param(15, 3, 5, True, id="the-default"),
        pytest.param(11, 3, 5, True, id="just-enough"),
        pytest.param(10, 3, 5, False, id="one-renewal-too-few"),
        pytest.param(5, 1, 5, False, id="no-write-could-ever-be-sent"),
    ],
)
def test_lease_leaves_room_for_a_write_and_two_renewals(
    lease: float, renew: float, write: float, works: bool
) -> None:
    given = {"lease_seconds": lease, "renew_seconds": renew, "write_timeout_seconds": write}
    if works:
        assert Settings(**given).lease_seconds == lease
        return
    with pytest.raises(ValidationError, match=f"DISPATCHER_LEASE_SECONDS {lease} is too short: .* at least"):
        Settings(**given)


def test_settings_do_not_change_and_do_not_show_the_password() -> None:
    settings = Settings(database_url=SecretStr("postgresql://user:s3cret@host/name"))
    with pytest.raises(ValidationError, match="frozen"):
        settings.listen_port = 1  # type: ignore[misc]
    assert "s3cret" not in f"{settings!r} {settings}"
