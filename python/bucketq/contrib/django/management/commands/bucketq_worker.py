"""The command ``manage.py bucketq_worker``: runs the tasks of one backend."""

# pyright: basic
from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

import django
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections

from bucketq._durations import milliseconds
from bucketq.cli import _logs
from bucketq.cli._serve import serve
from bucketq.contrib.django.backend import BucketqBackend
from bucketq.contrib.django.compat import DEFAULT_TASK_BACKEND_ALIAS, InvalidTaskBackend, task_backends
from bucketq.contrib.django.worker import DjangoWorker
from bucketq.errors import Error, table
from bucketq.tasks.worker import WorkerOptions
from bucketq.types.policy import POLICY

GIVEN_BACK = 1
"""The exit code when a second signal made the worker give jobs back."""


class Command(BaseCommand):
    """The options are those of ``bucketq worker``."""

    help = (
        "Runs the tasks of a backend of TASKS that is bucketq's. SIGTERM and Ctrl-C finish the running tasks."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        add = parser.add_argument
        add("--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="The name in TASKS. Default: %(default)s.")
        add("--queues", metavar="A,B", help="Only these queues; by default the QUEUES of the backend.")
        add("--concurrency", type=int, help="Tasks at a time: by default 8, or the number of processes.")
        add("--prefetch", type=int, default=0, help="Tasks claimed ahead, so that the next one is there.")
        add("--processes", type=int, default=0, help="Child processes that run the tasks; 0: threads.")
        add("--max-jobs", type=int, help="End after this many tasks, and those that run then.")
        add("--jobs-per-child", type=int, help="Replace a child process after this many tasks.")
        add(
            "--memory-per-child",
            type=int,
            metavar="BYTES",
            help="Replace a child that uses more after a task.",
        )
        add("--kill-after", metavar="TIME", help="Kill a child whose task runs longer: 10min.")
        add(
            "--wait",
            metavar="TIME",
            help="End when no task came for this long; by default run until a signal.",
        )
        add("--metrics", metavar="HOST:PORT", help="Serve /metrics and /health of this worker there.")
        add(
            "--log-format",
            choices=["text", "json", "own"],
            default="text",
            help="How the log is written on standard error; own: as LOGGING of the settings says.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        del args
        alias, log_format, verbose = options["backend"], options["log_format"], options["verbosity"] > 1
        try:
            backend = task_backends[alias]
        except InvalidTaskBackend as error:
            raise CommandError(str(error)) from None
        if not isinstance(backend, BucketqBackend):
            raise CommandError(
                f"TASKS[{alias!r}] is {type(backend).__name__}: this worker is for BucketqBackend"
            )
        _logs.set_up(log_format, verbose=verbose)
        try:
            worker = DjangoWorker(backend.app, settings_of(backend, options), alias)
            worker.child_setup = (set_up_child, (log_format, verbose))
            close_old_connections()
            wait = options["wait"]
            idle = None if wait is None else seconds(wait, "--wait")
            worked = serve(f"TASKS[{alias!r}]", worker, wait=idle, metrics=options["metrics"])
        except Error as error:
            raise CommandError(str(error), returncode=error_code(error)) from None
        if worked.released:
            sys.exit(GIVEN_BACK)


def settings_of(backend: BucketqBackend, options: dict[str, Any]) -> WorkerOptions:
    """Return the options of the worker."""
    given = options["queues"]
    names = sorted(backend.queues) if given is None else [one.strip() for one in given.split(",")]
    queues = tuple(one for one in names if one)
    if not queues:
        raise CommandError("QUEUES of this backend allows any queue: name those to work on with --queues")
    kill_after = options["kill_after"]
    return WorkerOptions(
        concurrency=options["concurrency"],
        prefetch=options["prefetch"],
        processes=options["processes"],
        queues=queues,
        max_jobs=options["max_jobs"],
        lease=POLICY,
        name=None,
        jobs_per_child=options["jobs_per_child"],
        memory_per_child=options["memory_per_child"],
        kill_after=None if kill_after is None else seconds(kill_after, "--kill-after"),
        start_method="spawn",
    )


def seconds(text: str, what: str) -> float:
    """Parse a duration."""
    return milliseconds(text, what) / 1000


def error_code(error: Error) -> int:
    """Return the exit code of the command line for this error."""
    return next((code for name, _, code in table() if name == type(error).__name__), 1)


def set_up_child(log_format: Any, verbose: bool) -> None:
    """Set up Django and the log in a child process."""
    django.setup()
    _logs.child(log_format, verbose)
