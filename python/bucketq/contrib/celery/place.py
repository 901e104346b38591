"""URLs of Celery: which queue file they name, and the settings in their queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import bucketq
from bucketq import _convert as convert
from bucketq.errors import Invalid
from bucketq.settings import PREFIX, from_environment

SCHEME = "bucketq"


def located(url: str | None) -> tuple[str | None, dict[str, Any]]:
    """Return the URL of the queue file, None for that of the settings, and the settings in the query.

    >>> located("bucketq+s3://acme/jobs?region=eu-central-1&deadline=10")
    ('s3://acme/jobs', {'region': 'eu-central-1', 'deadline': 10.0})
    >>> located("bucketq:///var/lib/app/jobs")
    ('/var/lib/app/jobs', {})
    >>> located("bucketq://")
    (None, {})
    """
    place, _, query = (url or "").partition("?")
    place = place.removeprefix(f"{SCHEME}+").removeprefix(f"{SCHEME}://")
    given = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    for name in given:
        if name not in convert.SETTINGS:
            raise Invalid(
                f"the URL has no setting {name!r}: {convert.nearest(name, convert.SETTINGS)}", "option"
            )
    return place or None, from_environment({PREFIX + name.upper(): text for name, text in given.items()})


def opened(url: str | None, settings: Mapping[str, Any] | None) -> bucketq.QueueFile:
    """Open the queue file that a URL of Celery names. The query wins over ``settings``."""
    place, given = located(url)
    return bucketq.open(place, settings=settings, **given)


def shown(url: str | None, mask: str | None = "**") -> str:
    """Return the URL for logs: the values in its query are hidden, because some are secret."""
    place, _, query = (url or "").partition("?")
    names = [pair.partition("=")[0] for pair in query.split("&") if pair]
    full = place if place.startswith(SCHEME) else f"{SCHEME}+{place}"
    return full + ("?" + "&".join(f"{name}={mask or ''}" for name in names) if names else "")
