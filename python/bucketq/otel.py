"""OpenTelemetry: spans for send, receive, process and settle, and metrics, by the messaging conventions.

``pip install "bucketq[otel]"``, then ``otel.instrument(file)``; nothing is imported or measured before that.
The W3C trace context travels in the headers of a job, so that the worker continues the trace of the producer. The
conventions are those of version 1.44.0. They are still in development and may change with a later version of
bucketq; therefore metrics are off by default.

docs/watching.md has the tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from bucketq import _op
from bucketq._job import JobBase
from bucketq.errors import Error
from bucketq.types import Extras

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:  # pragma: no cover
    raise ImportError(f'{error}; run: pip install "bucketq[otel]"', name=error.name) from error

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from bucketq import _native, aio
    from bucketq._show import Receipt
    from bucketq.file import QueueFile

__all__ = ["SEMCONV", "instrument", "uninstrument"]

SEMCONV = "1.44.0"
"""The version of the semantic conventions."""

_SCHEMA = f"https://opentelemetry.io/schemas/{SEMCONV}"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_W3C = TraceContextTextMapPropagator()
T = TypeVar("T")
Attributes = dict[str, str | int]


def instrument(
    file: QueueFile | aio.QueueFile,
    *,
    metrics: bool = False,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Trace the calls of this handle, its queues, jobs and workers; with ``metrics`` also count and time them.

    By default the global providers are used.
    """
    file._file.hooks.telemetry = Telemetry(file._file, tracer_provider, meter_provider, measures=metrics)


def uninstrument(file: QueueFile | aio.QueueFile) -> None:
    """Stop tracing and measuring."""
    file._file.hooks.telemetry = None


@contextmanager
def continued(headers: Mapping[str, str]) -> Generator[None]:
    """Make spans belong to the trace of another process, given by its ``Telemetry.here``."""
    token = context.attach(_W3C.extract(headers, context.Context()))
    try:
        yield
    finally:
        context.detach(token)


class Traced(Generic[T]):
    """A call of the engine with a callback at its end."""

    def __init__(self, call: _native.Call[T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._call = call
        self._done = done

    def wait(self) -> T:
        try:
            value = self._call.wait()
        except BaseException as error:
            self._done(None, error)
            raise
        self._done(value, None)
        return value

    def __await__(self) -> Generator[Any, None, T]:
        try:
            value = yield from self._call.__await__()
        except BaseException as error:
            self._done(None, error)
            raise
        self._done(value, None)
        return value


class Telemetry:
    """Reports one handle to OpenTelemetry. The package calls it if ``file.hooks.telemetry`` is set."""

    def __init__(
        self,
        file: _native.File,
        tracers: TracerProvider | None,
        meters: MeterProvider | None,
        *,
        measures: bool,
    ) -> None:
        # Each method gets the file it calls: this object does not reference one.
        self._tracer = trace.get_tracer("bucketq", tracer_provider=tracers, schema_url=_SCHEMA)
        self._measures = Measures(meters) if measures else None
        file.max_skew()  # Raises Closed now, not with the first job.

    def carried(self, extras: Extras) -> Extras:
        """Return the extras with the current trace context, unless the headers have one already."""
        headers = dict(extras.get("headers") or {})
        if "traceparent" not in headers:
            _W3C.inject(headers)
        return cast(Extras, {**extras, "headers": headers}) if headers else extras

    def here(self) -> dict[str, str]:
        """Return the current trace context, for a child process."""
        headers: dict[str, str] = {}
        _W3C.inject(headers)
        return headers

    def send(
        self, file: _native.File, queue: str, jobs: Iterable[tuple[Any, Extras]]
    ) -> _native.Call[list[Receipt]]:
        """Enqueue these jobs. Their trace context is that of the span."""
        span, began = self._start("send", "send", SpanKind.PRODUCER, queue, context.get_current(), ())
        try:
            with trace.use_span(span, end_on_exit=False):
                news = [_op.new(file, data, extras) for data, extras in jobs]
        except BaseException as error:
            self._end(span, began, "send", "send", queue, error, {})
            raise
        if len(news) == 1:
            span.set_attribute("messaging.message.id", news[0].id)
        else:
            span.set_attribute("messaging.batch.message_count", len(news))

        def done(_: Any, error: BaseException | None) -> None:
            self._end(span, began, "send", "send", queue, error, {"sent": len(news)})

        return cast("_native.Call[list[Receipt]]", Traced(file.call(_op.enqueue(queue, news)), done))

    def receive(
        self, queues: Iterable[str] | None, call: _native.Call[list[_native.Held]]
    ) -> _native.Call[list[_native.Held]]:
        """Trace a claim. One that gets no job leaves no span, because workers make them all the time."""
        named = () if queues is None else tuple(queues)
        queue = named[0] if len(named) == 1 else None
        start_ns, here = time.time_ns(), context.get_current()

        def done(jobs: list[_native.Held] | None, error: BaseException | None) -> None:
            if not jobs and not isinstance(error, Exception):
                return
            links = [Link(found) for job in jobs or () if (found := _sender(job.headers)).is_valid]
            span, began = self._start("receive", "receive", SpanKind.CLIENT, queue, here, links, start_ns)
            if jobs:
                span.set_attribute("messaging.batch.message_count", len(jobs))
            self._end(span, began, "receive", "receive", queue, error, {"consumed": len(jobs or ())})

        return cast("_native.Call[list[_native.Held]]", Traced(call, done))

    def settle(self, job: JobBase, how: str, call: _native.Call[T]) -> _native.Call[T]:
        """Trace an ack, nack, release or reject."""
        span, began = self._of_job(how, "settle", SpanKind.CLIENT, job)

        def done(_: Any, error: BaseException | None) -> None:
            self._end(span, began, how, "settle", job.queue, error, {})

        return cast("_native.Call[T]", Traced(call, done))

    @contextmanager
    def process(self, job: JobBase) -> Generator[Span]:
        """Trace the work on a job; spans made meanwhile are its children."""
        span, began = self._of_job("process", "process", SpanKind.CONSUMER, job)
        failure: BaseException | None = None
        try:
            with trace.use_span(
                span, end_on_exit=False, record_exception=False, set_status_on_exception=False
            ):
                yield span
        except BaseException as error:
            failure = error
            raise
        finally:
            self._end(span, began, "process", "process", job.queue, failure, {})

    def _of_job(self, name: str, kind: str, role: SpanKind, job: JobBase) -> tuple[Span, int]:
        """Start a span linked to the enqueue of the job; it continues that trace unless another one is current."""
        sender = _sender(job.headers)
        here = context.get_current()
        links = [Link(sender)] if sender.is_valid else []
        if sender.is_valid and not trace.get_current_span(here).get_span_context().is_valid:
            here = _W3C.extract(job.headers, here)
        span, began = self._start(name, kind, role, job.queue, here, links)
        span.set_attribute("messaging.message.id", job.id)
        return span, began

    def _start(
        self,
        name: str,
        kind: str,
        role: SpanKind,
        queue: str | None,
        parent: Context,
        links: Iterable[Link],
        start_ns: int | None = None,
    ) -> tuple[Span, int]:
        began = time.time_ns() if start_ns is None else start_ns
        span = self._tracer.start_span(
            name if queue is None else f"{name} {queue}",
            context=parent,
            kind=role,
            attributes=_facts(name, kind, queue),
            links=tuple(links),
            start_time=began,
        )
        return span, began

    def _end(
        self,
        span: Span,
        began: int,
        name: str,
        kind: str,
        queue: str | None,
        error: BaseException | None,
        counts: dict[str, int],
    ) -> None:
        facts = _facts(name, kind, queue)
        if error is not None:
            facts["error.type"] = error.code if isinstance(error, Error) else type(error).__qualname__
            span.set_attribute("error.type", facts["error.type"])
            span.record_exception(error)
            span.set_status(StatusCode.ERROR, str(error))
        ended = time.time_ns()
        span.end(ended)
        if self._measures is not None:
            self._measures.note(kind, max(ended - began, 0) / 1e9, facts, counts)


class Measures:
    """The metrics of the messaging conventions."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter("bucketq", meter_provider=provider, schema_url=_SCHEMA)

        def seconds(name: str, what: str) -> Any:
            return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=_SECONDS)

        self._operation = seconds("messaging.client.operation.duration", "How long an operation took.")
        self._process = seconds("messaging.process.duration", "How long the work on a job took.")
        self._counters = {
            "sent": meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs enqueued."),
            "consumed": meter.create_counter(
                "messaging.client.consumed.messages", "{message}", "Jobs claimed."
            ),
        }

    def note(self, kind: str, seconds: float, facts: Attributes, counts: Mapping[str, int]) -> None:
        """Record one operation."""
        (self._process if kind == "process" else self._operation).record(seconds, facts)
        for name, count in counts.items():
            if count:
                self._counters[name].add(count, facts)


def _facts(name: str, kind: str, queue: str | None) -> Attributes:
    facts: Attributes = {
        "messaging.system": "bucketq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if queue is not None:
        facts["messaging.destination.name"] = queue
    return facts


def _sender(headers: Mapping[str, str]) -> trace.SpanContext:
    return trace.get_current_span(_W3C.extract(headers, context.Context())).get_span_context()
