"""The command `mqstore` for pages that use `s3://`: a folder of the test is the bucket, with one file per object."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from command_line.main import main
from storage_core.files.address import Address
from storage_core.files.remote.access import Access
from storage_core.files.remote.back_end import BACK_ENDS
from tests.support.memory_bucket import Bucket

FOLDER = "MQSTORE_PAGE_BUCKETS"


class FolderBucket(Bucket):
    """A bucket whose objects outlive the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.add(str(path.relative_to(folder)), path)

    def put(self, path: str, source: Callable[[], Iterator[bytes]], size: int, only_new: bool) -> None:
        super().put(path, source, size, only_new)
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"".join(source()))


def connect(address: Address, access: Access) -> Bucket:
    """The bucket of an address, backed by its folder."""
    del access
    return FolderBucket(Path(os.environ[FOLDER]) / address.authority)


if __name__ == "__main__":
    BACK_ENDS["s3"] = connect
    main()
