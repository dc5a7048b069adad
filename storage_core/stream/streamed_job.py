"""A write job of an engine whose stores accept streams: its commit may be marked as one micro-batch of a query."""

from __future__ import annotations

from abc import abstractmethod

from storage_core.store import WriteJob


class StreamedJob(WriteJob):
    """One atomic job that may be a micro-batch."""

    @abstractmethod
    def of_query(self, query: str, version: int) -> StreamedJob:
        """The same job as version `version` of a streaming query: its commit does nothing if that was committed."""
