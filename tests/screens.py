"""The screens of the commands at 80, 100, 120 and 160 columns: `make docs` writes them, and tests compare them.

The commands that read the database are run on the fortnight of `testbed.past`, those that read only files on the files
below. The others lay out the objects of their own tests, at the time of these.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml
from msgspec.structs import replace

from dispatcher.__main__ import kubectl_plugin
from dispatcher.cli.files.plan import EXAMPLE
from dispatcher.cli.operators import cluster_listing
from dispatcher.cli.operators.queue_tree import QueueList, as_text, as_tree
from dispatcher.cli.people.author import AuthorFacts
from dispatcher.cli.people.explanation_report import Report
from dispatcher.cli.screens.explanation import render
from dispatcher.cli.screens.status_description import StatusDescription
from dispatcher.core.model.records.record import Phase
from dispatcher.core.scheduling.explain.explanation import explain
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from testbed.past import past_database, with_stopped_clock
from testbed.postgres import postgres_server
from tests.builders import at, make_record
from tests.hub_screens import SHOWN, SHOWN_AT, of_hub
from tests.unit.cli.files import test_plan
from tests.unit.cli.files.test_demand import appwrapper, item, job
from tests.unit.cli.operators import test_cluster_listing, test_queues
from tests.unit.cli.people import test_running
from tests.unit.cli.wire import member
from tests.unit.core.kinds.ray import HEAD, WORKER, cluster, group, ray_job

WIDTHS: Final = (80, 100, 120, 160)
OF_PAGE: Final = 100
"""The width of the screens in docs/cli.md."""
GOLDEN: Final = Path(__file__).parent / "golden" / "screens"
PAGE: Final = Path(__file__).parents[1] / "docs" / "cli.md"

OF_DATABASE: Final = {
    "queue": "kubectl aw queue",
    "show": "kubectl aw show pretrain-2",
    "history": "kubectl aw history --since 2026-03-28 --until 2026-04-02",
    "usage": "kubectl aw usage --since 2026-03-24 --until 2026-04-02 --by user --by cluster",
    "waits": "kubectl aw waits --since 2026-03-28 --until 2026-04-02",
    "clusters": "kubectl aw clusters",
}
SCENARIO: Final = "\n".join(EXAMPLE)
MANIFESTS: Final = yaml.safe_dump_all(
    [
        appwrapper(item(job("prepare", parallelism=4)), name="prepare"),
        appwrapper(item(ray_job(cluster(HEAD, group(WORKER, replicas=2)))), name="train"),
    ]
)
OF_FILES: Final = {
    "demand": ("kubectl aw demand -f -", MANIFESTS),
    "plan": ("kubectl aw plan -f -", SCENARIO),
}
OF_VALUES: Final[Mapping[str, Callable[[int], str]]] = {
    "running": lambda width: test_running.report().as_table(width),
    "nodes": lambda width: test_running.node_report().as_table(width),
    "clusters-list": lambda width: cluster_listing.as_table(
        [test_cluster_listing.EAST, member("hub", status={**test_cluster_listing.STATUS, "reason": ""})],
        test_cluster_listing.NOW,
        width,
    ),
    "queues": lambda width: as_tree(QueueList.of(test_queues.ALL), width),
    "show-status": lambda width: StatusDescription(SHOWN, SHOWN_AT).as_text(width),
    "queues-show": lambda width: as_text(QueueList.of(test_queues.ALL), "asr", width),
    "explain": lambda width: render(_explained().document(), width),
    "would": lambda width: render(
        replace(_explained(), author=AuthorFacts(("ada may not create Job (batch) in team-a",))).document(),
        width,
    ),
}


def of_database(url: str) -> Iterator[tuple[str, str]]:
    """The screens of the commands that read the database of the fortnight, by the name of their files."""
    for name, command in OF_DATABASE.items():
        for width in WIDTHS:
            yield f"{name}-{width}", screen_of(command, width, url=url)


def without_database() -> Iterator[tuple[str, str]]:
    """The screens of the other commands."""
    for name, (command, stdin) in OF_FILES.items():
        for width in WIDTHS:
            yield f"{name}-{width}", screen_of(command, width, stdin)
    for name, drawn in OF_VALUES.items():
        for width in WIDTHS:
            yield f"{name}-{width}", f"{drawn(width)}\n"
    # `hold` refuses a gang that is dispatched, and exits with 1.
    for name, screen in of_hub(lambda command, path: screen_of(command, OF_PAGE, kubeconfig=path, most=1)):
        yield f"{name}-{OF_PAGE}", screen


def golden(name: str) -> str:
    """The screen as it is to be."""
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def page_of(page: str) -> str:
    """The page, with the screens that it names: `<!-- screen: NAME -->` stands before each."""

    def shown(found: re.Match[str]) -> str:
        return f"{found[1]}{golden(f'{found[2]}-{OF_PAGE}')}{found[3]}"

    return re.sub(
        r"(<!-- screen: ([\w-]+) -->\n```console\n\$ [^\n]*\n).*?(```)", shown, page, flags=re.DOTALL
    )


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen_of(
    command: str, width: int, stdin: str = "", url: str = "", kubeconfig: str = "", most: int = 0
) -> str:
    """What a command prints in a terminal of that many columns; its exit code must be `most` at most."""
    terminal, before = _Terminal(), (sys.argv, sys.stdin, dict(os.environ))
    sys.argv, sys.stdin = (
        ["kubectl aw", *shlex.split(command)[2:]],
        io.TextIOWrapper(io.BytesIO(stdin.encode())),
    )
    os.environ |= {"COLUMNS": str(width), "DISPATCHER_DATABASE_URL": url and with_stopped_clock(url)}
    os.environ |= {"KUBECONFIG": kubeconfig, "NO_PROXY": "*"} if kubeconfig else {}
    try:
        with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
            kubectl_plugin()
    except SystemExit as ended:
        if int(str(ended.code or 0)) > most:
            raise AssertionError(terminal.getvalue()) from ended
    finally:
        sys.argv, sys.stdin = before[:2]
        os.environ.clear()
        os.environ |= before[2]
    return terminal.getvalue()


def _explained() -> Report:
    """A gang that waits for another one, which began to run two hours ago."""
    world = replace(parse_scenario(yaml.safe_load(test_plan.SCENARIO)), now=at(7200))
    runs = make_record(Phase.RUNNING, "r", uid="r", user="ada", namespace="vision", expected_seconds=9000)
    records = {each.uid: each for each in (*world.pending, runs)}
    return Report(explain(world, "s"), world, records)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    with postgres_server() as server, past_database(server.url) as past:
        for file, screen in (*of_database(past), *without_database()):
            (GOLDEN / f"{file}.txt").write_text(screen, encoding="utf-8")
    PAGE.write_text(page_of(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
