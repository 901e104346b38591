"""The command ``bucketq``: the API on the command line. Only this package imports Typer and rich."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code; docs/cli.md lists the codes."""
    try:
        from bucketq.cli._app import run
    except ModuleNotFoundError as error:
        import sys

        print(f"bucketq: {error.name} is missing; run: pip install bucketq", file=sys.stderr)  # noqa: T201
        return 1
    return run(arguments)
