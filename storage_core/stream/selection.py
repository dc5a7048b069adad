"""Which queues a stream reads: those that a request selects, whenever they appear. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from storage_core.store import QueueKey, ScanRequest


def selects(request: ScanRequest, by_name: bool) -> Callable[[QueueKey], bool]:
    """Whether a request selects a queue, by topic, pattern or assignment; with `by_name`, an assignment selects all
    priorities of a queue.
    """
    if request.assign is not None and by_name:
        names = {name for name, _ in request.assign}
        return lambda key: key[0] in names
    if request.assign is not None:
        assigned = set(request.assign)
        return lambda key: key in assigned
    if request.topics is not None:
        topics = set(request.topics)
        return lambda key: key[0] in topics
    if request.topic_pattern is not None:
        pattern = re.compile(request.topic_pattern)
        return lambda key: pattern.fullmatch(key[0]) is not None
    return lambda key: True


def named_queues(request: ScanRequest) -> tuple[str, ...]:
    """The names in a request, which help a store that has only hashes of some names."""
    return (*(request.topics or ()), *(topic for topic, _ in request.assign or ()))
