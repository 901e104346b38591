"""Adapters for frameworks that people use already; each needs its extra, for example pip install 'bucketq[celery]'."""
