"""Kombu's own integration tests, run through the transport: ``make external``.

``.ci/external`` downloads them; nothing of them is in this repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kombu
import pytest
from t.integration import common

import bucketq.contrib.celery


@pytest.fixture
def connection(tmp_path: Path) -> kombu.Connection:
    return kombu.Connection(f"bucketq://{tmp_path}/jobs")


@pytest.fixture
def invalid_connection(tmp_path: Path) -> kombu.Connection:
    (tmp_path / "file").write_text("no directory")
    return kombu.Connection(f"bucketq://{tmp_path}/file/jobs")


class Draining(kombu.Connection):
    """Delivers every message that is there before ``drain_events`` returns, as Kombu's AMQP client does.

    The tests of priorities count on that. Transports that derive from Kombu's virtual one deliver one message a call.
    """

    def drain_events(self, **kwargs: Any) -> None:
        super().drain_events(**kwargs)
        try:
            while True:
                super().drain_events(timeout=0.2)
        except TimeoutError:
            pass


def test_the_transport_is_this_one(connection: kombu.Connection) -> None:
    assert type(connection.transport) is bucketq.contrib.celery.Transport


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
