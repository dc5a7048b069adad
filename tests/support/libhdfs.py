"""Hadoop's C client `libhdfs.so`, which no registry has as a binary: built once from the sources that pydoop ships.

Needs a C compiler and the JDK that `JAVA_HOME` names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.cache import CACHE

SOURCES = "pydoop==2.0.0"
OLD_BUILD = "setuptools < 80"
"""Its setup imports pkg_resources, which later versions lack."""
FOLDER = CACHE / "libhdfs"


def libhdfs() -> Path:
    """The folder of `libhdfs.so`, which is built if it is missing."""
    library = FOLDER / "libhdfs.so"
    if not library.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            _compile(_sources(Path(scratch)), Path(scratch) / "made.so")
            (Path(scratch) / "made.so").rename(library)
    return FOLDER


def _sources(scratch: Path) -> Path:
    (scratch / "constraint.txt").write_text(OLD_BUILD)
    call = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(scratch),
        SOURCES,
    ]
    environment = {**os.environ, "PIP_CONSTRAINT": str(scratch / "constraint.txt")}
    subprocess.run(call, check=True, timeout=300, env=environment)
    (archive,) = scratch.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "tar_filter", None)
        packed.extractall(scratch)
    return scratch / archive.name.removesuffix(".tar.gz") / "src" / "libhdfs"


def _compile(sources: Path, target: Path) -> None:
    (sources / "config.h").write_text("/* nothing of it is needed */\n")
    home = os.environ["JAVA_HOME"]
    folders = [f"-I{sources / name}" for name in ("include/hdfs", "include", ".", "os/posix")]
    java = [f"-I{home}/include", f"-I{home}/include/linux", f"-L{home}/lib/server", "-ljvm"]
    code = [str(path) for name in (".", "common", "os/posix") for path in sorted((sources / name).glob("*.c"))]
    call = ["gcc", "-w", "-shared", "-fPIC", "-fcommon", "-o", str(target), *folders, *code, *java, "-lpthread"]
    subprocess.run(call, check=True, timeout=300)
