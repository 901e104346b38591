"""All faults by name: each begins, lasts a while, and ends, for one process or for all."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diary import now

if TYPE_CHECKING:
    from run import Run, Seat

Inject = Callable[["Run", "Seat", random.Random], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One kind of fault: what it does, whether it hits all processes at once, and what it needs."""

    name: str
    inject: Inject
    everybody: bool = False
    needs: str = ""


@dataclass
class Struck:
    """One fault that happened, and the process it hit."""

    name: str
    seat: str
    begin: int
    end: int = 0


@dataclass
class Log:
    struck: list[Struck] = field(default_factory=list)

    async def strike(self, run: Run, fault: Fault, seat: Seat, dice: random.Random) -> None:
        one = Struck(fault.name, "" if fault.everybody else seat.name, now())
        self.struck.append(one)
        await fault.inject(run, seat, dice)
        one.end = now()


def door(mode: str, share: float, least: float, most: float) -> Inject:
    """Make the door of one process do this to a share of its requests."""

    async def inject(_: Run, seat: Seat, dice: random.Random) -> None:
        seat.door.mode, seat.door.share = mode, share
        await asyncio.sleep(dice.uniform(least, most))
        seat.door.mode = ""

    return inject


def toxic(kind: str, least: float, most: float, **attributes: int) -> Inject:
    """Do this to the network of one process for a while."""

    async def inject(run: Run, seat: Seat, dice: random.Random) -> None:
        await run.network.add(seat.name, kind, **attributes)
        await asyncio.sleep(dice.uniform(least, most))
        await run.network.clear(seat.name)

    return inject


async def kill(_: Run, seat: Seat, dice: random.Random) -> None:
    seat.end()
    await asyncio.sleep(dice.uniform(0, 0.5))
    seat.start()


async def stop(run: Run, seat: Seat, dice: random.Random) -> None:
    """Stop one process for longer than any lease."""
    pid = seat.process.pid if seat.process else 0
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(run.lease + dice.uniform(0.5, 2))
        os.kill(pid, signal.SIGCONT)


async def cut(run: Run, seat: Seat, dice: random.Random) -> None:
    await run.network.enable(seat.name, False)
    await asyncio.sleep(dice.uniform(0.5, 3))
    await run.network.enable(seat.name, True)


async def cut_all(run: Run, _: Seat, dice: random.Random) -> None:
    for seat in run.seats:
        await run.network.enable(seat.name, False)
    await asyncio.sleep(dice.uniform(0.3, 1.5))
    for seat in run.seats:
        await run.network.enable(seat.name, True)


async def restart_server(run: Run, _: Seat, dice: random.Random) -> None:
    run.server.kill()
    await asyncio.sleep(dice.uniform(0, 0.5))
    await run.server.start()


def clock(steps: Callable[[random.Random], float], least: float, most: float) -> Inject:
    """Set the wall clock of one process, and later set it right again."""

    async def inject(_: Run, seat: Seat, dice: random.Random) -> None:
        seat.shift(steps(dice))
        await asyncio.sleep(dice.uniform(least, most))
        seat.shift(0)

    return inject


async def fill_disk(run: Run, _: Seat, dice: random.Random) -> None:
    """Fill the disk of all processes with a cache, and of the one in Local mode."""
    assert run.disk is not None
    filler = Path(run.disk) / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    await asyncio.sleep(dice.uniform(0.5, 2))
    filler.unlink()


def within(dice: random.Random) -> float:
    return dice.choice((-0.5, 0.5))


def beyond(dice: random.Random) -> float:
    return dice.choice((-3600, -60, 60, 3600, 86400))


ALL = [
    Fault("kill", kill),
    Fault("stop", stop),
    Fault("cut", cut),
    Fault("cut_all", cut_all, everybody=True),
    Fault("black_hole", toxic("timeout", 1, 4, timeout=0)),
    Fault("reset", toxic("reset_peer", 0.3, 1, timeout=0)),
    Fault("slow", toxic("latency", 1, 4, latency=300, jitter=150)),
    Fault("trickle", toxic("bandwidth", 1, 4, rate=32)),
    Fault("lost_answer", door("lost_answer", 0.5, 0.5, 2)),
    Fault("cut_answer", door("cut_answer", 0.3, 0.5, 2)),
    Fault("late_put", door("late_put", 0.3, 0.5, 2)),
    Fault("double_put", door("double_put", 0.5, 1, 3)),
    Fault("failed_after", door("failed_after", 0.5, 0.5, 2)),
    Fault("refuse_500", door("refuse_500", 0.7, 0.5, 2)),
    Fault("refuse_503", door("refuse_503", 0.9, 0.5, 2)),
    Fault("refuse_429", door("refuse_429", 0.9, 0.5, 2)),
    Fault("refuse_409", door("refuse_409", 0.7, 0.5, 2)),
    Fault("restart_server", restart_server, everybody=True),
    Fault("clock_within_skew", clock(within, 1, 4), needs="faketime"),
    Fault("clock_beyond_skew", clock(beyond, 1, 3), needs="faketime"),
    Fault("full_disk", fill_disk, everybody=True, needs="disk"),
]
