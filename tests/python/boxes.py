"""Fresh URLs for queue files."""

from __future__ import annotations

import itertools
from typing import Any

from both import OPEN

NUMBERS = itertools.count()


class Box:
    """A fresh URL for one queue file, and the API to open it with."""

    def __init__(self, face: str, url: str, settings: dict[str, Any]) -> None:
        self.face = face
        self.url = url
        self.settings = settings

    async def open(self, **settings: Any) -> Any:
        return await OPEN[self.face](self.url, **(self.settings | settings))


def memory_url() -> str:
    return f"memory://test{next(NUMBERS)}"
