"""Applies a selection of topics to several stores, and to a column of topics.

The selection within one store belongs to the engines, its syntax to `options` and `topic_pattern`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import text_array
from storage_core.errors import OptionError, choices
from storage_core.store import QueueInfo, ScanRequest, Snapshot


def topics_by_store(
    found: Mapping[str, Collection[str]], topics: Sequence[str], word: str = "topic"
) -> dict[str, tuple[str, ...]]:
    """Which of `topics` each store has. Raises OptionError for one that no store has, with the names that exist.

    `word` is the engine's word for a topic.
    """
    known = sorted(set().union(*found.values()))
    for topic in topics:
        if topic not in known:
            raise OptionError(
                word, topic, f"is in none of the {len(found)} stores; {choices(topic, known, f'{word}s')}"
            )
    return {store: tuple(topic for topic in topics if topic in own) for store, own in found.items()}


def refuse_common_topics(stores: Sequence[tuple[str, Sequence[QueueInfo], ScanRequest]]) -> None:
    """Raises OptionError if a selected topic is in two stores: Kafka's columns could not tell their offsets apart."""
    place: dict[str, str] = {}
    for store, queues, request in stores:
        for topic in sorted({queue.topic for queue in queues}):
            if not _selected(topic, request):
                continue
            if topic in place:
                raise OptionError(
                    "layout", "kafka",
                    f"topic {topic} is in the stores {place[topic]} and {store}, and Kafka's columns do not name "
                    "the store; load the stores one by one, choose other topics, or use layout=native",
                )  # fmt: skip
            place[topic] = store


def refuse_repeated_topics(snapshot: Snapshot, request: ScanRequest) -> None:
    """Raises OptionError if several queues of a store have a selected name: Kafka's columns do not tell them apart."""
    for topic in sorted(snapshot.repeated_topics):
        if _selected(topic, request):
            raise OptionError(
                "layout", "kafka",
                f"several queues are called {topic}, and Kafka's columns do not name their virtual host; choose one "
                "with the option vhost, choose other queues, or use layout=native",
            )  # fmt: skip


def matching_topics(topics: pa.Array, pattern: str) -> pa.Array:
    """A boolean for each topic: whether the pattern matches all of it."""
    compiled = re.compile(pattern)
    wanted = [topic for topic in topics.unique().to_pylist() if topic is not None and compiled.fullmatch(topic)]
    return pc.is_in(topics, text_array(wanted))


def _selected(topic: str, request: ScanRequest) -> bool:
    if request.topics is not None:
        return topic in request.topics
    if request.topic_pattern is not None:
        return re.fullmatch(request.topic_pattern, topic) is not None
    return request.assign is None or any(topic == assigned for assigned, _ in request.assign)
