"""Whether a database is reached in a way that nobody in between can read or forge.

The connection carries the queue, what is to be created, and a password. libpq's own default is `sslmode=prefer`, which
takes what it gets and checks no certificate. So another host has to be reached with `sslmode=verify-full`, unless the
operator has said otherwise.
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
    """Raise `SettingsError` for a URL that leads to another host without verified TLS; the message does not quote it.

    `defaults` are libpq's for what the URL leaves out (`PGHOST`, `PGSSLMODE`…); those of this process if not given.
    A URL that libpq cannot read is left to whoever opens it.
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
        where = others[0] if others else "the host of its service"
        raise SettingsError(
            f"the database URL leads to {where} with sslmode={parameters.get('sslmode', 'prefer')}, so that who is in "
            "between can read and change everything: add sslmode=verify-full (and sslrootcert=FILE, or "
            "sslrootcert=system for a public certificate) to the URL; if the network is trusted, set "
            "DISPATCHER_DATABASE_TLS=unverified"
        )


def libpq_defaults() -> dict[str, str]:
    """What libpq takes for parameters that a URL leaves out, from its environment and its service file."""
    options = pq.Conninfo.get_defaults()
    return {each.keyword.decode(): each.val.decode() for each in options if each.val}


def _hosts(parameters: Mapping[str, str]) -> list[str]:
    """Where libpq may go: addresses go before names, and an empty one is the socket of this host."""
    listed = parameters.get("hostaddr") or parameters.get("host") or ""
    return [host.strip() for host in listed.split(",")]


def _is_here(host: str) -> bool:
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
