"""`kubectl aw web` as it is started: what it says before there is a page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatcher.cli.query import SEEN_BY_ALL
from tests.commands import Run, runner
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig

NOWHERE: Final = "http://127.0.0.1:1"
VARIABLE: Final = "DISPATCHER_DATABASE_URL"
SECRET: Final = "postgresql://ada:hunter2@localhost:1/dispatcher"


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command, whose hub does not answer, so that there is no page."""
    monkeypatch.delenv(VARIABLE, raising=False)
    use_kubeconfig(plain_kubeconfig(NOWHERE), tmp_path, monkeypatch)
    return runner(monkeypatch, capsys, "web", "--no-open")


@pytest.mark.parametrize(
    "url", [SECRET, "postgresql://ada@localhost:1/dispatcher?password=hunter2"], ids=["before-host", "query"]
)
async def test_password_on_the_command_line_is_said(web: Run, url: str) -> None:
    ran = await web("--database-url", url)
    assert (ran.code, SEEN_BY_ALL in " ".join(ran.err.split()), "hunter2" in ran.err) == (3, True, False)


@pytest.mark.parametrize("url", ["", "postgresql://ada@localhost:1/dispatcher", "postgresql://["])
async def test_url_without_a_password_is_no_matter(web: Run, url: str) -> None:
    ran = await web("--database-url", url)
    assert (ran.code, "~/.pgpass" in ran.err) == (3, False)


async def test_password_in_the_environment_is_no_matter(web: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    ran = await web()
    assert (ran.code, "~/.pgpass" in ran.err) == (3, False)
