"""Kombu's own integration tests, run through the transport: ``make external``.

``.ci/external`` downloads Kombu's sources; nothing of them is in this repository. A few of the tests count the messages
that one ``drain_events`` delivers: the transports of Kombu's kind deliver one, and their own tests differ likewise.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import kombu
import pytest

import bucketq.contrib.celery as plugin

sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))

from t.integration import common

assert plugin.Transport.driver_type == "bucketq"


@pytest.fixture
def connection(tmp_path: Path) -> kombu.Connection:
    return kombu.Connection(f"bucketq://{tmp_path}/jobs")


@pytest.fixture
def invalid_connection(tmp_path: Path) -> kombu.Connection:
    (tmp_path / "file").write_text("no directory")
    return kombu.Connection(f"bucketq://{tmp_path}/file/jobs")


class Draining(kombu.Connection):
    """Delivers every message that is there before ``drain_events`` returns, as Kombu's AMQP client does."""

    def drain_events(self, **kwargs: Any) -> None:
        super().drain_events(**kwargs)
        try:
            while True:
                super().drain_events(timeout=0.2)
        except TimeoutError:
            pass


class TestBasic(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    PRIORITY_ORDER = "asc"

    @pytest.fixture
    def connection(self, tmp_path: Path) -> kombu.Connection:
        return Draining(f"bucketq://{tmp_path}/jobs")


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass
