"""The error of a benchmark without a figure."""

from __future__ import annotations


class BenchmarkFailed(Exception):
    """There is no valid figure; the message says why."""
