"""Signals received where the interpreter cannot propagate an exception: the command ends and prints nothing else."""

from __future__ import annotations

import signal
import time
import weakref

import pytest

from command_line.signals import AGAIN_S, Signals, Stopped


class Thing:
    """An object that a weak reference can point to."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_callback_ends_the_block(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    signals, thing = Signals(), Thing()
    watched = weakref.ref(thing, lambda _: signal.raise_signal(number))
    until = time.monotonic() + 60

    def work() -> None:
        nonlocal thing
        del thing
        while time.monotonic() < until:
            pass

    with pytest.raises(Stopped), signals.raised():
        work()
    assert watched() is None
    assert signals.number == number
    assert time.monotonic() < until
    assert capfd.readouterr().err == ""


def test_what_else_cannot_be_passed_on_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: reported.append(args.exc_type))
    thing = Thing()
    watched = weakref.ref(thing, lambda _: reported[0])
    with Signals().raised():
        del thing
    assert (watched(), reported) == (None, [IndexError])


def test_nothing_comes_after_the_block() -> None:
    thing = Thing()
    watched = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    with Signals().raised():
        del thing
    assert watched() is None
    time.sleep(3 * AGAIN_S)
