"""Where a repair puts its copy of a store: a directory, also if it is named by a `file:` URL."""

from __future__ import annotations

from storage_core.errors import UnsupportedFormatError
from storage_core.files.address import is_remote, normal_path


def target_folder(target: str) -> str:
    """The directory in its normal form. Raises UnsupportedFormatError for a URI."""
    path = normal_path(target)
    if is_remote(path):
        raise UnsupportedFormatError(
            f"{path}: a repair makes its copy in a directory; name one, then `mqstore copy` takes the store to a URI"
        )
    return path
