"""What pod templates say about preemption: `preemptionPolicy: Never`, or a priority class that may say so.

A pod has its policy from its class, and may repeat it. A gang goes as a whole: one pod that may not preempt is enough.
Source: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/#non-preempting-priority-class
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from dispatcher.core.kinds.pod_defaults import pod_templates
from dispatcher.core.model.preemption import PREEMPT_NEVER

if TYPE_CHECKING:
    from dispatcher.api.appwrapper import AppWrapperSpec


def never_preempts(spec: AppWrapperSpec, never_preempting: Container[str]) -> bool:
    """True if a pod of the gang may preempt no pod; `never_preempting` are the names of the classes that say so.

    O(the spec), as a spec is walked for its templates.
    """
    for wrapped in spec.wrapped:
        for template in pod_templates(wrapped.template):
            pod = template["spec"]
            name = pod.get("priorityClassName")
            if pod.get("preemptionPolicy") == PREEMPT_NEVER or (
                isinstance(name, str) and name in never_preempting
            ):
                return True
    return False
