"""Queues to look at: that of a working day, and that of a tenant who gives hostile names."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from dispatcher.store.readers.reports import Description
from dispatcher.web.reading import Seen
from tests.unit.web.test_life import EVICTED_ONCE
from tests.unit.web.test_loopback import appwrapper, seen_of

Json = dict[str, Any]

LONGEST_NAME: Final = 253
"""Characters that a name of Kubernetes may have."""
MARKUP: Final = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
RIGHT_TO_LEFT: Final = "\u202e\u05d0\u05d1\u05d2 gpj.exe"


def working_day() -> Seen:
    """Two queues, and a gang whose status says all that one can say."""
    lacks = "nvidia.com/gpu: {} free in its quota, {} requested"
    return seen_of(
        _gang("pretrain-7b", "nlp", 1, 32, "ada", message=lacks.format(12, 32), **_told()),
        _gang(
            "eval-sweep", "nlp", 2, 8, "grace", message=lacks.format(0, 8), repair=_without("nlp/tokenise")
        ),
        _gang("tokenise-again", "nlp", 3, 4, "ada", reason="Backoff", message="is tried again in 40 s"),
        _gang("detector", "vision", 1, 16, "edsger", message="nvidia.com/gpu: 8 free, at most 4 on one node"),
        _gang(
            "ablation-resnet",
            "vision",
            2,
            2,
            "barbara",
            reason="AwaitingApproval",
            message="approval of budget",
        ),
    )


def hostile() -> Seen:
    """Markup, marks that turn text around, and words without an end, wherever a tenant can write."""
    words = f"{MARKUP} {RIGHT_TO_LEFT}"
    evil = _gang("evil", "nlp", 1, 1, words, reason=words, message=words, repair={"message": words})
    evil["status"] |= {"queue": words, "conditions": [{"type": words, "status": "True", "message": words}]}
    name = "n" * LONGEST_NAME
    long = _gang(name, "nlp", 2, 1, name, reason=name, message=name, repair={"message": name})
    long["status"] |= {"queue": name, "conditions": [{"type": name, "status": "True", "message": name}]}
    return seen_of(evil, long)


def ended() -> Description:
    """An AppWrapper that is gone from the hub, and was evicted once."""
    job = Row(
        namespace="nlp",
        name="tokenise",
        kinds="RayCluster",
        user_name="grace",
        queue="team-nlp",
        state="Deleted",
        outcome="completed",
    )
    return replace(EVICTED_ONCE, job=job)


class Row(dict[str, object]):
    """A row of a view, with nothing in the columns that are not named."""

    def __missing__(self, column: str) -> None:
        return None


def _gang(name: str, team: str, position: int, gpus: int, user: str, **waiting: Any) -> Json:  # noqa: ANN401
    found = appwrapper(name, team, position, **{"reason": "InsufficientQuota", "repair": None, **waiting})
    found["status"] |= {"queue": f"team-{team}", "gpus": gpus, "user": user}
    return found


def _without(key: str) -> Json:
    return {"message": f"it would be dispatched without {key}"}


def _told() -> Json:
    holder = {"namespace": "nlp", "user": "grace", "since": "2026-11-01T09:10:00Z"}
    return {
        "repair": _without("nlp/tokenise"),
        "holders": [{**holder, "name": "tokenise"}, {**holder, "name": "finetune-13b", "user": "ada"}],
        "otherHolders": 2,
        "leastPriority": 60,
        "estimatedStart": "2026-11-01T13:20:00Z",
        "clusters": [
            {
                "cluster": "east",
                "reason": "InsufficientQuota",
                "message": "nvidia.com/gpu: 12 free, 32 requested",
            },
            {
                "cluster": "west",
                "reason": "NoNodeFits",
                "message": "4 of 8 pods have a node; 3 nodes are cordoned",
            },
        ],
    }
