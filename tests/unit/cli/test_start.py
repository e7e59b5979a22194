"""What a command imports is most of the time it takes: nothing that only another command needs."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import click
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dispatcher.__main__ import MODULES, dispatcher_program, plugin_program
from testbed.certificates import make_ca

LIBRARIES = (
    "aiohttp",
    "alembic",
    "kubernetes_asyncio",
    "mako",
    "numpy",
    "psycopg",
    "pydantic",
    "sqlalchemy",
    "structlog",
    "yaml",
)
"""Libraries that take long to import. Where rich and pygments are installed, structlog imports them."""
SHOW = """
import sys
{statement}
print(" ".join(sys.modules))
"""
PARSED = """
import sys
sys.argv = ["dispatcher", {words}]
from dispatcher.__main__ import main
try:
    main()
except SystemExit:
    pass
"""
NOWHERE = "postgresql://nobody@localhost:1/nothing"


def imported(statement: str) -> set[str]:
    """The libraries that a statement imports in a process of its own."""
    return {name.partition(".")[0] for name in modules(statement)}.intersection(LIBRARIES)


@cache
def modules(statement: str) -> frozenset[str]:
    """All modules that a statement imports in a process of its own. Tests of the same statement share the process."""
    command = [sys.executable, "-c", SHOW.format(statement=statement)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603  # our own
    return frozenset(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    [
        ["queue", "--database-url", NOWHERE],
        ["show", "train", "--database-url", NOWHERE],
        ["sql", "SELECT 1", "--database-url", NOWHERE],
        ["clusters", "--database-url", NOWHERE],
        ["clusters", "drain", "--help"],
        ["queues", "hold", "--help"],
    ],
    ids=" ".join,
)
def test_command_that_needs_no_cluster_imports_nothing_for_one(words: list[str]) -> None:
    assert imported(PARSED.format(words=", ".join(map(repr, words)))) <= {"psycopg"}


@pytest.mark.parametrize(
    "words",
    [
        ["clusters", "list", "--kubeconfig", "/dev/null"],
        ["queues", "hold", "team-a", "--kubeconfig", "/dev/null"],
        ["clusters", "cordon", "east", "--kubeconfig", "/dev/null"],
        ["clusters", "add", "hub", "--kubeconfig", "/dev/null"],
        ["show", "train", "--database-url", "", "--kubeconfig", "/dev/null"],
        ["running", "-A", "--kubeconfig", "/dev/null"],
        ["nodes", "--kubeconfig", "/dev/null"],
        ["queue", "-A", "--database-url", "", "--kubeconfig", "/dev/null"],
        ["explain", "train", "--database-url", "", "--kubeconfig", "/dev/null"],
        ["hold", "train", "--kubeconfig", "/dev/null"],
        ["wait", "train", "--for", "done", "--kubeconfig", "/dev/null"],
    ],
    ids=" ".join,
)
def test_command_over_a_cluster_imports_no_library_of_kubernetes(words: list[str]) -> None:
    assert imported(PARSED.format(words=", ".join(map(repr, words)))) == {"yaml"}


@pytest.mark.parametrize("words", [["explain", "train"], ["would", "-f", "/dev/null"]], ids=" ".join)
def test_explanations_import_neither_a_library_of_kubernetes_nor_one_of_sql(words: list[str]) -> None:
    found = imported(PARSED.format(words=", ".join(map(repr, [*words, "--database-url", NOWHERE]))))
    assert found <= {"numpy", "psycopg", "yaml"}


def test_dispatcher_imports_no_generated_class_of_the_api() -> None:
    names = {
        name for name in modules("import dispatcher.app") if name.startswith("kubernetes_asyncio.client.")
    }
    assert {name.removeprefix("kubernetes_asyncio.client.") for name in names} == {
        "api_client",
        "configuration",
        "exceptions",
        "models",
        "rest",
    }


def test_dispatcher_imports_neither_the_object_mapper_of_sqlalchemy_nor_a_second_client_of_http() -> None:
    found = modules("import dispatcher.app")
    assert not {"sqlalchemy.orm", "urllib3.connection", "urllib3.util"} & found


def test_estimated_starts_need_no_parser_of_specs() -> None:
    found = modules(
        "import dispatcher.store.snapshot.snapshot_reader, dispatcher.core.scheduling.explain.estimate_words"
    )
    assert not {"dispatcher.api.schema", "dispatcher.core.kinds.demand", "pydantic"} & found


def test_author_is_asked_for_without_a_library_of_kubernetes() -> None:
    assert imported("import dispatcher.cli.people.author, dispatcher.kube.user_client") == {
        "numpy",
        "yaml",
    }


@pytest.mark.parametrize("command", ["demand", "wrap"])
def test_command_over_files_imports_only_what_reads_them(command: str) -> None:
    words = [command, "-f", "/dev/null"]
    assert imported(PARSED.format(words=", ".join(map(repr, words)))) == {"yaml"}


def test_help_imports_none_of_them() -> None:
    assert imported(PARSED.format(words="'--help'")) == set()


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["plan", "-f", "/dev/null"],
        ["simulate", "-f", "/dev/null"],
        ["demand", "-f", "/dev/null"],
        ["running", "-A", "--kubeconfig", "/dev/null"],
        ["nodes", "--kubeconfig", "/dev/null"],
        ["clusters", "list", "--kubeconfig", "/dev/null"],
        ["clusters", "cordon", "east", "--kubeconfig", "/dev/null"],
        ["queues", "--database-url", "", "--kubeconfig", "/dev/null"],
        ["hold", "train", "--kubeconfig", "/dev/null"],
    ],
    ids=" ".join,
)
def test_command_without_coroutines_imports_no_event_loop(words: list[str]) -> None:
    assert "asyncio" not in modules(PARSED.format(words=", ".join(map(repr, words))))


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["history", "--database-url", NOWHERE],
        ["usage", "--database-url", NOWHERE],
        ["sql", "SELECT 1", "--database-url", NOWHERE],
        ["clusters", "--database-url", NOWHERE],
        ["clusters", "list", "--kubeconfig", "/dev/null"],
    ],
    ids=" ".join,
)
def test_command_that_reads_no_gang_imports_no_records(words: list[str]) -> None:
    assert "dispatcher.core.model.records.record" not in modules(
        PARSED.format(words=", ".join(map(repr, words)))
    )


@pytest.mark.parametrize("module", MODULES)
def test_command_imports_no_module_of_another_command(module: str) -> None:
    words = [MODULES[module][0], "--help"]
    found = modules(PARSED.format(words=", ".join(map(repr, words))))
    assert {each for each in MODULES if f"dispatcher.{each}" in found} <= {"cli.files.release", module}


@pytest.mark.parametrize("program", [dispatcher_program, plugin_program], ids=lambda each: each.name)
def test_each_command_is_found_in_the_module_that_names_it(program: click.Group) -> None:
    context = click.Context(program)
    names = program.list_commands(context)
    assert {
        name: found and found.name for name in names if (found := program.get_command(context, name))
    } == {name: name for name in names}
    assert {*names} >= {
        name
        for module in ("queue_listing", "show", "history", "verbs")
        for name in MODULES[f"cli.people.{module}"]
    }
    assert program.get_command(context, "no-command") is None


def test_dispatcher_that_runs_does_not_import_what_migrates() -> None:
    assert imported("import dispatcher.app") == set(LIBRARIES) - {"alembic", "mako"}


TRUSTED = """
import os, ssl
from aiohttp import connector
contexts = connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED, ssl.create_default_context()
print(*(each.cert_store_stats()["x509_ca"] for each in contexts), os.environ.get("SSL_CERT_FILE"))
"""
"""Prints the authorities of the two contexts that aiohttp makes at its import, and of a later one."""


@pytest.mark.parametrize("is_given", [True, False])
def test_dispatcher_reads_the_authorities_of_the_system_for_its_own_connections_only(
    is_given: bool, tmp_path: Path
) -> None:
    key, given = ec.generate_private_key(ec.SECP256R1()), tmp_path / "authorities.pem"
    given.write_bytes(make_ca(key, datetime.now(UTC)).public_bytes(serialization.Encoding.PEM))
    environment = {**os.environ, "SSL_CERT_FILE": str(given)}
    if not is_given:
        del environment["SSL_CERT_FILE"]
    words = "'run', '--database-url', 'postgresql:///nothing', '--kubeconfig', '/dev/null'"
    command = [sys.executable, "-c", PARSED.format(words=words) + TRUSTED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603  # our own
    verified, unverified, later, after = done.stdout.split()
    assert (verified, unverified, after) == ("0", "0", str(given) if is_given else "None")
    assert later == "1" or not is_given


ENDED = """
import atexit, gc
before = gc.get_freeze_count()
atexit.register(lambda: print(gc.get_freeze_count() > before))
"""
"""The function that is registered first is called last."""


@pytest.mark.parametrize("entry", ["main", "kubectl_plugin"])
def test_no_garbage_is_collected_when_a_command_has_ended(entry: str) -> None:
    statement = f"{ENDED}\nfrom dispatcher.__main__ import {entry}\n{entry}()"
    command = [sys.executable, "-c", statement, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603  # our own
    assert done.stdout.splitlines()[-1] == "True"


COLLECTED = """
import gc
from dispatcher.__main__ import {entry}
def count(phase, information):
    collections.append(phase)
collections = []
gc.callbacks.append(count)
gc.freeze = lambda: print(len(collections))
{entry}()
"""
"""Prints the collections until the command has ended, when it calls `gc.freeze`."""


@pytest.mark.parametrize("entry", ["main", "kubectl_plugin"])
def test_imports_of_a_command_cause_no_collection_of_garbage(entry: str) -> None:
    command = [
        sys.executable,
        "-c",
        COLLECTED.format(entry=entry),
        "explain",
        "train",
        "--database-url",
        NOWHERE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603  # our own
    assert (done.stdout, done.returncode) == ("0\n", 3), done.stderr
