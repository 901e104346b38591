"""SIGTERM and SIGINT of a worker, while it runs."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["obeyed"]


@contextmanager
def obeyed(on_signal: Callable[[signal.Signals], None]) -> Generator[None]:
    """Call a function with SIGTERM and SIGINT on the running loop; restore the old handlers afterwards.

    Does nothing outside the main thread, which alone may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.getsignal(number)
        try:
            loop.add_signal_handler(number, on_signal, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda number, _: on_signal(signal.Signals(number)))
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)
