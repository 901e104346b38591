"""A small Django project in a directory, as docs/django.md describes it, and the processes of its manage.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from bucketq import QueueFile
from patience import PATIENCE
from servers import ROOT

PAGE = (ROOT / "docs" / "django.md").read_text()

MANAGE = """
import os, sys
if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    from django.core.management import execute_from_command_line
    execute_from_command_line(sys.argv)
"""

SETTINGS = """
SECRET_KEY = "of the test"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "PLACE/db.sqlite3", "CONN_MAX_AGE": 0}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "PLACE/django.log"}},
    "loggers": {"bucketq.worker": {"handlers": ["file"], "level": "INFO"}},
}
TASKS["default"]["QUEUES"] += ["slow", "killed", "once", "ordered", "children", "one"]
TASKS["late"] = {
    "BACKEND": "bucketq.contrib.django.BucketqBackend",
    "QUEUES": [],
    "OPTIONS": {"url": "PLACE/late", "on_commit": True},
}
"""

URLS = """
from django.urls import path
from shop import views, web
urlpatterns = [
    path("order", views.order),
    path("status/<id>", views.status),
    path("call", web.call),
    path("acall", web.acall),
    path("result/<id>", web.result),
    path("aresult/<id>", web.aresult),
]
"""

WEB = """
import json
from datetime import datetime
from importlib import import_module
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import transaction
from django.http import JsonResponse
from django.tasks import task_backends
from django.views.decorators.csrf import csrf_exempt

def wanted(request):
    asked = json.loads(request.body)
    task = getattr(import_module("shop.more"), asked["task"])
    using = asked.get("using", {})
    if "run_after" in using:
        using["run_after"] = datetime.fromisoformat(using["run_after"])
    return task.using(**using), asked.get("args", []), asked.get("kwargs", {}), asked.get("within", "")

def shown(result):
    facts = {name: getattr(result, name) for name in (
        "id", "status", "enqueued_at", "started_at", "finished_at", "last_attempted_at", "args", "kwargs", "backend",
        "worker_ids", "attempts", "is_finished",
    )}
    facts["errors"] = [
        {"path": one.exception_class_path, "class": one.exception_class.__name__, "traceback": one.traceback}
        for one in result.errors
    ]
    facts["task"] = {
        name: getattr(result.task, name) for name in ("module_path", "priority", "queue_name", "run_after", "backend")
    }
    facts["value"] = result.return_value if result.status == "SUCCESSFUL" else None
    return JsonResponse(facts)

def failed(error):
    return JsonResponse({"error": type(error).__name__, "says": str(error)}, status=400)

@csrf_exempt
def call(request):
    try:
        task, args, kwargs, within = wanted(request)
        if not within:
            return shown(task.enqueue(*args, **kwargs))
        before = None
        try:
            with transaction.atomic():
                User.objects.create(username=str(args))
                enqueue = async_to_sync(task.aenqueue) if "awaited" in within else task.enqueue
                result = enqueue(*args, **kwargs)
                before = result.enqueued_at
                if "rollback" in within:
                    raise KeyError
        except KeyError:
            pass
        return JsonResponse({"before": before, "after": result.enqueued_at, "id": result.id})
    except Exception as error:
        return failed(error)

@csrf_exempt
async def acall(request):
    task, args, kwargs, _ = wanted(request)
    return shown(await task.aenqueue(*args, **kwargs))

def result(request, id):
    try:
        return shown(task_backends[request.GET.get("backend", "default")].get_result(id))
    except Exception as error:
        return failed(error)

async def aresult(request, id):
    return shown(await task_backends["default"].aget_result(id))
"""

MORE = """
import asyncio, os, signal, threading, time
from django.contrib.auth.models import User
from django.db import connection
from django.dispatch import receiver
from django.tasks import task
from django.tasks.signals import task_enqueued, task_finished, task_started
import bucketq

class Refused(Exception):
    pass

@task
def add(a, b=1):
    return a + b

@task(queue_name="slow")
def refuse(text):
    raise Refused(text)

@task(queue_name="slow")
def never():
    raise bucketq.Reject("it cannot succeed")

@task(queue_name="slow", takes_context=True)
def late(context, most):
    if context.attempt < most:
        raise ConnectionError(f"attempt {context.attempt}")
    result = context.task_result
    return [context.attempt, result.worker_ids, [one.exception_class_path for one in result.errors], result.id]

@task(queue_name="killed")
def hang(path):
    if not os.path.exists(path):
        with open(path + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(path + ".new", path)
        threading.Event().wait()
    return "finished by another worker"

@task
async def wait(text):
    await asyncio.sleep(0)
    users = await User.objects.aexists()
    return [text, users in (True, False), bucketq.current_job().task]

@task(queue_name="one")
def connected():
    before = connection.connection is not None
    User.objects.count()
    return before

@task(queue_name="ordered")
def note(path, word):
    with open(path, "a") as file:
        file.write(word)

@task(queue_name="children", takes_context=True)
def child(context, n):
    return [os.getpid(), os.getppid(), n, context.attempt, User.objects.count() >= 0]

@task(queue_name="children")
def die():
    os.kill(os.getpid(), signal.SIGKILL)

@task
def pair():
    return (1, {2: b"three"})

@task
def unstorable():
    return object()

@task(backend="late", queue_name="any")
def later(n):
    return n

def tell(name):
    def told(sender, task_result, **kwargs):
        with open("signals", "a") as file:
            attempts = len(task_result.worker_ids)
            file.write(f"{task_result.id} {name} {task_result.status} {attempts} {sender.__name__}\\n")
        raise ValueError("a receiver")
    return told

receivers = [tell(name) for name in ("enqueued", "started", "finished")]
for one, sent in zip(receivers, (task_enqueued, task_started, task_finished)):
    sent.connect(one)
"""


LATE = """
from bucketq import testing
from django.tasks import task_backends
from django.test import TestCase
from shop.more import later

class LateTest(TestCase):
    def test_a_task_follows_the_transaction_that_the_test_never_commits(self):
        with testing.use(task_backends["late"].app) as file:
            with self.captureOnCommitCallbacks(execute=True):
                result = later.enqueue(1)
                self.assertIsNone(file.get(result.id))
            self.assertEqual(file.get(result.id).state, "ready")
            self.assertEqual(result.enqueued_at, file.get(result.id).enqueued_at)
"""


def blocks() -> dict[str, str]:
    """The files of the page."""
    found = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in found] == [
        "shop/settings.py",
        "shop/tasks.py",
        "shop/views.py",
        "shop/tests.py",
    ]
    return dict(found)


class Site:
    """A project, and the processes of its manage.py."""

    url: str
    """The address of the web process."""
    file: QueueFile
    """That of the first backend."""
    processes: list[subprocess.Popen]
    """The web process and two workers."""

    def __init__(self, place: Path, python: str) -> None:
        self.place, self.python = place, python
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("BUCKETQ_", "DJANGO_"))
        }
        self.environ = kept | {"PYTHONPATH": str(ROOT / "python"), "PYTHONWARNINGS": "ignore"}
        version = subprocess.check_output(
            [python, "-c", "import django; print(django.VERSION[0])"], env=self.environ
        )
        self.is_built_in = int(version) >= 6
        files = blocks() | {
            "shop/urls.py": URLS,
            "shop/web.py": WEB,
            "shop/more.py": MORE,
            "shop/__init__.py": "",
        }
        files["shop/test_late.py"] = LATE
        files["shop/settings.py"] += SETTINGS
        for name, text in (files | {"manage.py": MANAGE}).items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(self.adapted(text))
        self.out("migrate", "--verbosity", "0")

    def adapted(self, text: str) -> str:
        text = text.replace("s3://acme/jobs", str(self.place / "jobs")).replace("PLACE", str(self.place))
        if not self.is_built_in:
            text = text.replace("from django.tasks", "from django_tasks")
            text = text.replace('"bucketq.contrib.django", ', '"bucketq.contrib.django", "django_tasks", ')
        return text

    def start(self, *words: str, **environ: str) -> subprocess.Popen:
        command = [self.python, "manage.py", *words]
        at = {"cwd": self.place, "env": self.environ | environ}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **at)

    def run(self, *words: str, code: int = 0, **environ: str) -> str:
        """Run a command of manage.py to its end, and return what it wrote to standard error."""
        return self._run(words, code, environ)[1]

    def out(self, *words: str, **environ: str) -> str:
        return self._run(words, 0, environ)[0]

    def _run(self, words: tuple[str, ...], code: int, environ: dict[str, str]) -> tuple[str, str]:
        with self.start(*words, **environ) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        assert process.returncode == code, out + err
        return out, err

    def ask(self, path: str, body: object = None) -> tuple[int, dict]:
        data = None if body is None else json.dumps(body).encode()
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/{path}", data, PATIENCE) as reply:
                    return reply.status, json.load(reply)
            except urllib.error.HTTPError as error:
                return error.code, json.loads(error.read() or b"{}")
            except urllib.error.URLError:
                assert time.monotonic() < until  # It is starting.
                time.sleep(0.02)

    def call(self, task: str, *args: object, how: str = "call", **more: object) -> dict:
        status, reply = self.ask(how, {"task": task, "args": args, **more})
        assert status == 200, reply
        return reply

    def finished(self, id: str, how: str = "result") -> dict:
        """Wait until a task of the first backend is finished, and return its result as the web process reads it."""
        assert self.file.queue("default").wait(id, timeout=PATIENCE)
        return self.ask(f"{how}/{id}")[1]

    def result(self, task: str, *args: object, **more: object) -> dict:
        return self.finished(self.call(task, *args, **more)["id"])

    def signals(self, id: str) -> list[str]:
        lines = (self.place / "signals").read_text().splitlines()
        mine = [line.removeprefix(f"{id} ") for line in lines if line.startswith(id)]
        # A worker may start the task before the web process has sent its own signal.
        return sorted(mine, key=lambda line: not line.startswith("enqueued"))
