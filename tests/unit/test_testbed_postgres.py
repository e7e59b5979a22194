"""Where the files of a server for tests are: in memory if they fit, else in a temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.postgres import memory_folder


@pytest.mark.parametrize(
    ("name", "needed", "is_used"),
    [
        pytest.param(".", 1, True, id="room"),
        pytest.param(".", 2**62, False, id="too-small"),
        pytest.param("none", 1, False, id="not-there"),
    ],
)
def test_folder_in_memory_is_used_where_there_is_room(
    tmp_path: Path, name: str, needed: int, is_used: bool
) -> None:
    folder = tmp_path / name
    assert memory_folder(folder, needed) == (folder if is_used else None)
