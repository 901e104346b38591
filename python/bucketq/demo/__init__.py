"""``python -m bucketq.demo`` shows producers, workers, a failure and a crash on a queue file of its own.

Everything is real: each producer and worker is a process, and the crash is a kill.
"""
