"""The one way in which a benchmark fails on purpose."""


class BenchmarkFailed(Exception):
    """There is no honest figure; the message says why."""
