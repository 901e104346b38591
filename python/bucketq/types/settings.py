"""How a queue file is opened."""

from __future__ import annotations

from os import PathLike
from typing import Literal, TypedDict

from bucketq.types.policy import Seconds


class Settings(TypedDict, total=False):
    """How a queue file is opened. What is left out has the engine's default."""

    create: bool
    """Make the queue file when there is none."""
    read_only: bool
    """Only look: nothing is ever written, and every change is refused."""
    max_payload: int
    """Largest payload and result accepted, in bytes."""
    max_file: int
    """Size limit of the database, in bytes."""
    max_skew: Seconds
    """Largest difference between two writers' clocks; taken when the queue file is created."""
    deadline: Seconds
    """A call gets an answer within this time, if need be OutcomeUnknown."""
    commit_interval: Seconds
    """At least this long between two commits: saves requests."""
    gather_percent: int
    """The writer waits for more ops at most this share of the average PUT, and on a fast store a little longer ..."""
    gather_max: Seconds
    """... and at most this long."""
    mailbox: int
    """Ops that may wait in this process."""
    tail: int
    """The tail that HEAD aims for, in bytes."""
    max_head: int
    """HEAD stays under this size, in bytes."""
    base_after: int
    """A log shorter than this gets no base, in bytes."""
    base_codec: Literal["zstd", "none"]
    """How bases are stored: compressed, or as SQLite files."""
    grace: Seconds
    """What a queue file no longer needs stays for this long, for those who are still reading it."""
    archive_every: Seconds
    """Finished jobs that may leave for the archive wait about this long for others, while anything is committed."""
    poll_min: Seconds
    """A waiting claim asks the store this often at first ..."""
    poll_max: Seconds
    """... and this often after a while."""
    mode: Literal["durable", "local"]
    """When a change counts: once it is in the store, or once it is in a directory of this machine."""
    fsync: Literal["each_commit", "never"] | Seconds
    """Local mode: the disk has it before a call returns, at least this often, or when the system likes."""
    cache: str | PathLike[str]
    """A directory of this machine: for the state of Local mode, or to reopen faster and read with ``sqlite3``."""
    cache_bytes: int
    """Bytes of bases and segments kept there; the longest unused go first."""
    copy_interval: Seconds
    """The copy there is at most this old, while the queue file moves."""
    endpoint: str
    """The S3 server, when it is not AWS."""
    region: str
    """The region of the bucket."""
    path_style: bool
    """``http://host/bucket/key`` instead of ``http://bucket.host/key``."""
    access_key: str
    """The public half of the credentials; the usual chain of AWS when not set."""
    secret_key: str
    """The secret half."""
    session_token: str
    """For temporary credentials."""
    checksum: Literal["crc32", "sha256", "none"]
    """The checksum sent with each body."""
    connect_timeout: Seconds
    """Time for connecting."""
    request_timeout: Seconds
    """Time for one request as a whole."""
