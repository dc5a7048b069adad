"""A Java whose processes see an empty folder where this process sees files: each in a mount namespace of its own."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

WAYS = (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user"))
COVER = 'mount -t tmpfs -o mode=755 nothing "$0" && exec "$@"'


def way_to_hide(folder: Path) -> tuple[str, ...] | None:
    """The command before which a folder's content is hidden, or None where this system does not let us."""
    for way in WAYS:
        if shutil.which(way[0]) is None:
            continue
        look = [*way, "sh", "-c", COVER, str(folder), "ls", "-A", str(folder)]
        done = subprocess.run(look, capture_output=True, check=False)
        if done.returncode == 0 and not done.stdout:
            return way
    return None


def blind_java_home(folder: Path, hidden: Path, way: tuple[str, ...], java: Path) -> Path:
    """A JAVA_HOME made in `folder`: its java is `java`, for which `hidden` is an empty folder."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    command = shlex.join([*way, "sh", "-c", COVER, str(hidden), str(java)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return folder
