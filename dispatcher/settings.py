"""What an operator can set, each with its unit, default and the reason for the default; read once.

Values come from the environment (`DISPATCHER_…`) or from flags of the same names, and are handed to constructors. A
command that only asks the database reads its two variables itself (`cli.query`): no other setting can stop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

PREFIX: Final = "DISPATCHER_"


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{setting.upper()}"


class Settings(BaseModel):
    """The dispatcher's settings; frozen."""

    model_config = ConfigDict(frozen=True)

    database_url: SecretStr = SecretStr("")
    """A libpq URL, `postgresql://user:password@host:port/name` or `…/name?host=/socket/folder`. No default: the queue
    must not start empty in the wrong place."""

    database_tls: Literal["verified", "unverified"] = "verified"
    """`verified` refuses a database on another host unless the URL has `sslmode=verify-full`; a socket and the loopback
    are always allowed. It is the default because the queue decides what is created; `unverified` is for a trusted
    network."""

    kubeconfig: str = ""
    """Path of a kubeconfig. Empty: the `KUBECONFIG` variable, else the pod's own ServiceAccount."""

    namespace: str = ""
    """The dispatcher's own namespace, the only one whose Secrets are read: kubeconfigs of member clusters. Empty: the
    pod's, else `default`."""

    listen_address: str = "127.0.0.1"
    """Where probes and metrics are served. Loopback, so that trying it out opens nothing; in a pod, 0.0.0.0."""

    listen_port: Annotated[int, Field(ge=0, le=65535)] = 8081
    """Port of probes and metrics; 0 lets the system choose. 8081 as MCAD and most controllers do."""

    lease_seconds: Annotated[float, Field(ge=1, le=300)] = 15.0
    """Seconds for which a lease is valid without renewal. A takeover after a crash takes at most this long."""

    renew_seconds: Annotated[float, Field(gt=0, le=60)] = 3.0
    """Time between renewals: five tries before the lease runs out."""

    write_timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    """Longest wait for a write to an API server; also kept off the end of the lease."""

    read_timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 10.0
    """Longest wait for a read from an API server."""

    cycle_seconds: Annotated[float, Field(ge=0, le=10)] = 0.05
    """Least time between two scheduling cycles: arrivals gather, at the price of at most this much latency."""

    poll_seconds: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Longest time between two scheduling cycles, in case a wake-up is lost."""

    declared_demand: Literal["larger", "trusted"] = "larger"
    """How `custompodresources` are charged where the template says what its pods ask for: the larger of the two, of
    each resource, or what is declared alone, as MCAD did. The larger, so that no gang gets more than it is charged for,
    and a kind that makes no pods holds nothing."""

    growth: Literal["grant", "charge"] = "grant"
    """How a gang grows whose kind has an autoscaler (Ray's): with `grant`, each pod beyond the demand has a scheduling
    gate until the scheduler has granted it; with `charge`, pods start by themselves and are charged once they have
    nodes. It counts for gangs that are dispatched from now on. Grants, so that no growth exceeds a quota or takes the
    room of a gang that has waited for it."""

    kinds_file: str = ""
    """Path of a YAML file that declares further kinds of wrapped objects: where their pod templates are and what ends
    them (docs/kinds.md). It is read once, at the start. Empty: only the built-in kinds are known, which suits a cluster
    without operators of its own."""

    fit: Literal["node", "aggregate"] = "node"
    """Where a gang fits: `node` gives every pod a node before the dispatch; `aggregate` compares the gang's demand with
    the sums over the nodes, as MCAD did. `node`, because a gang that fits by sums may have a pod that no node takes."""

    provisioning: str = ""
    """The provisioning class that is asked for capacity before a gang is dispatched, for clusters whose MemberCluster
    declares none, as JSON: `{"className": "queued-provisioning.gke.io", "managedResources": ["nvidia.com/gpu"]}`
    (docs/provisioning.md). Empty: gangs are dispatched only to free capacity, which suits clusters of a fixed size."""

    potential: str = ""
    """The pools of the hub's own cluster that grow for pending pods, as JSON with `pools`, `onPotential` and
    `bindWithinSeconds` (docs/provisioning.md); pools of the MemberCluster `hub` count instead of them. Empty: gangs
    are dispatched only to existing nodes, which suits a cluster without an autoscaler."""

    max_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    """The highest priority that counts, in namespaces whose annotation `dispatcher.codeflare.dev/max-priority` says
    nothing else. No bound, as in MCAD: which priorities are in use is not ours to know."""

    max_priority_slope: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """The highest `priorityslope` that counts, in namespaces whose annotation
    `dispatcher.codeflare.dev/max-priority-slope` says nothing else. No bound; but 0 where the priority has one, which
    any slope would pass after a while."""

    queued_per_namespace: Annotated[int, Field(ge=1, le=10**9)] = 5000
    """AppWrappers of one namespace that may be queued or suspended. More wait outside the queue, oldest first, and cost
    nothing there. 5000: far more than people submit by hand, and a tenth of what one dispatcher is measured with."""

    queue_policy: Literal["BestEffortFIFO", "StrictFIFO"] = "BestEffortFIFO"
    """BestEffortFIFO dispatches gangs that fit before an older gang that does not; StrictFIFO always keeps the order.
    The default keeps GPUs busy; `starvation_bound_seconds` bounds how long a gang is passed over."""

    queue_access: Literal["selected", "open"] = "selected"
    """Which namespaces a DispatchQueue serves that has no `namespaceSelector` on the way to its root. selected: only
    namespaces whose own label names the queue, and the queue `default` exists only if it is declared. open: every
    namespace, so that any user's label takes the quota of any such queue, and `default` is always there. Where no queue
    is declared, a gang whose label names one waits for it under `selected`, and runs in `default` under `open`."""

    starvation_bound_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Seconds a gang may be blocked at the head of the queue before it gets a backfill reservation; BestEffortFIFO
    only. Ten minutes: long compared with small jobs, short compared with a working day."""

    reservation_bound_seconds: Annotated[float, Field(gt=0, le=366 * 86400)] = 24 * 3600.0
    """How long a backfill reservation may take to be complete before it moves to another cluster. Once each cluster was
    tried that the gang may go to, it ends for at least `starvation_bound_seconds`, and begins anew with twice that. One
    day, as the default of Slurm's `bf_window`: longer than most runs, so that a reservation outlasts them in its first
    round; short enough that a wrong choice of cluster is corrected the next day. Set it above the longest run if that
    is known."""

    kueue_wait_seconds: Annotated[float, Field(ge=0, le=366 * 86400)] = 24 * 3600.0
    """Seconds for which an attempt of a gang without pods keeps its place while Kueue has not admitted its objects.
    They count from the dispatch until the gang has run, then from each eviction by Kueue. Afterwards the gang is
    requeued, and its next attempt has as long; by default the fourth one fails. 0 misses such pods as any others. A
    day, the longest time without pods that an author can ask for by annotation: any user can write Kueue's label, also
    where no Kueue runs. Longer where gangs wait longer for Kueue's quota; 0 without Kueue."""

    kept_seconds: Annotated[float, Field(ge=0, le=366 * 86400)] = 7 * 86400.0
    """Seconds for which the objects of an ended AppWrapper are kept for their logs, unless its annotations ask for
    less; 0 removes them at once. A week, as in AppWrapper v1beta2: longer than a weekend, and bounded."""

    history_days: Annotated[float, Field(ge=1, le=36600)] = 400.0
    """How long history is kept, in days; it is dropped by whole months, one a day at most. With a year and a month,
    this month can be compared with the same one of last year."""

    reader_seconds: Annotated[float, Field(ge=30, le=86400)] = 300.0
    """Longest transaction of a role that only reads history, in seconds: the leader ends its session then, whatever
    timeouts it has set for itself. Five minutes: ten times the reader's own timeout, and no harm to the queue yet."""

    probe_seconds: Annotated[float, Field(gt=0, le=300)] = 5.0
    """Seconds between two probes of a member cluster; each also reads its kubeconfig again."""

    unreachable_seconds: Annotated[float, Field(ge=0, le=3600)] = 15.0
    """Seconds without an answer after which a member cluster counts as unreachable; after its first missed answer
    nothing new is dispatched there. A restart of an API server takes less."""

    unlisted_seconds: Annotated[float, Field(ge=1, le=3600)] = 60.0
    """Seconds for which a leader may be unable to list the MemberClusters, while members are known, before it gives up
    leadership for another replica that may be able to. Also the seconds after which a new leader does so if none of its
    first lists (AppWrappers, nodes, pods, namespaces, queues) gets any further. A minute: an API server restarts, and a
    role that is being replaced is back, in less; giving up earlier helps nobody, since nothing is dispatched
    meanwhile."""

    sample_seconds: Annotated[int, Field(ge=1, le=600)] = 300
    """Seconds between two samples of every cluster's capacity and every queue's length, taken at multiples of it on the
    database's clock. Five minutes: fine enough for the curve of a day, and a hundred thousand rows a year for each
    cluster and resource. At most ten: for longer no sample stands, and utilisation would have gaps."""

    snapshot_seconds: Annotated[float, Field(ge=0.1, le=3600)] = 10.0
    """Least seconds between two writes of the snapshot of clusters that `kubectl aw explain` and `would` read, written
    only when a cluster has changed; and between two updates of positions and repairs in statuses. Ten: an explanation
    is about the present, and 5,000 nodes are a megabyte."""

    queue_status_seconds: Annotated[float, Field(ge=0.1, le=3600)] = 10.0
    """Seconds between two rounds that count all queues and write the DispatchQueues' statuses that differ. Ten: the
    counts of a queue of many short gangs change with each of them, and each change would be a write."""

    concurrency: Annotated[int, Field(ge=1, le=1024)] = 32
    """AppWrappers of one cluster that are reconciled at once, which bounds the connections to its API server. Each
    cluster has its own limit: a cluster that does not answer delays no other."""

    submitter: Literal["namespace", "annotation"] = "namespace"
    """Where the submitter of an AppWrapper is read: its namespace, or its annotation `dispatcher.codeflare.dev/user`.
    The namespace, because anybody can write the annotation where `manifests/submitter-policy.yaml` is not enforced."""

    author_check: Literal["policy", "review", "off"] = "policy"
    """Who makes sure that authors may create what their AppWrappers wrap: the API server, by
    `manifests/policies/author-policy.yaml`; the dispatcher, which asks by SubjectAccessReview for the user whom the
    annotation names, and refuses an AppWrapper that names none; or nobody. The policy, because its refusal reaches the
    author at once and costs the dispatcher nothing."""

    denied_namespaces: str = "kube-system,kube-public,kube-node-lease"
    """Namespaces, separated by commas, whose AppWrappers are Failed at once, beside the dispatcher's own where that is
    known. Kubernetes' own, because pods there may do what no user of a queue should."""

    wrapped_secrets: Literal["refused", "stored"] = "refused"
    """Whether an AppWrapper may wrap a Secret with values. `stored` keeps the values in the database, where its owner
    and its backups show them. `refused`, because users can create a Secret beside their AppWrapper."""

    field_validation: Literal["Strict", "Warn", "Ignore"] = "Warn"
    """What API servers do about fields of wrapped objects that they do not know, for example `replica: 3` in a
    Deployment, at their creation: `Strict` refuses the object, so the AppWrapper fails; `Warn` drops the fields, and
    the condition CreatedWithWarnings names them; `Ignore` drops them silently. Unless they are ignored, dry runs look
    for them while a gang waits, and the condition UnknownFields names them. `Warn`, because AppWrappers with such
    fields run under MCAD, and nobody should have to find a typing error by the missing pods."""

    log_level: str = "info"
    """Least level that is logged: debug, info, warning or error."""

    log_format: Literal["auto", "json", "console"] = "auto"
    """`json`, `console`, or `auto`: console on a terminal, else JSON."""

    @classmethod
    def read(cls, environment: Mapping[str, str], flags: Mapping[str, str | int] = {}) -> Self:
        """Return the settings of the environment, overridden by flags; pydantic's `ValidationError` names the first."""
        variables = {name: variable_of(name) for name in cls.model_fields}
        given = {name: environment[each] for name, each in variables.items() if each in environment}
        return cls.model_validate({**given, **flags})

    @model_validator(mode="after")
    def _review_knows_whom_to_ask_about(self) -> Self:
        if self.author_check == "review" and self.submitter != "annotation":
            raise ValueError(
                "DISPATCHER_AUTHOR_CHECK=review asks what the submitter may do, and DISPATCHER_SUBMITTER=namespace "
                "names no user: apply manifests/submitter-policy.yaml and set DISPATCHER_SUBMITTER=annotation"
            )
        return self

    @model_validator(mode="after")
    def _lease_leaves_room(self) -> Self:
        least = self.write_timeout_seconds + 2 * self.renew_seconds
        if self.lease_seconds < least:
            raise ValueError(
                f"DISPATCHER_LEASE_SECONDS {self.lease_seconds:g} is too short: writes stop "
                "DISPATCHER_WRITE_TIMEOUT_SECONDS before it ends, and two renewals (DISPATCHER_RENEW_SECONDS) must fit "
                f"before that; make it at least {least:g}"
            )
        return self
