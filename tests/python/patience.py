"""How long a test waits for a process or an event, in seconds."""

PATIENCE = 200
"""Less than the limit of a test, ``limit`` in pyproject.toml, so that the test fails with its own message."""
