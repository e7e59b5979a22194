"""A real Prometheus and promtool for tests, compiled from Go modules as the control plane is.

They are a build of their own, without the discovery of cloud providers, which takes most of the compilation. Only tests
that are about alerts and the dashboard need it, so nothing here is built unless it is asked for.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import yaml

from testbed import build
from testbed.ports import Ports
from testbed.processes import KILL, Process, Supervisor

Json = dict[str, Any]

PROJECT: Final = "github.com/prometheus/prometheus"
RECIPE: Final = build.Recipe(
    "Prometheus",
    Path(__file__).parent / "prometheus",
    (f"{PROJECT}/cmd/prometheus", f"{PROJECT}/cmd/promtool"),
    ldflags="-s -w",
    tags="remove_all_sd",
)
PROVIDE: Final = "Prometheus is not built: run `make prometheus`, which takes four minutes once"
READY_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
ANSWER_SECONDS: Final = 30.0


class QueryRefused(Exception):
    """Prometheus refused a query; the message is its own."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The two programs."""

    prometheus: Path
    promtool: Path


def ensure(say: build.Say | None = None) -> Binaries:
    """The programs, built first if necessary: about four minutes on two cores, once. Raises `BuildFailed`."""
    return _in(build.ensure_built(RECIPE, say))


def find() -> Binaries | None:
    """The programs if they were built; None if not."""
    folder = build.find_built(RECIPE)
    return _in(folder) if folder else None


def _in(folder: Path) -> Binaries:
    return Binaries(folder / "prometheus", folder / "promtool")


@dataclass(frozen=True, slots=True)
class Scrape:
    """The targets (`host:port`) by their label `pod`, and how often they are scraped and rules are evaluated."""

    targets: Mapping[str, str]
    interval: str = "200ms"
    timeout: str = "200ms"


class Prometheus:
    """One server with its data in a folder of the supervisor; the supervisor or `down` ends it."""

    def __init__(self, supervisor: Supervisor, binaries: Binaries, rules: Path, scrape: Scrape) -> None:
        self._supervisor = supervisor
        self._folder = supervisor.folder / "prometheus"
        self._folder.mkdir()
        self._ports = Ports("web")
        supervisor.afterwards(self._ports.release)
        self.url = f"http://127.0.0.1:{self._ports['web']}"
        config = self._folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(configuration(rules, scrape)))
        flags = [
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._ports['web']}",
        ]
        self._process: Process = supervisor.start(
            "prometheus", [str(binaries.prometheus), *flags], ending=KILL
        )

    def up(self) -> None:
        """Returns when it answers; raises `ProcessDied` if it ended, `TimeoutError` after a minute."""
        self.until(self._is_ready, "Prometheus is ready")

    def down(self) -> None:
        """Ends it."""
        self._supervisor.stop(self._process)
        self._ports.release()

    def query(self, expression: str) -> list[Json]:
        """The series that an expression has now; raises `QueryRefused`."""
        found: list[Json] = self._get("query", {"query": expression})["result"]
        return found

    def firing(self) -> list[Json]:
        """The labels of each alert that fires now."""
        alerts = self._get("alerts", {})["alerts"]
        return [each["labels"] for each in alerts if each["state"] == "firing"]

    def until(self, look: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
        """Returns once `look` is true; raises `TimeoutError`, and `ProcessDied` if Prometheus ended."""
        deadline = time.monotonic() + seconds
        while not look():
            self._process.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited in vain for: {what}")
            time.sleep(POLL_SECONDS)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def _get(self, what: str, query: Mapping[str, str]) -> Json:
        url = f"{self.url}/api/v1/{what}?{urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:  # noqa: S310  # http on loopback
                data: Json = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise QueryRefused(error.read().decode()) from error
        return data


def configuration(rules: Path, scrape: Scrape) -> Json:
    """The configuration of a server."""
    targets = [{"targets": [address], "labels": {"pod": name}} for name, address in scrape.targets.items()]
    return {
        "global": {
            "scrape_interval": scrape.interval,
            "scrape_timeout": scrape.timeout,
            "evaluation_interval": scrape.interval,
        },
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "dispatcher", "static_configs": targets}],
    }
