"""A tenant's role gets an answer from every command that reads, about its own namespaces; a refused login the hub's."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg import sql

from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.store.readers import reader
from dispatcher.store.state.queue import QueueStore
from tests.builders import make_appwrapper
from tests.commands import Run
from tests.fakes import FakeApiServer, answer
from tests.postgres.changes import committed
from tests.postgres.cli.lives import live, started, submitted
from tests.postgres.cli.test_explain import manifest
from tests.postgres.test_migrations import with_user
from tests.unit.cli.wire import MEMBERS, member, members, plain_kubeconfig, use_kubeconfig

SNAPSHOT_REFUSED = "The database refuses it (permission denied for schema scheduling (42501))"
HUB_ANSWERS = ", so the hub answers."
READER = "ask its operator for a role of dispatcher_reader; a plan shows the gangs of all (docs/plan.md)"


@pytest.fixture
async def filled(queue: QueueStore) -> None:
    """In team-a a gang that waits, and one before it of the same name; in team-b one that failed."""
    await live(queue)


@pytest.fixture
def tenant_url(filled: None, database_url: str) -> Iterator[str]:
    """The database, for a role that was given the namespace team-a."""
    name = f"aw_tenant_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE dispatcher_tenant").format(sql.Identifier(name)))
        admin.execute("INSERT INTO history_grant VALUES (%s, 'team-a')", [name])
        yield with_user(database_url, name)
        admin.execute("DELETE FROM history_grant")
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def tenant(run: Run, tenant_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `dispatcher …` with the tenant's login, and without a hub."""
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", tenant_url)
    return run


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    """A hub with AppWrapper team-a/train, which a kubeconfig leads to."""
    status = {
        "state": "Pending",
        "queuejobstate": "Queueing",
        "queue": "default",
        "waiting": {"reason": "InsufficientResources", "message": "lacks 1 cpu", "position": 1},
    }
    train = make_appwrapper("train", status=status, namespace="team-a")
    collection = "/apis/workload.codeflare.dev/v1beta1/namespaces/team-a/appwrappers"
    async with FakeApiServer() as server:
        server.on("GET", collection, answer({"metadata": {}, "items": [train]}))
        server.on("GET", f"{collection}/train", answer(train))
        server.on("GET", MEMBERS, members(member("east")))
        use_kubeconfig(plain_kubeconfig(server.url, "team-a"), tmp_path, monkeypatch)
        yield server


@pytest.mark.parametrize(
    "asked",
    [
        ["queue"],
        ["history", "--since", "4w"],
        ["show", "train"],
        ["usage", "--since", "4w"],
        ["waits", "--since", "4w"],
        ["explain", "train"],
        ["sql", "SELECT namespace FROM job_history"],
    ],
    ids=lambda asked: str(asked[0]),
)
async def test_tenant_gets_an_answer_about_its_own_namespace_alone(tenant: Run, asked: list[str]) -> None:
    ran = await tenant(*asked)
    assert (ran.code, "team-a" in ran.out, "team-b" in ran.out) == (0, True, False), ran.err
    other = await tenant("show", "probe")
    assert (other.code, "there is no AppWrapper probe" in other.err) == (1, True)


async def test_tenants_rows_are_those_of_the_operator_for_its_namespace(
    tenant: Run, database_url: str
) -> None:
    for asked in (["queue", "-n", "team-a"], ["history", "-n", "team-a", "--since", "4w"], ["show", "train"]):
        mine = json.loads((await tenant(*asked, "-o", "json")).out)
        theirs = json.loads((await tenant(*asked, "-o", "json", "--database-url", database_url)).out)
        assert [each["uid"] for each in mine] == [each["uid"] for each in theirs] != []


WITHOUT = "2 pods failed"
WITH = f"{WITHOUT}; termination message: «batch 7»"


async def test_failure_has_its_termination_message_for_the_tenant_and_not_for_a_reader(
    tenant: Run, queue: QueueStore, database_url: str
) -> None:
    began = datetime.now(UTC) - timedelta(days=2)
    broken = await committed(queue, submitted("uid-of-broken", "team-a", "broken", began))
    broken = await started(queue, broken, "east", began)
    why = EvictionReason("FoundFailedPods", WITHOUT, "", PodFailure("p", "main", 1, "Error", "batch 7"))
    ended = began + timedelta(hours=1)
    broken = await committed(queue, run_changes.fail(broken, why, ended))
    await committed(queue, removal.removed(broken, ended))
    of_reader = ["--database-url", with_user(database_url, reader.READER)]

    for asked in (["history", "--since", "4w", "-o", "wide"], ["show", "broken", "-n", "team-a"]):
        lines = (await tenant(*asked)).out.splitlines()
        assert [line for line in lines if line.endswith(WITH)] != [], asked
        ran = await tenant(*asked, *of_reader)
        assert [line for line in ran.out.splitlines() if line.endswith(WITHOUT)] != [], asked
        assert "batch 7" not in ran.out


async def test_explain_tells_a_tenant_reason_position_and_advice(tenant: Run) -> None:
    ran = await tenant("explain", "train")
    assert " ".join(ran.err.split()) == (
        f"{SNAPSHOT_REFUSED}, so this is what its views say, without holders and changes."
    )
    [told] = json.loads((await tenant("explain", "train", "-o", "json")).out)
    assert (told["name"], told["state"], told["holders"], told["advice"] is not None) == (
        *("train", "Queued", []),
        True,
    )
    assert "position 1 in the queue\n  lacks 1 cpu\n" in ran.out


async def test_change_is_refused_to_a_tenant_with_the_reason(tenant: Run) -> None:
    ran = await tenant("explain", "train", "--priority", "9")
    assert (ran.code, ran.out) == (1, "")
    assert f"changes need the leader's snapshot in the database. {SNAPSHOT_REFUSED}" in " ".join(
        ran.err.split()
    )


async def test_would_counts_the_file_of_a_tenant_and_plans_nothing(tenant: Run) -> None:
    ran = await tenant("would", "-f", "-", stdin=yaml.safe_dump(manifest()))
    assert (ran.code, "was not planned" in ran.out, "asks for cpu" in ran.out) == (0, True, True), ran.err
    assert "so nothing is planned, and free capacity is not known" in " ".join(ran.err.split())
    ran = await tenant("would", "-f", "-", "-o", "json", stdin=yaml.safe_dump(manifest()))
    [told] = json.loads(ran.out)
    assert (told["verdict"], told["queue"], told["pending"]) == (None, "default", 0)


async def test_what_a_tenant_may_not_read_is_answered_by_the_hub(tenant: Run, hub: FakeApiServer) -> None:
    ran = await tenant("explain", "train")
    assert (ran.code, " ".join(ran.err.split())) == (0, SNAPSHOT_REFUSED + HUB_ANSWERS)
    assert "lacks 1 cpu" in ran.out
    ran = await tenant("clusters")
    assert (ran.code, "east" in ran.out) == (0, True)
    assert " ".join(ran.err.split()) == (
        "The database refuses it (a tenant's role does not see clusters), so the hub answers."
    )


@pytest.mark.parametrize(
    "asked", [["queue"], ["show", "train"], ["explain", "train"]], ids=lambda asked: asked[0]
)
async def test_refused_login_is_answered_by_the_hub_with_one_line_why(
    run: Run, filled: None, database_url: str, hub: FakeApiServer, asked: list[str]
) -> None:
    ran = await run(*asked, "--database-url", with_user(database_url, "nobody_at_all"))
    assert (ran.code, "train" in ran.out) == (0, True), ran.err
    first = ran.err.splitlines()[0]
    assert first.startswith("The database refuses it (")
    assert 'role "nobody_at_all" does not exist' in " ".join(ran.err.split())


@pytest.mark.parametrize("asked", ["history", "usage", "waits"])
async def test_refused_login_is_told_how_to_get_one(
    run: Run, filled: None, database_url: str, asked: str
) -> None:
    ran = await run(asked, "--database-url", with_user(database_url, "nobody_at_all"))
    assert (ran.code, ran.out) == (1, "")
    assert "ask its operator for a role of dispatcher_tenant" in " ".join(ran.err.split())


async def test_refused_login_without_a_hub_ends_with_both_reasons(
    run: Run, filled: None, database_url: str
) -> None:
    ran = await run("queue", "--database-url", with_user(database_url, "nobody_at_all"))
    assert (ran.code, ran.out) == (1, "")
    assert "does not exist" in " ".join(ran.err.split())
    assert "no Kubernetes credentials" in " ".join(ran.err.split())


async def test_plan_on_the_snapshot_is_refused_to_a_tenant_with_the_role_that_it_needs(tenant: Run) -> None:
    ran = await tenant("plan", "-", "--live", stdin=yaml.safe_dump(manifest()))
    assert (ran.code, ran.out) == (1, "")
    assert " ".join(ran.err.split()) == (
        f"dispatcher: --live needs the leader's snapshot in the database. {SNAPSHOT_REFUSED}: {READER}"
    )


async def test_plan_on_the_snapshot_says_to_a_refused_login_which_role_it_needs(
    run: Run, filled: None, database_url: str
) -> None:
    account = with_user(database_url, "nobody_at_all")
    ran = await run("plan", "-", "--live", "--database-url", account, stdin=yaml.safe_dump(manifest()))
    assert (ran.code, ran.out) == (1, "")
    said = " ".join(ran.err.split())
    assert 'role "nobody_at_all" does not exist' in said
    assert said.endswith(READER)
