"""A job claimed elsewhere: its id and token suffice to end or extend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bucketq import _convert as convert
from bucketq._job import Settling
from bucketq._op import Request, claim_ending

if TYPE_CHECKING:
    from bucketq import _native
    from bucketq.types import Seconds


class Lease(Settling):
    """Ends or extends the job ``id`` with the token that its claim returned."""

    __slots__ = ("_file", "_token")

    def __init__(self, file: _native.File, id: str, token: str) -> None:
        self._file = file
        self._token = (id, token)

    @property
    def _proof(self) -> tuple[str, str]:
        return self._token

    def _ack_next(self, result: Any, request: Request) -> _native.Call[list[_native.Held]]:
        call = claim_ending(self._file, request, self._acked(result))
        telemetry = self._file.hooks.telemetry
        return call if telemetry is None else telemetry.receive(request.names, call)

    def _extend(self, lease: Seconds) -> _native.Call[None]:
        return self._file.extend(self._proof, convert.millis(lease, "lease"))
