"""Every configuration by its name, in the order of the tables."""

from __future__ import annotations

from elsewhere import Huey, Litequeue, PersistQueue, RedisQueue
from ours import Bucketq, BucketqAio, BucketqLocal
from peer import Peer
from theirs import JqueueBroker, JqueueDirect, JqueueReused, Pawn, Pgqrs, PgqrsLocal

ALL: dict[str, type[Peer]] = {
    "bucketq": Bucketq,
    "bucketq-aio": BucketqAio,
    "bucketq-local": BucketqLocal,
    "jqueue-direct": JqueueDirect,
    "jqueue-broker": JqueueBroker,
    "jqueue-reused": JqueueReused,
    "pawn-queue": Pawn,
    "pgqrs-durable": Pgqrs,
    "pgqrs-local": PgqrsLocal,
    "redis-message-queue": RedisQueue,
    "huey": Huey,
    "persist-queue": PersistQueue,
    "litequeue": Litequeue,
}
