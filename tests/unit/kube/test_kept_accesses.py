"""How long the accesses of a kubeconfig are kept, and what makes them anew."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.kube.kept_accesses import KeptAccesses
from dispatcher.kube.user_kubeconfig import Access
from tests.unit.kube.test_user_client import kubeconfig, written

Json = dict[str, Any]

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Login:
    """A plugin beside the kubeconfig that gives another token each time."""

    def __init__(self, folder: Path, expires: str = "") -> None:
        self._runs = folder / "runs"
        program = folder / "login"
        more = f', "expirationTimestamp": "{expires}"' if expires else ""
        program.write_text(
            f"#!/bin/sh\necho run >>{self._runs}\nn=$(wc -l <{self._runs})\n"
            f'echo "{{\\"status\\": {{\\"token\\": \\"t$n\\"{more.replace(chr(34), chr(92) + chr(34))}}}}}"\n'
        )
        program.chmod(0o700)

    @property
    def user(self) -> Json:
        return {"exec": {"command": "./login"}}


def token(access: Access) -> str:
    return access.headers["Authorization"].removeprefix("Bearer ")


def test_plugin_that_names_no_end_runs_once(tmp_path: Path) -> None:
    kept = KeptAccesses(written(tmp_path, kubeconfig(Login(tmp_path).user)))
    assert [token(kept.of()) for _ in range(3)] == ["t1"] * 3
    assert kept.of().server == "http://here:1"
    assert kept.of("other").server == "http://there:1"


@pytest.mark.parametrize(
    ("expires", "later", "found"),
    [
        ("2026-11-01T13:00:00Z", timedelta(minutes=59), "t1"),
        ("2026-11-01T13:00:00Z", timedelta(hours=1), "t2"),
        ("soon", timedelta(0), "t2"),
    ],
)
def test_plugin_runs_again_once_its_credentials_end(
    tmp_path: Path, expires: str, later: timedelta, found: str
) -> None:
    clock = [NOW]
    kept = KeptAccesses(written(tmp_path, kubeconfig(Login(tmp_path, expires).user)), now=lambda: clock[0])
    assert token(kept.of()) == "t1"
    clock[0] += later
    assert token(kept.of()) == found


def test_refused_access_is_made_anew_once_for_all_who_have_it(tmp_path: Path) -> None:
    kept = KeptAccesses(written(tmp_path, kubeconfig(Login(tmp_path).user)))
    refused = kept.of()
    assert [token(kept.renewed("", refused)) for _ in range(2)] == ["t2", "t2"]
    assert token(kept.of()) == "t2"


def test_api_server_that_refuses_everything_has_no_plugin_run_again_and_again(tmp_path: Path) -> None:
    clock = [NOW]
    kept = KeptAccesses(written(tmp_path, kubeconfig(Login(tmp_path).user)), now=lambda: clock[0])
    access, tokens = kept.of(), []
    for _ in range(3):
        clock[0] += timedelta(minutes=2)
        access = kept.renewed("", access)
        tokens.append(token(access))
    assert tokens == ["t2", "t2", "t2"]
    clock[0] += timedelta(minutes=1)
    assert token(kept.renewed("", access)) == "t3"


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    written(tmp_path, "first", "token")
    path = written(tmp_path, kubeconfig({"tokenFile": "token"}))
    kept = KeptAccesses(path)
    assert token(kept.of()) == "first"
    written(tmp_path, "second", "token")
    assert token(kept.of()) == "second"
    written(tmp_path, kubeconfig({"token": "own"}))
    assert (token(kept.of()), kept.has_context("mine"), kept.has_context("none")) == ("own", True, False)


def test_plugin_of_one_context_delays_no_other(tmp_path: Path) -> None:
    login, config = Login(tmp_path), kubeconfig({"token": "own"})
    waits = tmp_path / "waits"
    os.mkfifo(waits)
    program = tmp_path / "login"
    program.write_text(f'#!/bin/sh\nread -r token <{waits}\necho \'{{"status": {{"token": "late"}}}}\'\n')
    config["users"].append({"name": "slow", "user": login.user})
    config["contexts"][1]["context"]["user"] = "slow"
    kept = KeptAccesses(written(tmp_path, config))
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(kept.of, "other")
        with waits.open("w") as answer:  # once the plugin reads from it
            assert token(kept.of()) == "own"
            answer.write("now\n")
        assert token(slow.result()) == "late"
