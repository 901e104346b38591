"""Prints the result of the fit model: a verdict, a table, and what would be better."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from bucketq.cli import _show as show
from bucketq.fit import Engine, Fit, Inputs, Judge, Plain, Verdict
from bucketq.measured import Times, Workload

COLOURS: dict[Verdict, str] = {"strong": "green", "tradeoff": "yellow", "poor": "red"}
SIGNS: dict[Verdict, str] = {"strong": "●", "tradeoff": "◐", "poor": "✕"}
VERDICTS: tuple[Verdict, ...] = ("strong", "tradeoff", "poor")
INSTEAD = {
    "log": "Kafka, Redpanda or Kinesis: more jobs than one queue file can handle.",
    "memory": "Redis or RabbitMQ: no store of this kind replies that fast.",
    "managed": "Amazon SQS, or a table in PostgreSQL: this store cannot meet the dispatch budget even at its best.",
    "database": "a table in PostgreSQL, or Redis: the work is short compared with one round trip to this store. "
    "Or put more work into a job.",
}
BUSY = 0.8
"""Share of their time that workers may be busy; above it jobs wait for workers, not for the queue."""
LATENCIES = {"latency_min_ms", "latency_ms", "latency_p99_ms"}


def picture(found: Fit, inputs: Inputs, told: Workload | None, known: Collection[str]) -> Any:
    """Return the whole output. ``known`` names the inputs that are not from the published example."""
    parts: list[Any] = []
    if told is not None:
        parts += [seen(told), Text()]
    engine = found.engine
    parts += [badge(engine.verdict, big=True), Text(reason(engine.sentence)), Text()]
    parts.append(figures(found, inputs))
    if engine.instead is not None:
        parts += [Text(), Text.assemble(("Use something else: ", "bold"), INSTEAD[engine.instead])]
    if engine.worker_load > BUSY:
        parts += [Text(), Text(too_few(engine.worker_load, inputs), style="yellow")]
    parts += [Text(), money(found)]
    if found.tenfold is not None:
        more = found.tenfold.engine
        sentence = reason(more.sentence)
        parts += [Text(), Text.assemble("At 10 times the load  ", badge(more.verdict), f"  {sentence}")]
    if not LATENCIES & set(known):
        note = f"The store is the published example's, {inputs.latency_ms:g} ms/PUT: bucketq probe measures yours."
        parts += [Text(), Text(note, style="dim")]
    return Group(*parts)


def reason(sentence: str) -> str:
    """Return the sentence without its leading verdict."""
    why = sentence.split(": ", 1)[1]
    return why[0].upper() + why[1:]


def too_few(load: float, inputs: Inputs) -> str:
    """Return a note that there are too few workers, which no queue can fix."""
    need = math.ceil(load * inputs.consumers / BUSY)
    grows = "the backlog grows whatever the queue does" if load >= 1 else "jobs wait for a free worker"
    return f"{inputs.consumers:g} workers are busy {100 * load:.0f} % of the time, so {grows}: {need:,} would suffice."


def badge(verdict: Verdict, *, big: bool = False) -> Text:
    """Return the verdict in its colour, with a sign for readers who do not see colours."""
    words = f"{SIGNS[verdict]} {verdict.capitalize() if big else verdict}"
    return Text(words, style=f"bold {COLOURS[verdict]}" if big else COLOURS[verdict])


def figures(found: Fit, inputs: Inputs) -> Table:
    """Return the table of figures: this engine beside the plain model."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0)
    )
    table.add_column("", no_wrap=True)
    table.add_column("this engine", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("plain model", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)

    def row(name: str, figure: Callable[[Engine | Plain], str], judge: Judge | None = None) -> None:
        cells: list[Any] = [name]
        for model in (found.engine, found.plain):
            word = badge(VERDICTS[model.classes[judge]]) if judge else Text()
            cells += [figure(model), word]
        table.add_row(*cells)

    row("queue time per job", lambda m: time(m.queue_ms))
    row("capacity", lambda m: rate(m.capacity))
    row("overhead", lambda m: f"{100 * m.overhead:.1f} %", "overhead")
    row("load", lambda m: number(m.load, 2), "load")
    row("PUTs per job", lambda m: number(m.puts_per_job, 2))
    row("dispatch delay", lambda m: time(m.dispatch_ms), "dispatch")
    table.add_section()
    table.add_row("ops in a commit", number(found.engine.batch, 1), "", number(inputs.batch, 1), "")
    slow = f"{time(found.engine.dispatch_best_ms)} to {time(found.engine.dispatch_p99_ms)}"
    busy = f"{found.engine.worker_load * inputs.consumers:,.1f} of {inputs.consumers:,.0f}"
    table.add_row("workers busy", busy, "", "", "")
    table.add_row("dispatch, best to slow", slow, "", f"budget {time(inputs.budget_ms)}", "")
    return table


def money(found: Fit) -> Text:
    """Return the cost of a month compared with SQS."""
    month = found.month
    ours = f"A month: {show.plural(round(month.puts), 'PUT')}, {show.plural(round(month.gets), 'GET')}, "
    return Text(f"{ours}{month.cost:,.2f} USD; the same load on SQS {month.sqs_cost:,.2f} USD")


def seen(told: Workload) -> Table:
    """Return the workload that was read from the queue file."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rest = "" if told.complete else ", more were not read"
    table.add_row("read", f"{show.plural(told.jobs, 'job')}, {show.plural(told.commits, 'commit')}{rest}")
    inputs = told.inputs
    arrival = inputs.get("arrival")
    span = show.span(told.window)
    known = f"{arrival:g} jobs/s, over {span}" if arrival is not None else "too few jobs to tell"
    table.add_row("arrivals", known)
    table.add_row("work", times(told.work))
    table.add_row("dispatch seen", times(told.dispatch))
    if "retries" in inputs:
        table.add_row("retries", f"{inputs['retries']:g} per job")
    if "batch" in inputs:
        writers = show.plural(round(inputs.get("writers", 1)), "writer")
        table.add_row("commits", f"{inputs['batch']:.3g} ops each, of {writers}")
    return table


def times(found: Times | None) -> str:
    """Return mean and spread as text."""
    if found is None:
        return "no finished job yet"
    middle = f"{time(found.p50_ms)} half of them, {time(found.p95_ms)} one in twenty"
    return f"{time(found.mean_ms)} on average; {middle}"


def time(ms: float) -> str:
    """Return milliseconds in a suitable unit."""
    if not math.isfinite(ms):
        return "without end"
    for least, size, unit in ((7_200_000, 3_600_000, "h"), (120_000, 60_000, "min"), (1000, 1000, "s")):
        if ms >= least:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:.3g} ms" if ms < 100 else f"{ms:.0f} ms"


def rate(per_second: float) -> str:
    """Return a rate in jobs per second."""
    return f"{number(per_second, 1)} jobs/s"


def number(value: float, digits: int) -> str:
    """Return the number with this many decimals, or none if it is large."""
    if not math.isfinite(value):
        return "without end"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.{digits}f}"
