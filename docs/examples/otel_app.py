"""One trace from the program that enqueues to the spans of the task.

It needs: pip install "bucketq[otel]" opentelemetry-sdk.

    bucketq worker otel_app:traced                 # in one terminal
    python otel_app.py ada@example.org             # in another

Both print their spans. In production give the provider the OTLP exporter of your collector in place of the console's.
"""

import sys

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

import bucketq
from bucketq import otel

provider = TracerProvider(resource=Resource.create({"service.name": "mails"}))
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer(__name__)

jobs = bucketq.App("jobs")  # a directory; or "s3://acme/jobs"


@jobs.task(queue="mails")
def send(to: str) -> dict[str, str]:
    """Stands for a call of a mail server. Its span is part of the trace in which the mail was enqueued."""
    with tracer.start_as_current_span("smtp", attributes={"server.address": to.rpartition("@")[2]}):
        return {"sent": to}


def traced() -> bucketq.App:
    """Return the app after its handle was instrumented, which opens the queue file."""
    otel.instrument(jobs.file)
    return jobs


if __name__ == "__main__":
    traced()
    with tracer.start_as_current_span("order"):
        print(send.enqueue(sys.argv[1]).id, file=sys.stderr)
    jobs.close()
