"""The Django app: ``"bucketq.contrib.django"`` in INSTALLED_APPS brings the command. It has no models."""

# pyright: basic
from __future__ import annotations

from django.apps import AppConfig


class BucketqConfig(AppConfig):
    """The app has a label of its own, because the last part of its name is ``django``."""

    name = "bucketq.contrib.django"
    label = "bucketq"
    verbose_name = "bucketq"
