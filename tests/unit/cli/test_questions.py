"""What the commands over history say of themselves, refuse before they ask anybody, and offer to complete."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dispatcher.__main__ import complete_kubectl_plugin, kubectl_plugin, main
from dispatcher.cli.command_line import SEEN_BY_ALL
from tests.commands import Ran, Run, runner
from tests.fakes import FakeApiServer
from tests.unit.cli.wire import MEMBERS, member, members

HISTORY = ["queue", "show", "history", "usage", "waits", "sql"]
COMMANDS = [*HISTORY, "clusters", "queues", "running", "nodes"]
VERBS = ["hold", "release", "priority", "cancel", "wait", "submit", "logs"]
ALL_COMMANDS = [
    *HISTORY,
    "running",
    "nodes",
    *VERBS,
    "clusters",
    "queues",
    "explain",
    "would",
    "web",
    "demand",
    "wrap",
    "plan",
    "simulate",
]
PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
NO_DATABASE = (
    "no database: set DISPATCHER_DATABASE_URL or --database-url to a libpq URL, such as "
    "postgresql://dispatcher_reader@host:5432/dispatcher"
)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …` without a database, and without a hub."""
    return runner(monkeypatch, capsys)


@pytest.mark.parametrize("command", [*COMMANDS, "explain", "would"])
async def test_every_question_shows_examples_and_exit_codes(ask: Run, command: str) -> None:
    shown = (await ask(command, "--help")).out
    assert f"Examples:\n    kubectl aw {command}" in shown
    assert "Exit codes:\n    0  answered, even if the result is empty\n    1  " in shown


@pytest.mark.parametrize("command", VERBS)
async def test_every_verb_shows_examples_and_exit_codes(ask: Run, command: str) -> None:
    shown = (await ask(command, "--help")).out
    assert f"Examples:\n    kubectl aw {command}" in shown
    assert "Exit codes:\n    0  " in shown


@pytest.mark.parametrize(
    "asked",
    [
        ["history"],
        ["usage"],
        ["waits"],
        ["sql", "SELECT 1"],
    ],
    ids=lambda asked: asked[0],
)
async def test_error_without_a_database_names_the_setting(ask: Run, asked: list[str]) -> None:
    ran = await ask(*asked)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(f": {NO_DATABASE}\n")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["history", "--since", "7"], "'7' is neither how long ago, such as 24h or 7d, nor a day or time"),
        (["usage", "--since", "1h", "--until", "2h"], "--since 1h is not before --until 2h"),
        (
            ["usage", "--since", "2026-11-01", "--until", "2026-11-01"],
            "--since 2026-11-01 is not before --until",
        ),
        (["waits", "--until", "2020-01-01"], "--since 7d is not before --until 2020-01-01"),
        (["sql", "SELECT 1", "--timeout", "soon"], "'soon' is no duration: a number and s, m, h, d or w"),
        (["sql", "SELECT 1", "--timeout", "25h"], "'25h' is no timeout: from 1 ms to a day"),
        (["sql", "SELECT 1", "--timeout", "0.0001s"], "'0.0001s' is no timeout: from 1 ms to a day"),
        (["sql", "SELECT 1", "--limit", "0"], "--limit': 0 is too small: the least is 1\n"),
        (["sql", "SELECT 1", "--limit", "9" * 4400], "is no whole number\n"),
        (["history", "--limit", "all"], "--limit': 'all' is no whole number\n"),
        (["history", "--limit", "1.5"], "--limit': '1.5' is no whole number\n"),
        (["queue", "--watch", "--every", "often"], "--every': 'often' is no number\n"),
        (
            ["queue", "--watch", "--every", "1e9"],
            "--every': 1e9 is too large: the most is 86400\n",
        ),
        (["explain", "train", "--priority", "high"], "--priority': 'high' is no whole number\n"),
        (["priority", "9" * 11, "train"], f"NUMBER': {'9' * 11} is too large: the most is 2147483647\n"),
        (["usage", "--by", "team"], "'team' is not one of 'namespace', 'user', 'queue', 'cluster'"),
        (["queue", "-o", "toml"], "-o': 'toml' is not one of 'json', 'yaml', 'csv', 'wide'"),
        (["queue", "--every", "5"], "--every is the pause of --watch: give --watch, too"),
        (["clusters", "--every", "5"], "--every is the pause of --watch: give --watch, too"),
        (["queue", "--watch", "--every", "0"], "--every': 0 is too small: the least is 0.1\n"),
        (["queue", "--watch", "--every", "-1"], "--every': -1 is too small: the least is 0.1\n"),
        (["history", "--state", "Lost"], "'Lost' is not one of 'Queued', 'Suspended', "),
    ],
)
async def test_malformed_question_reaches_no_server(ask: Run, asked: list[str], why: str) -> None:
    ran = await ask(*asked, *(["--database-url", NOWHERE] if asked[0] != "priority" else []))
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err


async def test_context_without_a_kubeconfig_is_refused(
    ask: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    ran = await ask("would", "-f", "-", "--context", "hub", "--database-url", NOWHERE)
    assert (ran.code, ran.out) == (2, "")
    assert "--context is one of a kubeconfig: give --kubeconfig or KUBECONFIG, too" in ran.err


async def test_a_url_is_never_repeated(ask: Run) -> None:
    ran = await ask("queue", "--database-url", "mysql://me:sesame@host/db")
    assert ran == Ran(1, "", f"{SEEN_BY_ALL}\ndispatcher: the database URL must begin with postgresql://\n")


async def test_clusters_without_a_database_shows_the_list_of_the_hub(run: Run, hub: FakeApiServer) -> None:
    hub.on("GET", MEMBERS, members(member("east")))
    bare, listed = await run(), await run("list")
    assert (bare.code, bare.out) == (0, listed.out)
    assert bare.err == f"There is {NO_DATABASE}. This is what the hub says.\n"
    assert (await run("-o", "json")).out == (await run("list", "-o", "json")).out


@pytest.mark.parametrize("asked", [["-o", "csv"], ["--watch"]])
async def test_the_hub_has_no_csv_and_is_not_watched(run: Run, asked: list[str]) -> None:
    ran = await run(*asked)
    assert (ran.code, ran.out) == (2, "")
    assert "without a database there is neither --watch nor csv" in ran.err


async def test_clusters_with_neither_say_so(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG")
    ran = await ask("clusters")
    assert (ran.code, ran.out) == (1, "")
    assert [line.split(":")[0] for line in ran.err.splitlines()] == ["There is no database", "dispatcher"]
    assert ran.err.endswith(" with --kubeconfig or KUBECONFIG, or run inside a cluster\n")


def test_the_plugin_of_kubectl_speaks_in_its_own_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-aw", "queue", "--database-url", NOWHERE])
    with pytest.raises(SystemExit) as ended:
        kubectl_plugin()
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith("kubectl aw: connection failed")
    monkeypatch.setattr(sys, "argv", ["kubectl-aw", "queue", "--help"])
    with pytest.raises(SystemExit):
        kubectl_plugin()
    assert capsys.readouterr().out.startswith("Usage: kubectl aw queue [OPTIONS]\n")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], ALL_COMMANDS),
        (["wa"], ["waits", "wait"]),
        (["queues", ""], ["show", "hold", "drain", "resume"]),
        (["queues", "hold", "--kube"], ["--kubeconfig"]),
        (["explain", "--wi"], ["--without-cluster"]),
        (["usage", "--by", ""], ["namespace", "user", "queue", "cluster"]),
        (["queue", "-o", "c"], ["csv"]),
        (["history", "--out"], ["--output", "--outcome"]),
        (["show", ""], []),
    ],
)
def test_completion_for_kubectl_offers_the_next_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], offered: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-aw", *words])
    complete_kubectl_plugin()
    assert capsys.readouterr().out.split() == [*offered, ":4"]


@pytest.mark.parametrize(
    ("shell", "registered"),
    [
        ("bash", "complete -o nosort -F _dispatcher_completion dispatcher\n"),
        ("zsh", "compdef _dispatcher_completion dispatcher\n"),
        ("fish", "complete --no-files --command dispatcher --arguments"),
    ],
)
def test_completion_of_the_page_is_a_script_for_the_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str, registered: str
) -> None:
    variable, asked = "_DISPATCHER_COMPLETE", f"{shell}_source"
    assert f"{variable}={asked} dispatcher" in PAGE.read_text(encoding="utf-8")
    monkeypatch.setenv(variable, asked)
    monkeypatch.setattr(sys, "argv", ["dispatcher"])
    with pytest.raises(SystemExit) as ended:
        main()
    script = capsys.readouterr().out
    assert (ended.value.code, registered in script) == (0, True)
    assert f"{variable}={shell}_complete" in script


ELSEWHERE = "postgresql://ada:hunter2@db.example.org/dispatcher"


@pytest.mark.parametrize(
    "asked", [["queue"], ["sql", "SELECT 1"], ["clusters"], ["migrate"]], ids=lambda asked: asked[0]
)
async def test_database_on_another_host_is_not_asked_without_verified_tls(ask: Run, asked: list[str]) -> None:
    ran = await ask(*asked, "--database-url", ELSEWHERE)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(
        f"{SEEN_BY_ALL}\n"
        "dispatcher: the database URL leads to db.example.org with sslmode=prefer, so hosts in between"
    )
    assert "sslmode=verify-full" in ran.err
    assert "hunter2" not in ran.err


@pytest.mark.parametrize("asked", [["queue"], ["sql", "SELECT 1"]], ids=lambda asked: asked[0])
async def test_operator_may_say_that_the_network_is_trusted(
    ask: Run, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_DATABASE_TLS", "unverified")
    ran = await ask(*asked, "--database-url", "postgresql://ada@db.invalid/dispatcher")
    assert ran.code == 3
    monkeypatch.setenv("DISPATCHER_DATABASE_TLS", "perhaps")
    ran = await ask(*asked, "--database-url", ELSEWHERE)
    assert ran == Ran(
        1, "", f"{SEEN_BY_ALL}\ndispatcher: DISPATCHER_DATABASE_TLS is neither verified nor unverified\n"
    )
