"""The command ``bucketq``: the API from a terminal. Typer and rich are loaded here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and answer its exit code; docs/cli.md has the codes."""
    try:
        from bucketq.cli._app import run
    except ModuleNotFoundError as error:
        import sys

        print(f"bucketq: {error.name} is missing; run: pip install bucketq", file=sys.stderr)  # noqa: T201
        return 1
    return run(arguments)
