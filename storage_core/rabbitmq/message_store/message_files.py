"""The files of a message store that is open for writing, and where in them each message is stored.

`message_store` counts references, `compaction` merges files. Source: rabbitmq.md 6.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage_core.formats.rabbitmq import paths

MERGED_SUFFIX = ".merged"


@dataclass
class Location:
    """Where a message is stored: its reference count, its file, the record's position and size."""

    references: int
    file: int
    position: int
    size: int


@dataclass
class MessageFile:
    """One `.rdq` file: bytes of referenced records, the logical end of its data, the ids of the messages in it."""

    valid_size: int = 0
    size: int = 0
    ids: list[bytes] = field(default_factory=list)


@dataclass(eq=False)
class MessageFiles:
    """The files of one store below `directory`, by number, and the locations of its messages, by id."""

    directory: str
    files: dict[int, MessageFile] = field(default_factory=dict)
    locations: dict[bytes, Location] = field(default_factory=dict)

    def path(self, number: int) -> str:
        """Path of file `number`."""
        return f"{self.directory}/{number}{paths.MESSAGE_SUFFIX}"

    def merged_path(self, number: int) -> str:
        """Path of the file that is to replace file `number`; nothing else uses this name."""
        return f"{self.path(number)}{MERGED_SUFFIX}"

    def survivors(self, number: int) -> list[Location]:
        """Locations of the messages of file `number` that are still known, by position."""
        found = (self.locations.get(message_id) for message_id in self.files[number].ids)
        return sorted((location for location in found if location is not None), key=lambda location: location.position)
