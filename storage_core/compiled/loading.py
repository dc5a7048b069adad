"""Decides whether compiled loops are used: if numba is installed, and from how many bytes on loading it pays off.

Loading takes half a second in each process, and some seconds more the first time on a machine, when the loops are
compiled and cached beside the code. The environment variable MQSTORE_COMPILED is `always`, `never` or `auto`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa

SETTING = "MQSTORE_COMPILED"
WORTH_LOADING = 256 << 20
"""Bytes that a process has copied or checksummed before it loads any loops."""
WORTH_LOADING_AT_ONCE = 384 << 20
"""Bytes that justify loading the loops before the first of them is handled, if their number is known in advance."""


class Process:
    """How many bytes this process has handled so far, and whether loops can be loaded in it."""

    def __init__(self, setting: str) -> None:
        """`setting`: `always`, `never`, or anything else for `auto`."""
        self.must = setting == "always"
        self._can = setting != "never"
        self._handled = 0
        self._bound = WORTH_LOADING

    def wants(self, size: int) -> bool:
        """Whether to use loops, now that `size` more bytes are handled."""
        self._handled += size
        return self._can and (self.must or self._handled >= self._bound)

    @contextmanager
    def foreseeing(self, size: int) -> Iterator[None]:
        """Announces that about `size` bytes will be handled inside the block: whether loading pays off for them is
        decided at once. They do not count towards what the process handles later.
        """
        if self._handled >= self._bound:
            size = 0
        elif size >= WORTH_LOADING_AT_ONCE:
            self._handled, size = self._bound, 0
        before = self._handled
        self._bound += size
        try:
            yield
        finally:
            self._bound -= size
            self._handled -= min(size, self._handled - before)

    def cannot(self) -> None:
        """Records that loops cannot be loaded: this is not tried again."""
        self._can = False


process = Process(os.environ.get(SETTING, "auto"))


class CompiledLoops:
    """The loops of one module, loaded on first use. Each has a numpy equivalent where it is called."""

    def __init__(self, module: str) -> None:
        """`module`: dotted name; it imports numba."""
        self._module = module
        self._loaded: Any = None

    def after(self, size: int = 0) -> Any:
        """The module, or None if numpy does the work. `size`: bytes that the caller is about to handle.

        Raises ImportError, RuntimeError, AttributeError or OSError if MQSTORE_COMPILED is `always` and the loops cannot
        be loaded.
        """
        if not process.wants(size):
            return None
        if self._loaded is None:
            pa.default_memory_pool().release_unused()  # loops allocate mostly through numpy
            try:
                self._loaded = import_module(self._module)
            # numba is missing, does not support this numpy, or has no cache folder; or ISA-L does not export its CRC.
            except (ImportError, RuntimeError, AttributeError, OSError):
                if process.must:
                    raise
                process.cannot()
        return self._loaded
