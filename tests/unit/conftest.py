"""What the tests of controller and kube share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit import workers


@pytest.fixture
def counted() -> Callable[[str], int]:
    """How many errors of a worker were counted since the test began."""
    return workers.counting()
