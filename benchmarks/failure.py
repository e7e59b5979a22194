"""The way in which a benchmark ends without a figure."""

from __future__ import annotations


class BenchmarkFailed(Exception):
    """There is no honest figure; the message says why."""
