"""`python -m benchmarks.unhinted run`: runs the dispatcher, but pods prefer no nodes.

The binding benchmark runs both, to measure the effect of the preference. The dispatcher has no setting for it.
"""

from __future__ import annotations

from dispatcher.__main__ import main
from dispatcher.core.kinds import manifest


def prefer_no_nodes() -> None:
    """From now on this process builds pods without a preference for their assigned nodes."""
    manifest.MOST_HINTED_NODES = 0  # type: ignore[misc]  # a patch of this process only


if __name__ == "__main__":
    prefer_no_nodes()
    main()
