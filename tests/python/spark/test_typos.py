"""Misspelt queues, states and words of options are errors that name the nearest one; old versions are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kit import archive, drain, stream, work

from patience import PATIENCE


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queues": "mail, mails"}, r"there is no queue 'mails' in .*: did you mean mail\?"),
        ({"states": "done,deads"}, r"there is no state 'deads' in the view history: did you mean dead\?"),
        (
            {"view": "jobs", "states": "readys"},
            r"there is no state 'readys' in the view jobs: did you mean ready\?",
        ),
        ({"states": "ready"}, "no state 'ready' in the view history: unfinished jobs are in the view jobs"),
        ({"pushdown": "yes"}, "the option pushdown must be true or false, not 'yes'"),
    ],
)
def test_a_word_that_does_not_exist_is_an_error_when_a_frame_is_loaded(place, options, told):
    with place.open() as file:
        work(file, "mail", 1)
    with pytest.raises(Exception, match=told):
        place.frame(**options)


def test_a_stream_names_the_nearest_word_and_a_deleted_queue_with_an_archive_counts(place, tmp_path):
    found: list[int] = []
    with place.open() as file:
        archive(file, "old")
        work(file, "old", 3)
        file.archive()
        file.delete_queue("old")
    drain(stream(place, queues="old"), tmp_path, lambda rows, n: found.append(rows.count()))
    assert sum(found) == 3
    for options, told in (
        ({"queues": "olds"}, r"did you mean old\?"),
        (
            {"start": "latestt"},
            r"the option start must be earliest or latest, not 'latestt': did you mean latest\?",
        ),
        ({"onLoss": "ignored"}, r"did you mean ignore\?"),
    ):
        with pytest.raises(Exception, match=told):
            drain(stream(place, **options), tmp_path / "other", lambda rows, n: None)


@pytest.mark.parametrize("version", ["4.1.2", "3.5.0"])
def test_an_older_pyspark_is_refused_by_its_version_when_the_module_is_imported(version):
    script = f"import pyspark; pyspark.__version__ = {version!r}\nimport bucketq.spark"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert told.returncode == 1
    line = told.stderr.strip().splitlines()[-1]
    assert line == f"ImportError: bucketq.spark needs PySpark 4.2 or newer, and this is {version}"
