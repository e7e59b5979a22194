"""Backups of one database as an operator makes them: `pg_dump` into a file, `pg_restore` from it.

The programs come with the embedded server; they read from any server that is not newer.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg
from psycopg import sql

from testbed.postgres import drop_database, server_binaries, url_of

BACKUP_SECONDS = 60


def dump(url: str, file: Path) -> None:
    """Writes the whole database into a file, as it is at one moment."""
    _run("pg_dump", "--format=custom", f"--file={file}", url)


def restore(server_url: str, name: str, file: Path) -> str:
    """Replaces the database `name` with the contents of the file; returns its URL."""
    drop_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = url_of(server_url, name)
    _run("pg_restore", "--exit-on-error", f"--dbname={url}", str(file))
    return url


def _run(program: str, *arguments: str) -> None:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    done = subprocess.run(
        [server_binaries() / program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=BACKUP_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program}: {done.stderr.strip()[-1000:]}")
