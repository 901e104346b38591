"""``python -m bucketq.demo``: producers, workers, a failure and a crash on a queue file of its own, to be watched.

Everything is real: each producer and worker is a process, and the one that crashes is killed.
"""
