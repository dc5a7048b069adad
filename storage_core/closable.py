"""What is closed when a `with` block ends, by an error too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closable(ABC):
    """A context manager that closes itself."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what is held; nothing the second time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
