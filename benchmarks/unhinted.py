"""`python -m benchmarks.unhinted run`: the dispatcher, whose pods prefer no nodes.

The benchmark of binding shows by it what the preference contributes. The dispatcher has no such setting.
"""

from __future__ import annotations

from dispatcher.__main__ import main
from dispatcher.core.kinds import manifest


def prefer_no_nodes() -> None:
    """From now on this process builds pods without a preference for the nodes of their places."""
    manifest.MOST_HINTED_NODES = 0  # type: ignore[misc]  # a patch of this process only


if __name__ == "__main__":
    prefer_no_nodes()
    main()
