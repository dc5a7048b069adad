"""Ports for test servers: each is handed out once, even across processes, and only if nobody listens on it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import free_ports

OTHER = "import sys\nfrom tests.support import free_ports\nprint(free_ports.free_port(), flush=True)\nsys.stdin.read()"
OURS = range(20_990, 20_993)
"""Ports that no test is ever given."""


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only three ports exist, and none of them is taken."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(free_ports, "PORTS", OURS)
    monkeypatch.setattr(free_ports, "_TAKEN", set())
    free_ports._book.cache_clear()
    yield
    free_ports._book().close()
    free_ports._book.cache_clear()


def test_a_port_of_another_process_is_not_given(few: None) -> None:
    code = OTHER.replace("print", f"free_ports.PORTS = {OURS!r}\nprint")
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        assert {*free_ports.free_ports(2), theirs} == set(OURS)
        with pytest.raises(RuntimeError, match="no port of 20990 to 20992 is free"):
            free_ports.free_port()
        other.communicate()
    assert free_ports.free_port() == theirs


def test_a_port_on_which_somebody_listens_is_not_given(few: None) -> None:
    with socket.create_server(("127.0.0.1", OURS[1])):
        assert set(free_ports.free_ports(2)) == {OURS[0], OURS[2]}
        with pytest.raises(RuntimeError):
            free_ports.free_port()


def test_ports_at_distances_are_given_together(few: None) -> None:
    assert free_ports.free_port(-1, 1) == OURS[1]
    with pytest.raises(RuntimeError):
        free_ports.free_port()


def test_a_port_whose_neighbour_is_in_use_is_not_given(few: None) -> None:
    with socket.create_server(("127.0.0.1", OURS[0])):
        assert free_ports.free_port(1) == OURS[1]
