"""Commands about the state on this machine: sync, snapshot. They open the queue file in Local mode."""

from __future__ import annotations

from typing import Annotated

import typer

from bucketq.cli import _show as show
from bucketq.cli._app import Cache, Json, Place, SettingsFile, Url, answer, command, say


@command("bucketq sync --url s3://acme/jobs", "On this machine")
def sync(url: Url = None, settings: SettingsFile = None, cache: Cache = None, json: Json = False) -> None:
    """Publish the changes of Local mode in one commit."""
    with Place(url, settings, "local", cache).open() as file:
        done = file.sync()
    if json:
        answer(show.plain(done))
    elif done.commits:
        what = f"{show.plural(done.ops, 'change')} of {show.plural(done.commits, 'local commit')}"
        say(f"{what} published in commit {done.commit_seq:,}")
    else:
        say(f"nothing to publish, at commit {done.commit_seq:,}")


@command("bucketq snapshot --url s3://acme/jobs", "On this machine")
def snapshot(
    discard: Annotated[bool, typer.Option("--discard", help="Drop unpublished changes.")] = False,
    url: Url = None,
    settings: SettingsFile = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Load the changes of others into the state of Local mode.

    Fails while there are unpublished changes; --discard drops them.
    """
    with Place(url, settings, "local", cache).open() as file:
        dropped = file.dirty
        seq = file.snapshot(discard=discard)
    if json:
        answer({"commit_seq": seq, "dropped": dropped.commits})
    else:
        gone = f", {show.plural(dropped.commits, 'local commit')} dropped" if dropped else ""
        say(f"at commit {seq:,}{gone}")
