"""The asynchronous forms. Requests run in threads, of which each client has a limited number."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, AsyncIterator, Callable, Generic, Iterator, List, Optional, TypeVar

from ._calls import (
    Args,
    Download,
    Event,
    EventStream,
    Item,
    ItemList,
    Operation,
    Page,
    Result,
    arguments_of,
    call,
    download,
    options_of,
    text_in,
)
from ._http import Connection, Control

T = TypeVar("T")

_END: Any = object()


class Threads:
    """Threads for blocking work of one kind."""

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, "muster")

    async def run(self, work: Callable[[], T], abort: Callable[[], None]) -> T:
        """Awaits work; ``abort`` ends it if the awaiting task is cancelled."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except asyncio.CancelledError:
            abort()
            raise

    async def iterate(self, items: Iterator[T], abort: Callable[[], None]) -> AsyncIterator[T]:
        while True:
            item = await self.run(lambda: next(items, _END), abort)
            if item is _END:
                return
            yield item

    def close(self) -> None:
        self._executor.shutdown(wait=False)


class ThreadsByKind:
    """Threads of a client by kind, so that none waits for another kind: a cancel is needed when the others are busy."""

    def __init__(self, count: int) -> None:
        self.calls = Threads(count)
        #: A stream occupies a thread while it waits for an event.
        self.streams = Threads(count)
        self.cancels = Threads(count)

    def close(self) -> None:
        for threads in (self.calls, self.streams, self.cancels):
            threads.close()


class AsyncItemList(Generic[Item, Page]):
    """A list. Nothing is requested before it is iterated."""

    def __init__(self, threads: Threads, items: ItemList[Item, Page]) -> None:
        self._threads = threads
        self._items = items

    @property
    def total(self) -> Optional[int]:
        """Number of all items, once the first page has arrived; None before, and of lists that are not counted."""
        return self._items.total

    async def page(self) -> Page:
        """Requests the page that the arguments describe."""
        return await self._threads.run(self._items.page, lambda: None)

    def __aiter__(self) -> AsyncIterator[Item]:
        """Yields the items of all pages, each once even if it moves between pages meanwhile."""
        control = Control()
        return self._threads.iterate(self._items.items(control), control.abort)

    async def all(self, max: Optional[int] = None) -> List[Item]:
        """Returns the items of all pages, at most ``max``."""
        return await self._threads.run(lambda: self._items.all(max), lambda: None)


class AsyncEventStream(Generic[Event, Result]):
    """Events of work, requested at the first one. A lost connection is resumed after the last event received.

    Ending the reading does not end the work: ``cancel()`` does. Use it in ``async with``, or read it to its end.
    """

    def __init__(self, threads: ThreadsByKind, stream: EventStream[Event, Result]) -> None:
        self._threads = threads
        #: The stream in its synchronous form, with ``on_unknown``.
        self.stream = stream

    async def __aenter__(self) -> AsyncEventStream[Event, Result]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        """Yields the events; a second iteration continues the first."""
        return self._threads.streams.iterate(iter(self.stream), self.stream.abort)

    async def text(self) -> AsyncIterator[str]:
        """Yields the text of a reply in pieces. After a lost worker, the pieces of the current step come again."""
        async for event in self:
            piece = text_in(event)
            if piece:
                yield piece

    async def result(self) -> Result:
        """Returns the data of the last event, after reading the others.

        :raises WorkFailed: if that event is an error
        """
        async for _ in self:
            pass
        return self.stream.settled()

    async def cancel(self) -> None:
        """Cancels the work, if its stream has started."""
        await self._threads.cancels.run(self.stream.cancel, lambda: None)

    async def close(self) -> None:
        """Ends the reading."""
        self.stream.close()


class AsyncDownload:
    """Content of an answer that is not JSON, read once. Use it in ``async with``, or read it to its end."""

    def __init__(self, threads: Threads, content: Download) -> None:
        self._threads = threads
        self._content = content
        self.content_type = content.content_type
        #: Size in bytes; None if the service does not send it.
        self.size = content.size
        #: Name of the file, of downloads of files.
        self.filename = content.filename

    async def __aenter__(self) -> AsyncDownload:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._content.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields the bytes as they arrive."""
        return self._threads.iterate(iter(self._content), self._content.abort)

    def lines(self) -> AsyncIterator[Any]:
        """Yields the records of an export, which has one in each line."""
        return self._threads.iterate(self._content.lines(), self._content.abort)

    async def read(self) -> bytes:
        """Reads at most 256 MiB."""
        return await self._threads.run(self._content.read, self._content.abort)

    async def text(self) -> str:
        """Reads at most 256 MiB of UTF-8."""
        return (await self.read()).decode()


class AsyncResource:
    """A group of methods."""

    def __init__(self, connection: Connection, threads: ThreadsByKind) -> None:
        self._connection = connection
        self._threads = threads

    async def _call(self, operation: Operation, given: Args) -> Any:
        args, options, control = arguments_of(given), options_of(given["request_options"]), Control()
        return await self._threads.calls.run(
            lambda: call(self._connection, operation, args, options, control), control.abort
        )

    def _list(self, operation: Operation, given: Args) -> AsyncItemList[Any, Any]:
        options = options_of(given["request_options"])
        return AsyncItemList(self._threads.calls, ItemList(self._connection, operation, arguments_of(given), options))

    def _stream(self, operation: Operation, given: Args) -> AsyncEventStream[Any, Any]:
        options = options_of(given["request_options"])
        return AsyncEventStream(self._threads, EventStream(self._connection, operation, arguments_of(given), options))

    async def _download(self, operation: Operation, given: Args) -> AsyncDownload:
        args, options, control = arguments_of(given), options_of(given["request_options"]), Control()
        content = await self._threads.calls.run(
            lambda: download(self._connection, operation, args, options, control), control.abort
        )
        return AsyncDownload(self._threads.calls, content)
