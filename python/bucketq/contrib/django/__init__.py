"""bucketq as a backend of Django's TASKS setting, and the command ``manage.py bucketq_worker``. See docs/django.md."""

from bucketq.contrib.django.backend import BucketqBackend

__all__ = ["BucketqBackend"]
