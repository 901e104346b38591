"""The processes of the tests meet in a directory of their own, and not where those of the user do."""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # The workers of this run inherit the variable.
    if not hasattr(config, "workerinput"):
        directory = TemporaryDirectory(prefix="bucketq-", ignore_cleanup_errors=True)
        os.environ["XDG_RUNTIME_DIR"] = directory.name
        config.add_cleanup(directory.cleanup)
