"""API groups, labels and annotations: every name that the dispatcher puts on a Kubernetes object."""

from __future__ import annotations

from typing import Final

WORKLOAD_GROUP: Final = "workload.codeflare.dev"
"""MCAD's group of AppWrappers since August 2023."""

LEGACY_GROUP: Final = "mcad.ibm.com"
"""MCAD's group of AppWrappers before; same schema, plural `mcadappwrappers` in our CRD."""

APPWRAPPER_VERSION: Final = "v1beta1"
APPWRAPPER_KIND: Final = "AppWrapper"
PLURALS: Final = {WORKLOAD_GROUP: "appwrappers", LEGACY_GROUP: "mcadappwrappers"}
API_VERSIONS: Final = (
    f"{WORKLOAD_GROUP}/{APPWRAPPER_VERSION}",
    f"{WORKLOAD_GROUP}/v1beta2",
    f"{LEGACY_GROUP}/{APPWRAPPER_VERSION}",
)
"""Every apiVersion in which our CRDs serve AppWrappers."""

PREFIX: Final = "dispatcher.codeflare.dev"

UID_LABEL: Final = f"{PREFIX}/appwrapper-uid"
"""On every wrapped object and inside its pod templates: the AppWrapper's uid."""

ATTEMPT_LABEL: Final = f"{PREFIX}/attempt"
"""Beside `UID_LABEL`: the number of the attempt that created the object."""

HUB_ANNOTATION: Final = f"{PREFIX}/hub"
"""On every wrapped object: the id of the hub's database."""

SEAL_ANNOTATION: Final = f"{PREFIX}/seal"
"""Beside `HUB_ANNOTATION`: the proof that this database granted the attempt (`core.model.seals`)."""

ITEM_ANNOTATION: Final = f"{PREFIX}/item"
"""On every wrapped object: its index in the AppWrapper."""

ITEM_LABEL: Final = f"{PREFIX}/item"
"""Inside the pod templates of a wrapped object: its index in the AppWrapper, which its pods inherit."""

GROWTH_GATE: Final = f"{PREFIX}/growth"
"""The scheduling gate in the pod templates of a group that can grow: the dispatcher removes it from admitted pods."""

GROWTH_ANNOTATION: Final = GROWTH_GATE
"""Beside `GROWTH_GATE`, and on the pods for good: how many pods of the template the base gang has, and a name of the
template; then, if more than one, how many pods a replica has."""

RAY_REPLICA_LABEL: Final = "ray.io/worker-group-replica-name"
"""On the pods of a Ray worker group with several hosts: the name of their replica, which no other replica has.

KubeRay writes it with its feature RayMultiHostIndexing.
Source: https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/tpu.html
"""

MCAD_NAME_LABEL: Final = "appwrapper.mcad.ibm.com"
"""MCAD's own label: the AppWrapper's name, on wrapped objects and their pods."""

NAME_LABEL: Final = "workload.codeflare.dev/appwrapper"
"""The label of MCAD's successor: the AppWrapper's name, on wrapped objects and their pods."""

RESOURCE_NAME_LABEL: Final = "resourceName"
"""On a wrapped object and its pods, as MCAD wrote it: the wrapped object's name."""

OUR_MANAGERS: Final = frozenset({None, "", "workload.codeflare.dev/appwrapper-controller"})
"""Values of `spec.managedBy` with which this dispatcher manages an AppWrapper."""

MEMBERS_PATH: Final = f"/apis/{PREFIX}/v1alpha1/memberclusters"
"""The path of the MemberClusters at the hub's API server."""

QUEUES_PATH: Final = f"/apis/{PREFIX}/v1alpha1/dispatchqueues"
"""The path of the DispatchQueues at the hub's API server."""

CLUSTER_SELECTOR: Final = f"{PREFIX}/cluster-selector"
"""On an AppWrapper: a label selector over the MemberClusters it may be dispatched to."""

CLUSTER_PREFERENCE: Final = f"{PREFIX}/cluster-preference"
"""On an AppWrapper: a label selector over MemberClusters; the matching ones are preferred among equally good ones."""

APPROVALS: Final = f"{PREFIX}/approvals"
"""On an AppWrapper: the conditions that others must set True before it is dispatched, with commas between."""

USER_ANNOTATION: Final = f"{PREFIX}/user"
"""On an AppWrapper, by the submitters' policy: the user of the API server who created it."""

GROUPS_ANNOTATION: Final = f"{PREFIX}/groups"
"""Beside `USER_ANNOTATION`: the groups of that user, one a line."""

QUEUE_LABEL: Final = f"{PREFIX}/queue"
"""On an AppWrapper or its namespace: the name of its queue."""

KUEUE_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""Kueue's own label of that meaning, on the workloads of a LocalQueue."""

KAI_QUEUE_LABEL: Final = "kai.scheduler/queue"
"""KAI's own label of that meaning."""

KUEUE_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
"""Kueue's label on an AppWrapper: the name of its WorkloadPriorityClass."""

PRIORITY_LABEL: Final = "priorityClassName"
"""KAI's label on an AppWrapper: the name of its PriorityClass."""

MAX_PRIORITY: Final = f"{PREFIX}/max-priority"
"""On a namespace: the highest effective priority of its AppWrappers."""

MAX_PRIORITY_SLOPE: Final = f"{PREFIX}/max-priority-slope"
"""Beside `MAX_PRIORITY`: the highest effective priorityslope."""

EXPECTED_RUNTIME: Final = f"{PREFIX}/expected-runtime-seconds"
"""The annotation of a namespace with the expected run time of its AppWrappers whose authors state none."""
NOTIFY: Final = f"{PREFIX}/notify"
"""An annotation of an AppWrapper or a namespace. It names the targets of notifications (`api.notifications`)."""

ANCHOR_PREFIX: Final = "appwrapper-"
"""Prefix of an anchor's name, followed by the AppWrapper's uid and the number of the attempt."""

FINALIZER: Final = f"{PREFIX}/member-cluster"
"""On an AppWrapper: a member cluster has, or may have, objects of it."""

DISPATCH_LABEL: Final = f"{PREFIX}/dispatch"
DISPATCH_ENABLED: Final = "enabled"
"""The value of `DISPATCH_LABEL` with which a namespace of a member cluster takes gangs."""

HUB_CLUSTER: Final = "hub"
"""The name of the cluster from which the dispatcher reads AppWrappers."""

WOULD_BE_DISPATCHED: Final = "it would be dispatched "
"""How the message of a repair in `status.waiting` begins."""

DEFAULT_NAMESPACE: Final = "default"
"""Kubernetes' own default: objects without a namespace go there, unless the kubeconfig names another one."""
DEFAULT_QUEUE: Final = "default"
FIELD_MANAGER: Final = "appwrapper-dispatcher"

CLUSTER_LABEL: Final = f"{PREFIX}/cluster"
"""On a Secret that `dispatcher clusters add` made: the MemberCluster that uses its kubeconfig."""

MANAGER_LABEL: Final = "app.kubernetes.io/managed-by"
"""Kubernetes' own label: the program that made an object and may remove it; ours is `FIELD_MANAGER`."""
