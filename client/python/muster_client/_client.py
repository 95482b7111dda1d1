"""The two clients."""

from __future__ import annotations

import ssl
from typing import Optional

from ._async import AsyncModules
from ._asynchronous import ThreadsByKind
from ._http import Connection, Token
from ._sync import Modules


class Muster(Modules):
    """Client of a deployment.

    :param base_url: address of the deployment, without ``/api/v1``
    :param token: a project key, a token of a user or an end user, or a function that returns a valid one for each request
    :param project: ``project_id`` of reads and creates that accept one and have none
    :param timeout: seconds in which an answer must arrive, for each try
    :param max_retries: tries after the first
    :param ssl_context: certificates to trust; default those of the system
    """

    def __init__(
        self,
        base_url: str,
        token: Token = None,
        *,
        project: Optional[str] = None,
        timeout: float = 60.0,
        max_retries: int = 2,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        super().__init__(
            Connection(
                base_url, token, project=project, timeout=timeout, max_retries=max_retries, ssl_context=ssl_context
            )
        )

    def __enter__(self) -> Muster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes connections that wait for a request."""
        self._connection.close()


class AsyncMuster(AsyncModules):
    """Client of a deployment for ``asyncio``. Parameters as of :class:`Muster`.

    :param max_threads: calls that may wait for the service at once, and streams as many again
    """

    def __init__(
        self,
        base_url: str,
        token: Token = None,
        *,
        project: Optional[str] = None,
        timeout: float = 60.0,
        max_retries: int = 2,
        ssl_context: Optional[ssl.SSLContext] = None,
        max_threads: int = 64,
    ) -> None:
        super().__init__(
            Connection(
                base_url, token, project=project, timeout=timeout, max_retries=max_retries, ssl_context=ssl_context
            ),
            ThreadsByKind(max_threads),
        )

    async def __aenter__(self) -> AsyncMuster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes connections that wait for a request, and ends the threads."""
        self._connection.close()
        self._threads.close()
