"""bucketq as a backend of Django's TASKS setting, and the command ``manage.py bucketq_worker``. See docs/django.md."""

try:
    from bucketq.contrib.django.backend import BucketqBackend
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    packages = {"asgiref": "bucketq[django]", "django": "bucketq[django]", "django_tasks": "django-tasks"}
    if missing not in packages:
        raise
    raise ImportError(f"{error}; run: pip install '{packages[missing]}'", name=error.name) from error

__all__ = ["BucketqBackend"]
