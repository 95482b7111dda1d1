"""How the arguments of a method become a request, and what a method returns."""

from __future__ import annotations

import json
import re
import secrets
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    Generator,
    Generic,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypedDict,
    TypeVar,
    Union,
)
from urllib.parse import quote, unquote, urlencode

from ._errors import NoAnswer, WorkFailed
from ._http import (
    CHUNK,
    IDLE_SECONDS,
    MESSAGE_MAX_BYTES,
    Body,
    Connection,
    Control,
    Exchange,
    Options,
    Outgoing,
    Response,
    backoff,
    messages_of,
    read_json,
    require_type,
)

Item = TypeVar("Item")
Page = TypeVar("Page")
Event = TypeVar("Event")
Result = TypeVar("Result")
Args = Dict[str, Any]

PAGE = 100
#: IDs of a list that are remembered to yield no item twice.
SEEN_MAX = 100_000
#: Resumes without an event between them before the stream counts as lost.
RESUMES_MAX = 5
#: End of the chat completions protocol, whose messages have no names.
DONE = "[DONE]"

FileInput = Union[bytes, BinaryIO]


class Unset:
    """Type of an argument that is not sent. None is sent as null."""

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET = Unset()


class RequestOptions(TypedDict, total=False):
    """Options of one call, the argument ``request_options``."""

    #: Seconds in which the answer must arrive, for each try.
    timeout: float
    #: Tries after the first.
    max_retries: int
    #: Key that makes a POST idempotent; by default a random one where the call may be repeated.
    idempotency_key: str
    #: ETag of the record when it was read: the request is refused if it has changed since.
    if_match: str
    headers: Mapping[str, str]
    #: Receives status and headers of the answer, with ``etag`` and ``request_id``.
    on_response: Callable[[Response], None]


class Stream(NamedTuple):
    """What an operation declares of its stream."""

    events: Sequence[str]
    #: Events that end the stream.
    last: Sequence[str]
    #: Path that resumes the stream.
    resume: Optional[str] = None
    #: Path that cancels the work.
    cancel: Optional[str] = None


class Operation(NamedTuple):
    """How the arguments of an operation become a request."""

    method: str
    path: str
    #: ``json``, ``none``, ``form``, ``file``, or ``optional``: JSON that is absent without a field.
    body: str
    #: Parameters of the query, of an operation with a body.
    query: Sequence[str] = ()
    #: Whether the operation accepts ``project_id``.
    project: bool = False
    #: False for a POST that accepts no Idempotency-Key.
    keyed: bool = True
    stream: Optional[Stream] = None
    #: Argument that selects the stream.
    selector: Optional[str] = None
    #: Whether the argument ``body`` has the fields, which are of any names; otherwise it is a field itself.
    is_open: bool = False


def arguments_of(given: Args) -> Args:
    """Returns the fields among the local variables of a method. A name that Python reserves has an underscore after it."""
    return {
        (name[:-1] if name.endswith("_") else name): value
        for name, value in given.items()
        if name not in ("self", "request_options") and value is not UNSET
    }


def options_of(given: Optional[RequestOptions]) -> Options:
    return Options(**(given or {}))


def _names_in(path: Optional[str]) -> List[str]:
    return re.findall(r"\{(\w+)\}", path or "")


def _fill(path: str, args: Args) -> str:
    """Replaces the parameters of a path by arguments."""

    def value_of(match: re.Match[str]) -> str:
        value = args.get(match[1])
        # A dot segment would lead to another path.
        if value in (None, "", ".", ".."):
            raise TypeError(f"{match[1]} is required")
        return quote(str(value), safe="")

    return re.sub(r"\{(\w+)\}", value_of, path)


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _query(values: Args) -> str:
    """Returns values as a query: lists repeat the name, objects have the form ``name[key]=value``, None counts as absent."""
    pairs: List[Tuple[str, str]] = []
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, (list, tuple)):
            pairs += [(name, _text(each)) for each in value]
        elif isinstance(value, dict):
            pairs += [(f"{name}[{key}]", _text(each)) for key, each in value.items()]
        else:
            pairs.append((name, _text(value)))
    return f"?{urlencode(pairs)}" if pairs else ""


def request_of(operation: Operation, given: Args, project: Optional[str], accept: str = "application/json") -> Outgoing:
    """Returns the request of flat arguments: parameters of the path, then of the query, others are the body."""
    args = {"project_id": project, **given} if operation.project and project is not None else given
    in_path = _names_in(operation.path)
    outside = None if operation.body == "none" else [*in_path, *operation.query]
    query: Args = {}
    body: Args = dict(args["body"]) if operation.is_open else {}
    for name, value in args.items():
        if name in in_path or (operation.is_open and name == "body"):
            continue
        if outside is None or name in outside:
            query[name] = value
        else:
            plain = name[len("body_") :] if name.startswith("body_") else name
            body[plain if plain in outside else name] = value
    path = f"/api/v1{_fill(operation.path, args)}{_query(query)}"
    request = Outgoing(operation.method, path, accept, is_keyed=operation.keyed)
    if operation.body == "none" or (operation.body == "optional" and not body):
        return request
    if operation.body == "form":
        return _form(request, body)
    if operation.body == "file":
        content, is_one_way = _content(body["file"])
        headers = {"content-type": body.get("content_type", "application/octet-stream")}
        return request._replace(headers=headers, body=content, is_one_way=is_one_way)
    return request._replace(headers={"content-type": "application/json"}, body=_json(body).encode())


def _content(file: FileInput) -> Tuple[Body, bool]:
    """Returns the bytes of a file, and whether they can be read only once."""
    if isinstance(file, (bytes, bytearray, memoryview)):
        return bytes(file), False
    return _read_parts(file), True


def _read_parts(file: BinaryIO) -> Iterator[bytes]:
    while True:
        part = file.read(CHUNK)
        if not part:
            return
        yield part


def _form(request: Outgoing, fields: Args) -> Outgoing:
    """Returns a multipart form: the file last, after the fields that say where it belongs."""
    boundary = f"muster-{secrets.token_hex(16)}"
    file = fields["file"]
    name = fields.get("filename") or str(getattr(file, "name", "file")).replace("\\", "/").split("/")[-1]

    def part(disposition: str, rest: str) -> str:
        return f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n{rest}"

    def quoted(text: str) -> str:
        return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")

    texts = {key: value for key, value in fields.items() if key != "file" and value is not None}
    head = "".join(
        part(f'name="{quoted(key)}"', f"\r\n{value if isinstance(value, str) else _json(value)}\r\n")
        for key, value in texts.items()
    ) + part(f'name="file"; filename="{quoted(name)}"', "Content-Type: application/octet-stream\r\n\r\n")
    tail = f"\r\n--{boundary}--\r\n"
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    content, is_one_way = _content(file)
    if isinstance(content, bytes):
        return request._replace(headers=headers, body=head.encode() + content + tail.encode())

    def parts() -> Iterator[bytes]:
        yield head.encode()
        yield from content or ()
        yield tail.encode()

    return request._replace(headers=headers, body=parts(), is_one_way=is_one_way)


def call(connection: Connection, operation: Operation, args: Args, options: Options, control: Optional[Control] = None) -> Any:
    """Calls an operation that answers with JSON."""
    return connection.request(request_of(operation, args, connection.project), read_json, options, control)


class ItemList(Generic[Item, Page]):
    """A list. Nothing is requested before it is iterated."""

    def __init__(self, connection: Connection, operation: Operation, args: Args, options: Options) -> None:
        self._connection = connection
        self._operation = operation
        self._args = args
        self._options = options
        #: Number of all items, once the first page has arrived; None before, and of lists that are not counted.
        self.total: Optional[int] = None

    def page(self) -> Page:
        """Requests the page that the arguments describe."""
        return call(self._connection, self._operation, self._args, self._options)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Item]:
        """Yields the items of all pages, each once even if it moves between pages meanwhile."""
        return self.items()

    def items(self, control: Optional[Control] = None) -> Iterator[Item]:
        seen: Set[str] = set()
        args = {"limit": PAGE, **self._args}
        while True:
            page = call(self._connection, self._operation, args, self._options, control)
            self.total = page.get("total")
            for item in page["data"]:
                identifier: Optional[str] = item.get("id") if hasattr(item, "get") else None
                if identifier in seen:
                    continue
                if identifier is not None and len(seen) < SEEN_MAX:
                    seen.add(identifier)
                yield item
            if "next_cursor" in page:
                if not page["next_cursor"]:
                    return
                args = {**args, "cursor": page["next_cursor"]}
            else:
                if len(page["data"]) < (page.get("limit") or PAGE):
                    return
                args = {**args, "offset": int(args.get("offset") or 0) + len(page["data"])}

    def all(self, max: Optional[int] = None) -> List[Item]:
        """Returns the items of all pages, at most ``max``."""
        found: List[Item] = []
        if max is not None and max <= 0:
            return found
        for item in self:
            found.append(item)
            if len(found) == max:
                break
        return found


class EventStream(Generic[Event, Result]):
    """Events of work, requested at the first one. A lost connection is resumed after the last event received.

    Ending the reading does not end the work: ``cancel()`` does. Use it in ``with``, or read it to its end.
    """

    def __init__(self, connection: Connection, operation: Operation, args: Args, options: Options) -> None:
        assert operation.stream
        is_post = operation.method == "POST"
        self._connection = connection
        self._operation = operation
        self._stream = operation.stream
        self._args = {**args, operation.selector: True} if operation.selector else args
        # A request repeated before its first event joins the work that the first one started.
        has_key = options.idempotency_key is not None or not is_post
        self._options = options if has_key else options._replace(idempotency_key=secrets.token_hex(16))
        # Not the arguments of a POST: a retry of a generation starts another one.
        self._ids: Args = {} if is_post else dict(args)
        self._control = Control()
        self._reader: Optional[Iterator[Event]] = None
        self._last: Optional[Dict[str, Any]] = None
        #: Receives events that a newer server has added.
        self.on_unknown: Optional[Callable[[Dict[str, Any]], None]] = None

    def __enter__(self) -> EventStream[Event, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        """Yields the events; a second iteration continues the first."""
        if self._reader is None:
            self._reader = self._events()
        return self._reader

    def text(self) -> Iterator[str]:
        """Yields the text of a reply in pieces. After a lost worker, the pieces of the current step come again."""
        for event in self:
            piece = text_in(event)
            if piece:
                yield piece

    def result(self) -> Result:
        """Returns the data of the last event, after reading the others.

        :raises WorkFailed: if that event is an error
        """
        for _ in self:
            pass
        return self.settled()

    def settled(self) -> Result:
        if self._last is None:
            raise NoAnswer("broken", "the stream ended without a result")
        data = self._last["data"]
        event = self._last["event"]
        failure: Any = data if event == "error" else data.get("error") if hasattr(data, "get") else None
        if failure and event in ("error", "message"):
            raise WorkFailed(data, failure.get("message") or "the work failed", failure.get("code"))
        return data  # type: ignore[no-any-return]

    def cancel(self) -> None:
        """Cancels the work, if its stream has started."""
        path = self._stream.cancel
        if path is None:
            raise TypeError("the work of this stream cannot be cancelled")
        request = Outgoing("POST", f"/api/v1{_fill(path, self._ids)}", "application/json")
        self._connection.request(request, lambda exchange, _: exchange.read())

    def close(self) -> None:
        """Ends the reading."""
        self._control.abort()
        try:
            if isinstance(self._reader, Generator):
                self._reader.close()
        except ValueError:
            # Another thread is reading, which the abort has ended.
            pass

    def abort(self) -> None:
        """Ends the reading from another thread."""
        self._control.abort()

    def _events(self) -> Iterator[Event]:
        position: Optional[str] = None
        is_first = True
        lost = 0
        while True:
            try:
                for name, identifier, text in self._messages(position, is_first):
                    lost = 0
                    is_first = False
                    position = position if identifier is None else identifier
                    event: Dict[str, Any] = {"event": name, "data": text if text == DONE else _parsed(text)}
                    if identifier is not None:
                        event["id"] = identifier
                    if name not in self._stream.events:
                        if self.on_unknown:
                            self.on_unknown(event)
                        continue
                    data = event["data"]
                    self._note(data)
                    is_last = name in self._stream.last and (
                        name != "message" or data == DONE or bool(data.get("error"))
                    )
                    if is_last:
                        self._last = event
                    yield event  # type: ignore[misc]
                    if is_last:
                        return
                raise NoAnswer("broken", "the stream ended before its last event")
            except NoAnswer as error:
                self._control.check()
                is_lost = error.reason in ("network", "timeout", "broken")
                if not is_lost or lost >= RESUMES_MAX or not (is_first or self._can_resume()):
                    raise
            self._control.sleep(backoff(lost))
            lost += 1

    def _messages(self, position: Optional[str], is_first: bool) -> Iterator[Tuple[str, Optional[str], str]]:
        """Yields the messages of one connection, which starts the work until there was an event of it."""
        operation, resume = self._operation, self._stream.resume
        args = self._args
        if not is_first and resume is not None and (operation.method, operation.path) != ("GET", resume):
            args = {name: self._ids[name] for name in _names_in(resume)}
            operation = Operation("GET", resume, "none")
        request = request_of(operation, args, self._connection.project, "text/event-stream")
        headers = dict(self._options.headers)
        if position is not None:
            headers["last-event-id"] = position
        options = self._options._replace(headers=headers)
        if operation.method != "POST":
            options = options._replace(idempotency_key=None)
        exchange = self._connection.request(request, _open_events, options, self._control)
        try:
            yield from messages_of(exchange.chunks(IDLE_SECONDS))
        finally:
            exchange.close()

    def _note(self, data: Any) -> None:
        """Keeps the IDs of the first event, by which the stream is resumed and its work cancelled."""
        if isinstance(data, dict):
            for name in _names_in(self._stream.resume) + _names_in(self._stream.cancel):
                if data.get(name) is not None:
                    self._ids[name] = data[name]

    def _can_resume(self) -> bool:
        resume = self._stream.resume
        return resume is not None and all(self._ids.get(name) is not None for name in _names_in(resume))


def text_in(event: Any) -> Optional[str]:
    """Returns the piece of the text of a reply in an event."""
    data = event["data"]
    choices: Any = data.get("choices") if hasattr(data, "get") else None
    piece: Any = choices[0].get("delta", {}).get("content") if choices else None
    return piece if isinstance(piece, str) else None


def _open_events(exchange: Exchange, response: Response) -> Exchange:
    require_type(response, "text/event-stream")
    exchange.is_kept = True
    return exchange


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise NoAnswer("broken", "an event of the stream is no JSON") from None


class Download:
    """Content of an answer that is not JSON, read once. Use it in ``with``, or read it to its end."""

    def __init__(self, exchange: Exchange, response: Response) -> None:
        exchange.is_kept = True
        self._exchange = exchange
        length = response.headers.get("content-length")
        self.content_type = response.headers.get("content-type", "")
        #: Size in bytes; None if the service does not send it.
        self.size = int(length) if length else None
        #: Name of the file, of downloads of files.
        self.filename = _filename_in(response.headers.get("content-disposition", ""))

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yields the bytes as they arrive."""
        try:
            yield from self._exchange.chunks(IDLE_SECONDS)
        finally:
            self.close()

    def read(self) -> bytes:
        """Reads at most 256 MiB."""
        try:
            return self._exchange.read(IDLE_SECONDS)
        finally:
            self.close()

    def text(self) -> str:
        """Reads at most 256 MiB of UTF-8."""
        return self.read().decode()

    def lines(self) -> Iterator[Any]:
        """Yields the records of an export, which has one in each line."""
        rest = b""
        for chunk in self:
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MESSAGE_MAX_BYTES:
                raise NoAnswer("too_large", "a line is larger than 16 MiB")
            for line in lines:
                if line:
                    yield json.loads(line)
        if rest:
            yield json.loads(rest)

    def close(self) -> None:
        self._exchange.close()

    def abort(self) -> None:
        """Ends the reading from another thread."""
        self._exchange.abort()


def _filename_in(disposition: str) -> Optional[str]:
    """Returns the name in a Content-Disposition: the encoded form, which has every character, before the plain one."""
    encoded = re.search(r"filename\*=UTF-8''([^;]+)", disposition, re.IGNORECASE)
    if encoded:
        return unquote(encoded[1])
    plain = re.search(r'filename="((?:[^"\\]|\\.)*)"', disposition, re.IGNORECASE)
    return re.sub(r"\\(.)", r"\1", plain[1]) if plain else None


def download(
    connection: Connection, operation: Operation, args: Args, options: Options, control: Optional[Control] = None
) -> Download:
    """Calls an operation that answers with bytes, text, or lines of JSON."""
    return connection.request(request_of(operation, args, connection.project, "*/*"), Download, options, control)


class Resource:
    """A group of methods."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _call(self, operation: Operation, given: Args) -> Any:
        return call(self._connection, operation, arguments_of(given), options_of(given["request_options"]))

    def _list(self, operation: Operation, given: Args) -> ItemList[Any, Any]:
        return ItemList(self._connection, operation, arguments_of(given), options_of(given["request_options"]))

    def _stream(self, operation: Operation, given: Args) -> EventStream[Any, Any]:
        return EventStream(self._connection, operation, arguments_of(given), options_of(given["request_options"]))

    def _download(self, operation: Operation, given: Args) -> Download:
        return download(self._connection, operation, arguments_of(given), options_of(given["request_options"]))
