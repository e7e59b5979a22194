"""Stand-ins for the operators of kinds that docs/kinds.md names, and that `testbed.batch_operators` does not have.

`testbed.pod_crews` and `testbed.train_jobs` decide, from values; this module watches and writes. The objects below an
object are found by their controllers, at any depth. Nothing is made of kinds without an `Operated`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from testbed.operated import Json, Operated
from testbed.pod_crews import CREWS
from testbed.stand_in import StandIn, View, Watched, controller_of, now_text, run_until_told, uid_of
from testbed.train_jobs import TRAIN_JOB

log = logging.getLogger("operators-stand-in")

OPERATED: Final = (*CREWS, TRAIN_JOB)
BELOW: Final = {
    ("v1", "Pod"): ("/api/v1", "pods"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
}
"""The kinds that operators make, with the places where they are."""


class Operators(StandIn):
    """Acts as the operators of all kinds of `OPERATED` on one API server, which need not serve all of them."""

    about = "stand-ins for operators; watching Volcano's Jobs and so on"

    def __init__(self, kubeconfig: Path) -> None:
        self._operated = {(each.version, each.kind): each for each in OPERATED}
        kinds = {key: (f"/apis/{each.version}", each.plural) for key, each in self._operated.items()} | BELOW
        self._views = {key: View() for key in kinds}
        super().__init__(
            kubeconfig,
            [
                Watched(f"{group}/{plural}", self._views[key], [uid_of, controller_of], needed=key in NEEDED)
                for key, (group, plural) in kinds.items()
            ],
        )

    def _primaries(self) -> Iterable[str]:
        return [uid for key in self._operated for uid in self._views[key].by_uid]

    def _find(self, uid: str) -> Json | None:
        return next((each.by_uid[uid] for each in self._views.values() if uid in each.by_uid), None)

    def _below(self, uid: str) -> list[Json]:
        found = [one for view in self._views.values() for one in view.controlled_by(uid)]
        return [*found, *(each for one in found for each in self._below(uid_of(one)))]

    def _name(self, uid: str) -> str:
        found = self._find(uid)
        return (
            f"{found['kind']} {found['metadata']['namespace']}/{found['metadata']['name']}" if found else uid
        )

    async def _reconcile(self, uid: str) -> None:
        """Gives one object what it needs, and has its controller looked at, too."""
        one = self._find(uid)
        if one is None:
            return
        self._wake(controller_of(one))
        operated = self._operated.get((one["apiVersion"], one["kind"]))
        if operated is not None and "deletionTimestamp" not in one["metadata"]:
            await self._act(operated, one)

    async def _act(self, operated: Operated, one: Json) -> None:
        below = self._below(uid_of(one))
        wish = operated.decide(one, below, now_text())
        present = {(each["kind"], each["metadata"]["name"]) for each in below}
        for each in wish.wanted:
            if (each["kind"], each["metadata"]["name"]) not in present:
                await self._make(each)
        for each in wish.unwanted:
            if "deletionTimestamp" not in each["metadata"]:
                await self._delete(each, *BELOW[each["apiVersion"], each["kind"]])
        old = one.get("status") or {}
        changed = {key: value for key, value in wish.status.items() if old.get(key) != value}
        await self._patch_status(one, operated.plural, changed or None)

    async def _make(self, wanted: Json) -> None:
        key = wanted["apiVersion"], wanted["kind"]
        created = await self._create(*BELOW[key], wanted)
        self._views[key].expect(created, asyncio.get_running_loop().time())
        log.info("created %s %s", wanted["kind"], wanted["metadata"]["name"])


NEEDED: Final = frozenset({("v1", "Pod")})


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the stand-ins until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.operators",
        description="Stand-ins for the operators of Volcano's Jobs and so on, not those operators.",
    )
    parser.add_argument("--kubeconfig", type=Path, required=True, help="how to reach the API server")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(run_until_told(Operators(options.kubeconfig)))


if __name__ == "__main__":
    main()
