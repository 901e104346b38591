"""Celery on a queue file: a broker and a result backend, named by URLs that begin with ``bucketq``.

>>> import bucketq.contrib.celery
>>> from celery import Celery
>>> app = Celery("tasks", broker="bucketq:///var/lib/app/jobs", backend="bucketq:///var/lib/app/jobs")

Importing this module is all that Kombu and Celery need to know these URLs. docs/moving/celery.md says what they mean.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from bucketq.contrib.celery.channel import Channel
from bucketq.contrib.celery.transport import Transport

__all__ = ["Channel", "Transport"]

TRANSPORT_ALIASES["bucketq"] = "bucketq.contrib.celery.transport:Transport"

try:
    from celery.app.backends import BACKEND_ALIASES  # pyright: ignore[reportMissingTypeStubs]
except ImportError:  # Kombu is installed without Celery.
    pass
else:
    BACKEND_ALIASES["bucketq"] = "bucketq.contrib.celery.backend:Backend"
