"""Helpers for tests that copy stores: the contents to compare, and copies that are interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage_core import open_store
from storage_core.store import ScanRequest


class CutError(Exception):
    """The copying process ends."""


def contents(directory: Path) -> dict[str, tuple[bytes, int] | None]:
    """Every file with its bytes and time, and every empty folder; without locks and mqstore's own notes."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if path.relative_to(directory).parts[0] not in ("lock", ".mqstore")
        and (path.is_file() or not any(path.iterdir()))
    }


def served_rows(path: str) -> list[bytes]:
    with open_store(path) as opened:
        plan = opened.snapshot().plan(ScanRequest(columns=("body",)))
        return [body for piece in plan for batch in piece.read() for body in batch["body"].to_pylist()]


def stop_after(count: int, kind: str) -> Callable[[str, str], None]:
    """Aborts the copy at the first request of a kind after `count` of them."""
    requested: list[str] = []

    def fault(what: str, path: str) -> None:
        requested.extend([path] if what == kind else [])
        if what == kind and len(requested) > count:
            raise CutError

    return fault
