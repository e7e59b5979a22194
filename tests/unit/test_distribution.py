"""How the workers of a run share what each of them needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution import turned

FILES = [Path(f"test_{number}.py") for number in range(10)]


@pytest.mark.parametrize("workers", [1, 3, 4, 20])
def test_each_worker_imports_all_modules_from_another_one_on(workers: int) -> None:
    orders = [turned(FILES, worker, workers) for worker in range(workers)]
    assert all(sorted(order) == FILES for order in orders)
    assert len({order[0] for order in orders}) == min(workers, len(FILES))
