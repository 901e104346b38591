"""Settings of ``open``."""

from __future__ import annotations

from os import PathLike
from typing import Literal, TypedDict

from bucketq.types.policy import Seconds


class Settings(TypedDict, total=False):
    """Settings for opening a queue file. Omitted ones have the engine's default."""

    create: bool
    """Create the queue file if it does not exist."""
    read_only: bool
    """Never write; refuse every change."""
    max_payload: int
    """Largest payload and result accepted, in bytes."""
    max_file: int
    """Size limit of the database, in bytes."""
    max_skew: Seconds
    """Largest allowed difference between two writers' clocks; fixed when the queue file is created."""
    deadline: Seconds
    """A call returns or raises within this time, if need be OutcomeUnknown."""
    commit_interval: Seconds
    """Wait at least this long between two commits, to save requests."""
    gather_percent: int
    """The writer waits for more ops for at most this share of an average PUT, a little longer on a fast store ..."""
    gather_max: Seconds
    """... and at most this long."""
    mailbox: int
    """The most ops that may wait in this process."""
    mailbox_bytes: int
    """The most bytes of payloads, headers and keys that may wait here; a call may exceed it when nothing else waits."""
    tail: int
    """The size of the tail that HEAD aims for, in bytes."""
    max_head: int
    """HEAD stays under this size, in bytes."""
    base_after: int
    """A log shorter than this gets no base, in bytes."""
    base_codec: Literal["zstd", "none"]
    """Store bases compressed, or as plain SQLite files."""
    grace: Seconds
    """Objects no longer needed stay for this long, for processes that still read them."""
    archive_every: Seconds
    """Finished jobs due for the archive wait about this long for more of them, while there are commits."""
    poll_min: Seconds
    """A waiting claim polls the store this often at first ..."""
    poll_max: Seconds
    """... and this often after a while."""
    mode: Literal["durable", "local"]
    """A call returns once its change is in the store, or once it is in a directory of this machine."""
    fsync: Literal["each_commit", "never"] | Seconds
    """Local mode: flush to disk before a call returns, at least this often, or whenever the system does."""
    cache: str | PathLike[str]
    """A directory of this machine: for the state of Local mode, or to reopen faster and read with ``sqlite3``."""
    cache_bytes: int
    """The most bytes of bases and segments there; the least recently used are deleted first."""
    copy_interval: Seconds
    """The copy there is at most this old, while there are commits."""
    share: bool
    """Share one writer with the other processes of this user on this host that use the same queue file."""
    host_dir: str | PathLike[str]
    """The directory in which the processes of a host find each other; by default a private one of the user."""
    endpoint: str
    """The S3 server, when it is not AWS."""
    region: str
    """The region of the bucket."""
    path_style: bool
    """``http://host/bucket/key`` instead of ``http://bucket.host/key``."""
    access_key: str
    """The public half of the credentials; if not set, the usual AWS chain applies."""
    secret_key: str
    """The secret half."""
    session_token: str
    """The session token of temporary credentials."""
    checksum: Literal["crc32", "sha256", "none"]
    """The checksum sent with each body."""
    connect_timeout: Seconds
    """Time for connecting."""
    request_timeout: Seconds
    """Time for one request as a whole."""
