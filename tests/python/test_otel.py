"""Spans and metrics by the messaging conventions, seen by the SDK's in-memory exporters."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.semconv._incubating.metrics import messaging_metrics as metric_names
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

import bucketq
from bucketq import New, aio, otel, testing
from patience import PATIENCE


class Collector:
    def __init__(self):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.mine = self.tracers.get_tracer("mine")

    def instrument(self, file, **options):
        otel.instrument(file, tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self, *names):
        return [span for span in self.exporter.get_finished_spans() if span.name in names or not names]

    def span(self, name):
        (span,) = self.spans(name)
        return span

    def metrics(self):
        data = self.reader.get_metrics_data()
        scopes = [scope for one in data.resource_metrics for scope in one.scope_metrics] if data else []
        assert all(scope.schema_url == "https://opentelemetry.io/schemas/1.44.0" for scope in scopes)
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


@pytest.fixture
def collector():
    return Collector()


def linked(span):
    return [link.context.span_id for link in span.links]


def test_the_version_of_the_conventions_is_one_that_the_sdk_knows():
    assert Schemas.V1_44_0.value == f"https://opentelemetry.io/schemas/{otel.SEMCONV}"


async def test_who_works_on_a_job_continues_the_trace_of_who_sent_it(box, collector):
    file = await box.open()
    bare = getattr(file, "blocking", file)
    collector.instrument(bare)
    async with file:
        q = file.queue("emails")
        with collector.mine.start_as_current_span("request") as request:
            job_id = (await q.enqueue("hi", headers={"mine": "kept"})).id
        job = await q.claim_one()
        assert job.headers["mine"] == "kept"
        await job.ack()
    send, receive, ack = (collector.span(f"{name} emails") for name in ("send", "receive", "ack"))
    assert send.parent.span_id == request.get_span_context().span_id
    assert send.kind is SpanKind.PRODUCER
    assert (receive.kind, ack.kind) == (SpanKind.CLIENT, SpanKind.CLIENT)
    assert linked(receive) == linked(ack) == [send.context.span_id]
    assert ack.context.trace_id == send.context.trace_id
    assert ack.parent.span_id == send.context.span_id
    assert job.headers["traceparent"].split("-")[1:3] == [
        f"{send.context.trace_id:032x}",
        f"{send.context.span_id:016x}",
    ]
    common = {names.MESSAGING_SYSTEM: "bucketq", names.MESSAGING_DESTINATION_NAME: "emails"}
    for span, name, kind in ((send, "send", "send"), (receive, "receive", "receive"), (ack, "ack", "settle")):
        assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"
        facts = dict(span.attributes)
        one = names.MESSAGING_BATCH_MESSAGE_COUNT if span is receive else names.MESSAGING_MESSAGE_ID
        assert facts.pop(one) == (1 if span is receive else job_id)
        operation = {names.MESSAGING_OPERATION_NAME: name, names.MESSAGING_OPERATION_TYPE: kind}
        assert facts == common | operation
        assert names.MessagingOperationTypeValues(kind)


def test_a_block_is_a_span_and_what_is_done_in_it_belongs_to_it(collector):
    with bucketq.open("memory://traced-block") as file:
        collector.instrument(file)
        q = file.queue("emails")
        q.enqueue("hi")
        with q.claim_one() as job:
            collector.mine.start_span("smtp").end()
            file.queue("next").enqueue("after", headers=None)
            with file.atomic() as tx:
                tx.enqueue("next", "too")
        other = [one.headers["traceparent"].split("-")[1] for one in file.queue("next").claim(2)]
    send, process = collector.span("send emails"), collector.span("process emails")
    assert process.kind is SpanKind.CONSUMER
    assert process.parent.span_id == send.context.span_id
    assert linked(process) == [send.context.span_id]
    for name in ("smtp", "ack emails", "send next"):
        assert collector.span(name).parent.span_id == process.context.span_id, name
    assert other == [f"{process.context.trace_id:032x}"] * 2
    assert process.status.status_code is StatusCode.UNSET
    assert process.attributes[names.MESSAGING_MESSAGE_ID] == job.id


def test_inside_a_span_of_the_user_work_belongs_there_and_is_linked(collector):
    with bucketq.open("memory://traced-inside") as file:
        collector.instrument(file)
        q = file.queue("emails")
        q.enqueue("hi")
        with collector.mine.start_as_current_span("batch") as batch, q.claim_one():
            pass
    process = collector.span("process emails")
    assert process.parent.span_id == batch.get_span_context().span_id
    assert linked(process) == [collector.span("send emails").context.span_id]


async def test_a_block_in_asyncio_that_fails_says_so(collector):
    async with await aio.open("memory://traced-aio") as file:
        collector.instrument(file)
        q = file.queue("emails")
        await q.enqueue("hi")
        with pytest.raises(ValueError, match="a bug"):
            async with await q.claim_one():
                raise ValueError("a bug")
    process, nack = collector.span("process emails"), collector.span("nack emails")
    assert process.status.status_code is StatusCode.ERROR
    assert process.attributes["error.type"] == "ValueError"
    assert [event.name for event in process.events] == ["exception"]
    assert nack.parent.span_id == process.context.span_id
    assert nack.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("face", ["blocking", "aio"])
async def test_handlers_of_a_worker_are_processed_in_their_spans(collector, face):
    def inner(job):
        collector.mine.start_span(f"inner {job.queue}").end()

    async def later(job):
        inner(job)

    if face == "blocking":
        with bucketq.open("memory://traced-worker") as file:
            collector.instrument(file)
            worker = bucketq.Worker(file)
            worker.handles("a")(inner)
            worker.handles("b")(later)
            file.queue("a").enqueue_many([1])
            file.queue("b").enqueue("x")
            import asyncio

            await asyncio.to_thread(worker.run, wait=0)
    else:
        async with await aio.open("memory://traced-worker-aio") as file:
            collector.instrument(file)
            worker = aio.Worker(file)
            worker.handles("a")(inner)
            worker.handles("b")(later)
            await file.queue("a").enqueue_many([1])
            await file.queue("b").enqueue("x")
            await worker.run(wait=0)
    for queue in "ab":
        send, process = collector.span(f"send {queue}"), collector.span(f"process {queue}")
        assert process.parent.span_id == send.context.span_id
        assert collector.span(f"inner {queue}").parent.span_id == process.context.span_id
        assert collector.span(f"ack {queue}").context.trace_id == send.context.trace_id


def test_what_fails_is_told_with_its_code(collector):
    with bucketq.open("memory://traced-failure") as file:
        collector.instrument(file, metrics=True)
        q = file.queue("emails")
        q.configure(max_pending=1)
        q.enqueue("a")
        with pytest.raises(bucketq.QueueFull):
            q.enqueue("b")
        with pytest.raises(bucketq.Invalid):
            q.enqueue(object())
        job = q.claim_one()
        q.cancel(job.id, leased=True)
        with pytest.raises(bucketq.LeaseLost):
            job.ack()
    failed = [span.attributes.get("error.type") for span in collector.spans("send emails", "ack emails")]
    assert failed == [None, "queue_full", "argument", "lease_lost"]
    sent = collector.metrics()[metric_names.MESSAGING_CLIENT_SENT_MESSAGES].data.data_points
    assert {point.attributes.get("error.type"): point.value for point in sent} == {None: 1, "queue_full": 1}


def test_metrics_are_off_unless_asked_for(collector):
    with bucketq.open("memory://unmeasured") as file:
        collector.instrument(file)
        file.queue("emails").enqueue("hi")
        assert collector.metrics() == {}
        collector.instrument(file, metrics=True)
        file.queue("emails").enqueue_many([1, New(2)])
        for job in file.queue("emails").claim(3):
            with job:
                pass
    found = collector.metrics()
    assert set(found) == {
        metric_names.MESSAGING_CLIENT_OPERATION_DURATION,
        metric_names.MESSAGING_CLIENT_SENT_MESSAGES,
        metric_names.MESSAGING_CLIENT_CONSUMED_MESSAGES,
        metric_names.MESSAGING_PROCESS_DURATION,
    }
    units = {name: metric.unit for name, metric in found.items()}
    assert units[metric_names.MESSAGING_CLIENT_SENT_MESSAGES] == "{message}"
    assert units[metric_names.MESSAGING_PROCESS_DURATION] == "s"
    (sent,) = found[metric_names.MESSAGING_CLIENT_SENT_MESSAGES].data.data_points
    (consumed,) = found[metric_names.MESSAGING_CLIENT_CONSUMED_MESSAGES].data.data_points
    (process,) = found[metric_names.MESSAGING_PROCESS_DURATION].data.data_points
    assert (sent.value, consumed.value, process.count) == (2, 3, 3)
    assert process.explicit_bounds[0] == 0.005
    operations = found[metric_names.MESSAGING_CLIENT_OPERATION_DURATION].data.data_points
    counts = {point.attributes[names.MESSAGING_OPERATION_NAME]: point.count for point in operations}
    assert counts == {"send": 1, "receive": 1, "ack": 3}


def test_claims_that_get_nothing_and_what_is_not_traced_any_more_leave_no_span(collector):
    with bucketq.open("memory://untraced") as file:
        collector.instrument(file)
        q = file.queue("emails")
        assert q.claim_one() is None
        otel.uninstrument(file)
        q.enqueue("hi")
        assert dict(q.claim_one().headers) == {}
    assert collector.spans() == []


def test_jobs_of_schedules_belong_to_no_trace(collector):
    clock = testing.Clock()
    with testing.open(clock=clock) as file:
        collector.instrument(file)
        q = file.queue("emails")
        with collector.mine.start_as_current_span("setting up"):
            q.schedule("hourly", "x", every=3600)
        clock.advance(3601)
        assert set(q.claim_one().headers) == {"bucketq-schedule", "bucketq-due-ms"}


def test_nothing_is_imported_before_it_is_used():
    code = """
import bucketq, sys
with bucketq.open("memory://x", on_event=print) as file:
    file.queue("q").enqueue(1)
print([name for name in sys.modules if name.startswith(("opentelemetry", "asyncio", "http"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_the_extra_it_says_what_to_install():
    code = """
import sys
sys.modules["opentelemetry"] = None
try:
    import bucketq.otel
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert 'pip install "bucketq[otel]"' in done.stdout
