"""A database on another host is reached with verified TLS, or the operator has said that it need not be."""

from __future__ import annotations

import pytest

from dispatcher.errors import SettingsError
from dispatcher.store.tls import check_verified, libpq_defaults

PREFER = {"sslmode": "prefer"}
SECRET = "hunter2"  # nobody's


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///name",
        "postgresql:///name?host=/var/run/postgresql",
        "postgresql://user@localhost/name",
        "postgresql://user@127.0.0.1:5433/name?sslmode=disable",
        "postgresql://user@127.9.9.9/name",
        "postgresql://user@[::1]:5432/name",
        "postgresql://user@/name?host=@abstract",
        "postgresql://localhost,127.0.0.1/name",
        "postgresql://db.example.org/name?hostaddr=127.0.0.1",
        "postgresql://user:hunter2@db.example.org/name?sslmode=verify-full",
        "postgresql://a.example.org,b.example.org/name?sslmode=verify-full&sslrootcert=system",
        "postgresql://%zz",
    ],
)
def test_socket_loopback_and_verified_hosts_are_taken(url: str) -> None:
    check_verified(url, PREFER)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("postgresql://user:hunter2@db.example.org/name", "db.example.org"),
        ("postgresql://user:hunter2@db.example.org/name?sslmode=require", "db.example.org"),
        ("postgresql://user:hunter2@db.example.org/name?sslmode=verify-ca", "db.example.org"),
        ("postgresql://user:hunter2@10.0.0.7/name?sslmode=disable", "10.0.0.7"),
        ("postgresql://user:hunter2@localhost,db.example.org/name", "db.example.org"),
        ("postgresql://user:hunter2@/name?host=db.example.org", "db.example.org"),
        ("postgresql://user:hunter2@localhost/name?hostaddr=10.0.0.7", "10.0.0.7"),
        ("postgresql://user:hunter2@[2001:db8::1]/name", "2001:db8::1"),
        ("postgresql://user:hunter2@localhost.example.org/name", "localhost.example.org"),
        ("postgresql://user:hunter2@/name?service=prod", "the host of its service"),
    ],
)
def test_other_hosts_are_refused_by_name_with_the_parameter_to_add_and_no_password(
    url: str, host: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        check_verified(url, PREFER)
    said = str(caught.value)
    assert said.startswith(f"the database URL leads to {host} with sslmode=")
    assert "add sslmode=verify-full" in said
    assert "DISPATCHER_DATABASE_TLS=unverified" in said
    assert SECRET not in said


@pytest.mark.parametrize(
    ("defaults", "is_taken"),
    [
        ({"host": "db.example.org", "sslmode": "prefer"}, False),
        ({"host": "db.example.org", "sslmode": "verify-full"}, True),
        ({"hostaddr": "10.0.0.7"}, False),
    ],
)
def test_parts_that_the_url_leaves_out_are_those_of_libpq(defaults: dict[str, str], is_taken: bool) -> None:
    if is_taken:
        check_verified("postgresql:///name", defaults)
    else:
        with pytest.raises(SettingsError):
            check_verified("postgresql:///name", defaults)


def test_libpq_itself_says_what_its_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example.org")
    monkeypatch.setenv("PGSSLMODE", "require")
    defaults = libpq_defaults()
    assert (defaults["host"], defaults["sslmode"]) == ("db.example.org", "require")
    with pytest.raises(SettingsError, match=r"leads to db\.example\.org with sslmode=require"):
        check_verified("postgresql:///name")
