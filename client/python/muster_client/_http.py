"""Connections, retries and answers."""

from __future__ import annotations

import base64
import email.utils
import http.client
import json
import platform
import random
import re
import secrets
import selectors
import socket
import ssl
import threading
import time
import urllib.request
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple, TypeVar, Union
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from ._errors import MusterError, NoAnswer, NotFound, class_of
from ._version import VERSION

T = TypeVar("T")

MESSAGE_MAX_BYTES = 16 * 1024 * 1024
ANSWER_MAX_BYTES = 256 * 1024 * 1024
#: A stream without an event or a comment for this time is lost: the service sends a comment every 15 seconds.
IDLE_SECONDS = 45.0
RETRY_AFTER_MAX_SECONDS = 60
REDIRECTS_MAX = 5
IDLE_CONNECTIONS_MAX = 16
CHUNK = 65_536
_RETRIED = (408, 429, 502, 503, 504)

Token = Union[str, Callable[[], str], None]
Body = Union[bytes, Iterable[bytes], None]


class Response(NamedTuple):
    """Status and headers of an answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def request_id(self) -> Optional[str]:
        return self.headers.get("x-request-id")

    @property
    def etag(self) -> Optional[str]:
        return self.headers.get("etag")


class Options(NamedTuple):
    """Options of one call."""

    timeout: Optional[float] = None
    max_retries: Optional[int] = None
    idempotency_key: Optional[str] = None
    if_match: Optional[str] = None
    headers: Mapping[str, str] = {}
    on_response: Optional[Callable[[Response], None]] = None


class Outgoing(NamedTuple):
    """A request of an operation."""

    method: str
    path: str
    accept: str
    headers: Mapping[str, str] = {}
    body: Body = None
    #: Whether the body can be read only once.
    is_one_way: bool = False
    #: Whether the operation accepts an Idempotency-Key.
    is_keyed: bool = True


class Aborted(Exception):
    """The caller has cancelled the call."""


class Control:
    """Ends a call from another thread."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._exchange: Optional[Exchange] = None

    def follow(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._ended.is_set():
            exchange.abort()

    def abort(self) -> None:
        self._ended.set()
        if self._exchange:
            self._exchange.abort()

    def check(self) -> None:
        if self._ended.is_set():
            raise Aborted()

    def sleep(self, seconds: float) -> None:
        self._ended.wait(seconds)
        self.check()


class _WholeLines:
    """Lines of a head. The standard library takes a connection that ends within it for the end of the head."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readline(self, limit: int) -> bytes:
        line: bytes = self._file.readline(limit)
        if not line.endswith(b"\n") and len(line) < limit:
            raise http.client.RemoteDisconnected("the connection was lost within the head of the answer")
        return line

    def close(self) -> None:
        self._file.close()


class _Answer(http.client.HTTPResponse):
    def begin(self) -> None:
        file: Any = self.fp
        self.fp: Any = _WholeLines(file)
        try:
            super().begin()
        finally:
            # None: the standard library has closed the file, because of what it read.
            if self.fp is not None:
                self.fp = file


class Exchange:
    """One request and its answer on a connection."""

    def __init__(self, pool: Pool, connection: http.client.HTTPConnection, deadline: float) -> None:
        self._pool = pool
        self._connection = connection
        self._deadline = deadline
        self._socket: Optional[socket.socket] = connection.sock
        self._response: Optional[http.client.HTTPResponse] = None
        #: Whether the reader keeps the connection after it has returned.
        self.is_kept = False

    def send(self, method: str, target: str, body: Body, headers: Dict[str, str]) -> Response:
        connection = self._connection
        connection.timeout = self._remaining()
        if connection.sock is None:
            connection.connect()
        stream: Any = connection.sock
        self._socket = stream
        stream.settimeout(self._remaining())
        try:
            connection.request(method, target, body=body, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            # A service that refuses a body answers before it has read all of it.
            pass
        stream.settimeout(self._remaining())
        self._response = connection.getresponse()
        return Response(self._response.status, {name.lower(): value for name, value in self._response.getheaders()})

    def chunks(self, idle: Optional[float] = None) -> Iterator[bytes]:
        """Yields the body. Each chunk must arrive within ``idle`` seconds, the whole body until the deadline without it."""
        response = self._response
        assert response and self._socket
        try:
            while True:
                self._socket.settimeout(self._remaining() if idle is None else idle)
                if response.length is None:
                    chunk = response.read1(CHUNK)
                else:
                    chunk = response.read(min(CHUNK, response.length))
                if chunk:
                    yield chunk
                    continue
                if response.length:
                    raise NoAnswer("broken", "the connection was lost within the answer")
                self._release()
                return
        except socket.timeout:
            text = "no answer in time" if idle is None else f"no data for {idle:g} s"
            raise NoAnswer("timeout", text) from None
        except http.client.HTTPException:
            raise NoAnswer("broken", "the connection was lost within the answer") from None
        except (OSError, ValueError) as error:
            raise NoAnswer("network", f"the connection was lost within the answer: {error}") from None

    def read(self, idle: Optional[float] = None) -> bytes:
        """Reads a body of at most 256 MiB."""
        parts: List[bytes] = []
        size = 0
        for chunk in self.chunks(idle):
            size += len(chunk)
            if size > ANSWER_MAX_BYTES:
                raise NoAnswer("too_large", "the answer is larger than 256 MiB")
            parts.append(chunk)
        return b"".join(parts)

    def _remaining(self) -> float:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise socket.timeout()
        return remaining

    def _release(self) -> None:
        response = self._response
        if response is None or self._socket is None:
            return
        will_close = response.will_close
        response.close()
        self._socket = None
        if will_close:
            self._connection.close()
        else:
            self._pool.give(self._connection)

    def abort(self) -> None:
        """Ends the exchange from another thread."""
        if self._socket:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """Closes the connection, unless the body was read to its end."""
        if self._socket is None and self._response is not None:
            return
        self._socket = None
        if self._response:
            self._response.close()
        self._connection.close()


def _proxy_of(origin: SplitResult) -> Optional[SplitResult]:
    """Returns the proxy that the environment or the system has for an origin, by the rules of ``urllib``."""
    address = urllib.request.getproxies().get(origin.scheme)
    if not address or urllib.request.proxy_bypass(origin.netloc):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise ValueError(f"the proxy of {origin.scheme} must have an http address")
    return proxy


def _proxy_headers(proxy: Optional[SplitResult]) -> Dict[str, str]:
    if proxy is None or proxy.username is None:
        return {}
    credential = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"proxy-authorization": f"Basic {base64.b64encode(credential.encode()).decode()}"}


class Pool:
    """Connections to one origin that wait for a request. TLS passes a proxy in a tunnel, which reads nothing of it."""

    def __init__(self, base_url: str, context: Optional[ssl.SSLContext]) -> None:
        parts = urlsplit(base_url)
        self._is_tls = parts.scheme == "https"
        self._address = (parts.hostname or "", parts.port or (443 if self._is_tls else 80))
        self._context = context or (ssl.create_default_context() if self._is_tls else None)
        self._proxy = _proxy_of(parts)
        is_forwarded = self._proxy is not None and not self._is_tls
        #: What a request has before its path, and its headers for a proxy that forwards it.
        self.prefix = f"http://{parts.netloc}" if is_forwarded else ""
        self.headers = _proxy_headers(self._proxy) if is_forwarded else {}
        self._idle: List[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def take(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if not _is_dropped(connection):
                return connection
            connection.close()
        proxy = self._proxy
        host, port = (proxy.hostname or "", proxy.port or 80) if proxy else self._address
        made = (
            http.client.HTTPSConnection(host, port, context=self._context)
            if self._is_tls
            else http.client.HTTPConnection(host, port)
        )
        if proxy and self._is_tls:
            made.set_tunnel(*self._address, headers=_proxy_headers(proxy))
        made.response_class = _Answer
        return made

    def give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _is_dropped(connection: http.client.HTTPConnection) -> bool:
    """Whether the service has closed an idle connection: nothing else makes it readable."""
    if connection.sock is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


class Connection:
    """Address, credential, and rules for repeats."""

    def __init__(
        self,
        base_url: str,
        token: Token,
        *,
        project: Optional[str],
        timeout: float,
        max_retries: int,
        ssl_context: Optional[ssl.SSLContext],
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("base_url must be an http or https address")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("base_url must have no credentials, query and fragment")
        self.base_url = base_url.rstrip("/")
        self.project = project
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._token = token
        self._timeout = timeout
        self._max_retries = max_retries
        self._pool = Pool(base_url, ssl_context)

    def close(self) -> None:
        self._pool.close()

    def request(
        self,
        outgoing: Outgoing,
        read: Callable[[Exchange, Response], T],
        options: Options = Options(),
        control: Optional[Control] = None,
    ) -> T:
        """Sends a request, repeated where that is safe, and reads its answer."""
        control = control or Control()
        method = outgoing.method
        timeout = self._timeout if options.timeout is None else options.timeout
        max_retries = self._max_retries if options.max_retries is None else options.max_retries
        is_repeatable = (
            not outgoing.is_one_way
            and max_retries > 0
            and (method == "GET" or (outgoing.is_keyed if method == "POST" else options.if_match is None))
        )
        key = options.idempotency_key or (secrets.token_hex(16) if method == "POST" and is_repeatable else None)
        headers = {
            "accept": outgoing.accept,
            "x-muster-client": f"{VERSION}/python{platform.python_version()}",
            **outgoing.headers,
            **({"idempotency-key": key} if key else {}),
            **({"if-match": options.if_match} if options.if_match else {}),
            **{name.lower(): value for name, value in options.headers.items()},
            **self._pool.headers,
        }
        # The standard library accepts a line break before a space, and has the value in its error.
        for name, value in headers.items():
            if re.search(r"[\r\n\0]", value):
                raise ValueError(f"the header {name} has a line break")
        start = time.monotonic()
        tries = 0
        while True:
            control.check()
            try:
                return self._attempt(outgoing, {**headers, **self._credential()}, read, timeout, options, control)
            except (MusterError, NoAnswer) as error:
                control.check()
                # A first try that was executed and whose answer was lost has deleted the record.
                if tries > 0 and method == "DELETE" and isinstance(error, NotFound):
                    return None  # type: ignore[return-value]
                if not is_repeatable:
                    raise
                is_awaited = isinstance(error, MusterError) and error.code == "IDEMPOTENCY_IN_PROGRESS"
                if time.monotonic() - start > timeout if is_awaited else tries >= max_retries:
                    raise
                delay = (getattr(error, "retry_after", None) or 1) if is_awaited else _delay_before(error, tries)
                if delay is None:
                    raise
                if not is_awaited:
                    tries += 1
            control.sleep(delay)

    def _credential(self) -> Dict[str, str]:
        token = self._token() if callable(self._token) else self._token
        if token is None:
            return {}
        # Checked here, because the error of an invalid header would contain it.
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ValueError("token has characters that no header may have")
        return {"authorization": f"Bearer {token}"}

    def _attempt(
        self,
        outgoing: Outgoing,
        headers: Dict[str, str],
        read: Callable[[Exchange, Response], T],
        timeout: float,
        options: Options,
        control: Control,
    ) -> T:
        deadline = time.monotonic() + timeout
        url = self.base_url + outgoing.path
        for _ in range(REDIRECTS_MAX + 1):
            exchange = Exchange(self._pool, self._pool.take(), deadline)
            control.follow(exchange)
            try:
                try:
                    target = urlsplit(url)
                    path = self._pool.prefix + target.path + (f"?{target.query}" if target.query else "")
                    response = exchange.send(outgoing.method, path, outgoing.body, headers)
                except socket.timeout:
                    raise NoAnswer("timeout", f"no answer within {timeout:g} s") from None
                except (OSError, http.client.HTTPException) as error:
                    text = f"{outgoing.method} {self._origin}: {error or type(error).__name__}"
                    raise NoAnswer("network", text) from None
                if 300 <= response.status < 400:
                    url = self._redirected(outgoing, response, url)
                    continue
                if response.status >= 400:
                    raise _refusal_of(exchange.read(), response)
                data = read(exchange, response)
                if options.on_response:
                    options.on_response(response)
                return data
            except BaseException:
                exchange.is_kept = False
                raise
            finally:
                if not exchange.is_kept:
                    exchange.close()
        raise NoAnswer("redirect", "the answer is the last of too many redirects")

    def _redirected(self, outgoing: Outgoing, response: Response, url: str) -> str:
        """Returns the address of a redirect within the origin; the credential leaves for no other."""
        following = urljoin(url, response.headers.get("location", ""))
        parts = urlsplit(following)
        if f"{parts.scheme}://{parts.netloc}" != self._origin:
            raise NoAnswer("redirect", "the answer is a redirect to another origin", response.status)
        if outgoing.method != "GET":
            raise NoAnswer("redirect", f"the answer is a redirect of a {outgoing.method}", response.status)
        return following


def backoff(tries: int) -> float:
    """Returns the delay before the next try: 0.5 s doubling to 8 s, less up to a quarter."""
    return min(0.5 * 2**tries, 8) * (1 - random.random() / 4)


def _delay_before(error: Union[MusterError, NoAnswer], tries: int) -> Optional[float]:
    """Returns the delay before a repeat; None if the error excludes one."""
    if isinstance(error, NoAnswer):
        return backoff(tries) if error.reason in ("network", "timeout", "broken") else None
    if error.status not in _RETRIED:
        return None
    if error.retry_after is None:
        return None if error.status == 429 else backoff(tries)
    return error.retry_after if error.retry_after <= RETRY_AFTER_MAX_SECONDS else None


def _refusal_of(body: bytes, response: Response) -> Exception:
    """Returns the error of a refusal; NoAnswer if the body is no error of the service."""
    try:
        fields = json.loads(body)["error"]
        is_error = isinstance(fields["code"], str)
    except (ValueError, KeyError, TypeError):
        fields, is_error = {}, False
    if not is_error:
        text = f"the answer with status {response.status} is no error of the service"
        return NoAnswer("broken", text, response.status)
    return class_of(response.status)(
        fields,
        status=response.status,
        request_id=response.request_id,
        retry_after=_seconds_of(response.headers.get("retry-after")),
    )


def _seconds_of(value: Optional[str]) -> Optional[float]:
    """Returns the seconds of a Retry-After, which has a number or a date."""
    if value is None:
        return None
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def require_type(response: Response, expected: str) -> None:
    """Checks that an answer has the content type that the operation documents."""
    received = response.headers.get("content-type", "").split(";")[0].strip().lower()
    if received != expected:
        raise NoAnswer("type", f"the answer is {received or 'of no type'}, not {expected}", response.status)


def read_json(exchange: Exchange, response: Response) -> Any:
    """Reads an answer of JSON; None if it has no content."""
    body = exchange.read()
    if response.status == 204:
        return None
    require_type(response, "application/json")
    try:
        return json.loads(body)
    except ValueError:
        raise NoAnswer("broken", "the answer is no JSON", response.status) from None


def messages_of(chunks: Iterable[bytes]) -> Iterator[Tuple[str, Optional[str], str]]:
    """Yields event, id and data of the messages of an event stream, by the rules of the HTML standard."""
    rest = b""
    size = 0
    event = ""
    identifier: Optional[str] = None
    data: List[str] = []
    for chunk in chunks:
        size += len(chunk)
        text = rest + chunk
        # A CR at the end may be the first half of a CRLF.
        end = len(text) - 1 if text.endswith(b"\r") else len(text)
        lines = re.split(rb"\r\n|\r|\n", text[:end])
        rest = lines.pop() + text[end:]
        for line in lines:
            if not line:
                if data:
                    yield event or "message", identifier, "\n".join(data)
                size, event, identifier, data = len(rest), "", None, []
                continue
            name, _, raw = line.partition(b":")
            value = (raw[1:] if raw.startswith(b" ") else raw).decode("utf-8", "replace")
            if name == b"event":
                event = value
            elif name == b"data":
                data.append(value)
            elif name == b"id" and "\0" not in value:
                identifier = value
        if size > MESSAGE_MAX_BYTES:
            raise NoAnswer("too_large", "a message of the stream is larger than 16 MiB")
