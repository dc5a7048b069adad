"""The command line of a module that regenerates fixtures with the real systems."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping


def make_requested(makers: Mapping[str, Callable[[], None]], about: str | None) -> None:
    """Makes the fixtures named on the command line, or all of them if it names none."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to make: {', '.join(makers)} (all of these)")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in makers]:
        parser.error(f"there is no {unknown[0]} here; there are {', '.join(makers)}")
    for name, make in makers.items():
        if name in names or not names:
            make()
