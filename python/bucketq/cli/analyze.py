"""The command ``analyze``: makes tables and a report from the finished jobs, on Spark."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from bucketq import Invalid
from bucketq.cli._app import Json, SettingsFile, answer, command, err, say
from bucketq.settings import load


@command("bucketq analyze s3://acme/jobs --out analysis", "Does it fit?")
def analyze(
    url: Annotated[str, typer.Argument(metavar="URL", help="The queue file.", show_default=False)],
    output: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            help="The directory for tables and report: a path or URL of Spark.",
            show_default=False,
        ),
    ],
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    memory: Annotated[str, typer.Option(help="Memory of the driver.")] = "2g",
    price_put: Annotated[float, typer.Option(help="USD per million PUTs.", min=0)] = 5.0,
    lost: Annotated[bool, typer.Option("--lost", help="Continue although jobs may be missing.")] = False,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Turn the history of finished jobs into tables and a report.

    Run it again to add jobs that finished since. Needs the extra spark, and Java 17.
    """
    try:
        from bucketq import spark
        from bucketq.spark import _place
    except ImportError as error:
        raise Invalid(str(error), "option") from None
    given: dict[str, Any] = load(settings)
    given.pop("url", None)
    # Spark takes a while to start: report misspelt options before.
    place = _place.Place.of(url, given)
    place.objects().head().wait()
    if master.startswith("local"):
        # Other machines must not reach it; if unset, Spark prints a warning about this machine's name.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's own progress bars would overwrite these messages.
    quiet = {"spark.ui.showConsoleProgress": "false"}
    session = spark.session(**{"spark.master": master, "spark.driver.memory": memory}, **quiet)
    session.sparkContext.setLogLevel("ERROR")
    try:
        done = spark.pipeline(
            session,
            url,
            output,
            settings=given,
            price_put=price_put,
            on_loss="ignore" if lost else "fail",
            say=lambda text: err.print(text) if not json else None,
        )
    finally:
        session.stop()
    if json:
        answer({"report": done.report, "new": done.new, "jobs": done.jobs, "seconds": done.seconds})
    elif done.report is None:
        say(f"{url} has no finished jobs yet: there is nothing to analyse")
    else:
        say(f"{done.jobs} jobs, {done.new} runs new, in {done.seconds:.0f} s: {done.report}")
