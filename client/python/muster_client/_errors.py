"""Errors of the client."""

from __future__ import annotations

from typing import Any, Dict, Optional


class MusterError(Exception):
    """A refusal of the service."""

    def __init__(
        self,
        fields: Dict[str, Any],
        *,
        status: int,
        request_id: Optional[str] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(fields.get("message", ""))
        #: Stable code of the catalogue, or of a newer server.
        self.code: str = fields["code"]
        self.status = status
        self.message: str = fields.get("message", "")
        #: What to do.
        self.hint: str = fields.get("hint", "")
        self.docs_url: str = fields.get("docs_url", "")
        #: Details; the fields depend on the code.
        self.meta: Dict[str, Any] = fields.get("meta") or {}
        #: ID of the request in the logs of the service.
        self.request_id = request_id
        #: Seconds after which the request may be repeated.
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message} ({self.code}, {self.status})"


class Unauthenticated(MusterError):
    """401: no credential, or an invalid one."""


class Forbidden(MusterError):
    """403: the credential lacks a permission."""


class NotFound(MusterError):
    """404 or 410."""


class Conflict(MusterError):
    """409 or 412: the current state does not allow the request."""


class Invalid(MusterError):
    """400, 413, 415 or 422: the request itself is invalid."""


class LimitExceeded(MusterError):
    """429: a rate or a quota is exhausted."""


class ServerFailure(MusterError):
    """5xx with an error of the service."""


_CLASSES = {
    400: Invalid,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    412: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: LimitExceeded,
}


def class_of(status: int) -> type[MusterError]:
    """Returns the class of refusals with a status."""
    return _CLASSES.get(status, ServerFailure if status >= 500 else MusterError)


class NoAnswer(Exception):
    """The service gave no usable answer; whether it executed the request is unknown.

    ``reason`` is ``network``, ``timeout``, ``broken``, ``type`` (another content type), ``too_large`` or ``redirect``.
    """

    def __init__(self, reason: str, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.reason = reason
        #: Status of a broken answer.
        self.status = status


class WorkFailed(Exception):
    """The work ended in failure, or was cancelled."""

    def __init__(self, record: Any, message: str, code: Optional[str] = None) -> None:
        super().__init__(message)
        #: Data of the event with the failure.
        self.record = record
        #: Code of the failure; None where the work has none.
        self.code = code
