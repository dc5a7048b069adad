"""A Java whose processes see an empty folder where this process sees files; each runs in its own mount namespace."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

WAYS = (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user"))
COVER = 'mount -t tmpfs -o mode=755 nothing "$0" && exec "$@"'


def way_to_hide(folder: Path) -> tuple[str, ...] | None:
    """The command prefix that hides a folder's content, or None if this system does not permit it."""
    for way in WAYS:
        if shutil.which(way[0]) is None:
            continue
        look = [*way, "sh", "-c", COVER, str(folder), "ls", "-A", str(folder)]
        done = subprocess.run(look, capture_output=True, check=False)
        if done.returncode == 0 and not done.stdout:
            return way
    return None


def blind_java_home(folder: Path, hidden: Path, way: tuple[str, ...], java: Path) -> Path:
    """A JAVA_HOME made in `folder`: its java runs `java`, which sees `hidden` as an empty folder."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    command = shlex.join([*way, "sh", "-c", COVER, str(hidden), str(java)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return folder
