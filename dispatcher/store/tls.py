"""Checks that no third party can read or forge the connection to the database.

The connection carries the queue, the objects to create and a password. libpq's default `sslmode=prefer` accepts an
unencrypted connection and checks no certificate. So a URL of another host needs `sslmode=verify-full`, unless the
operator allows otherwise.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from dispatcher.errors import SettingsError

VERIFIED: Final = "verify-full"


def check_verified(url: str, defaults: Mapping[str, str] | None = None) -> None:
    """Raise `SettingsError` for a URL of another host without verified TLS; the message does not quote the URL.

    `defaults` are libpq's values for missing parameters (`PGHOST`, `PGSSLMODE`…), by default those of this process. An
    unreadable URL passes; opening it raises the error.
    """
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.Error:
        return
    parameters = {**(libpq_defaults() if defaults is None else defaults), **given}
    if parameters.get("sslmode") == VERIFIED:
        return
    others = [host for host in _hosts(parameters) if not _is_here(host)]
    if others or "service" in given:
        host = others[0] if others else "the host of its service"
        raise SettingsError(
            f"the database URL leads to {host} with sslmode={parameters.get('sslmode', 'prefer')}, so hosts in "
            "between can read and change everything: add sslmode=verify-full (and sslrootcert=FILE, or "
            "sslrootcert=system for a public certificate) to the URL; if the network is trusted, set "
            "DISPATCHER_DATABASE_TLS=unverified"
        )


def libpq_defaults() -> dict[str, str]:
    """Values of libpq for missing parameters, from its environment and its service file."""
    options = pq.Conninfo.get_defaults()
    return {each.keyword.decode(): each.val.decode() for each in options if each.val}


def _hosts(parameters: Mapping[str, str]) -> list[str]:
    """The hosts that libpq may connect to: addresses take precedence over names; an empty host is the local socket."""
    listed = parameters.get("hostaddr") or parameters.get("host") or ""
    return [host.strip() for host in listed.split(",")]


def _is_here(host: str) -> bool:
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
