"""Client of Muster. ``Muster`` is synchronous, ``AsyncMuster`` is for asyncio; ``types`` has the records of the API."""

from ._asynchronous import AsyncDownload, AsyncEventStream, AsyncItemList
from ._calls import UNSET, Download, EventStream, FileInput, ItemList, RequestOptions, Unset
from ._client import AsyncMuster, Muster
from ._errors import (
    Conflict,
    Forbidden,
    Invalid,
    LimitExceeded,
    MusterError,
    NoAnswer,
    NotFound,
    ServerFailure,
    Unauthenticated,
    WorkFailed,
)
from ._http import Response
from ._version import VERSION as __version__

__all__ = [
    "UNSET",
    "AsyncDownload",
    "AsyncEventStream",
    "AsyncItemList",
    "AsyncMuster",
    "Conflict",
    "Download",
    "EventStream",
    "FileInput",
    "Forbidden",
    "Invalid",
    "ItemList",
    "LimitExceeded",
    "Muster",
    "MusterError",
    "NoAnswer",
    "NotFound",
    "RequestOptions",
    "Response",
    "ServerFailure",
    "Unauthenticated",
    "Unset",
    "WorkFailed",
    "__version__",
]
