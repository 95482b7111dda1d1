import assert from 'node:assert/strict'
import fs from 'node:fs'
import http from 'node:http'
import https from 'node:https'
import net from 'node:net'
import path from 'node:path'
import { Muster } from '../../client/dist/index.js'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { findPython, runPython, wheelFile } from '../support/python.ts'
import { random } from '../support/random.ts'
import { forSuite } from '../support/suite.ts'
import { cert, key, TLS_HOST } from '../support/tls.ts'
import { type Answer, events, json, type Request, refusal, startCutter, startScripted } from './support.ts'

const root = path.resolve(import.meta.dirname, '../..')

const HEAD = `import asyncio, io, json, sys
import muster_client
from muster_client import AsyncMuster, Muster, MusterError, NoAnswer, NotFound, WorkFailed
import muster_client._http as network
network.backoff = lambda tries: 0
def outcome(error):
    names = ("code", "status", "message", "hint", "request_id", "retry_after", "reason")
    return [type(error).__name__, {name: getattr(error, name) for name in names if hasattr(error, name)}]
`

/** A call of a method with the declared example. */
type ExampleCall = {
  words: string[]
  args: Record<string, unknown>
  /** The argument `body` of an operation whose body has fields of any names. */
  open: { body?: Record<string, unknown> }
  has_file: boolean
}

const QUERY_VALUES: Record<string, unknown> = {
  boolean: true,
  integer: 3,
  number: 0.5,
  array: ['a b', 'ü'],
  object: { k: 'v' },
}

/** Returns a call of each method: all parameters of the path and the query, and the example of the body. */
function examplesOfCalls(): ExampleCall[] {
  const description = JSON.parse(fs.readFileSync(path.join(root, 'client/openapi.json'), 'utf8'))
  const { commands } = JSON.parse(fs.readFileSync(path.join(root, 'client/commands.json'), 'utf8'))
  const operations = Object.values<any>(description.paths).flatMap(each => Object.values<any>(each))
  return commands.flatMap(({ id, words, fields, open }: any) => {
    const { requestBody, 'x-stream': stream } = operations.find(each => each.operationId === id)
    const content = requestBody?.content ?? {}
    const selector = stream?.selected_by?.name
    const example = content['application/json']?.example ?? content['multipart/form-data']?.example ?? {}
    const outside = fields.filter((each: any) => each.in !== 'body').map((each: any) => each.name)
    const args: Record<string, unknown> = {}
    for (const { name, in: part, type } of fields)
      if (part === 'path') args[name] = `${name}/../?#%2e ü`
      else if (part === 'query' && name !== selector) args[name] = QUERY_VALUES[type] ?? 'a b&c=ü'
    const body = Object.entries(example).filter(([name]) => name !== selector && name !== 'file')
    if (!open) for (const [name, value] of body) args[outside.includes(name) ? `body_${name}` : name] = value
    if (requestBody && !content['application/json'] && !content['multipart/form-data']) args.content_type = 'text/csv'
    const call = {
      words,
      args,
      // A field of such a body may have the name of a parameter of the path.
      open: open ? { body: { ...Object.fromEntries(body), [outside[0]]: 'same' } } : {},
      has_file: requestBody !== undefined && !content['application/json'],
    }
    return selector ? [call, { ...call, words: [...words.slice(0, -1), `${words.at(-1)}_stream`] }] : [call]
  })
}

/** Returns what a request says, without the order of its query and the boundary of a form. */
async function plain({ method, url, headers, body }: Request) {
  const { pathname, searchParams } = new URL(url, 'http://localhost')
  const type = headers['content-type']?.split(';')[0]
  const isForm = type === 'multipart/form-data'
  const parts = isForm
    ? [...(await new Response(body, { headers: { 'content-type': headers['content-type']! } }).formData())]
    : []
  const files = parts.map(async ([name, value]) =>
    typeof value === 'string' ? [name, value] : [name, value.name, value.type, await value.text()],
  )
  return {
    method,
    pathname,
    query: [...searchParams].sort(([a], [b]) => a.localeCompare(b)),
    type,
    accept: headers.accept,
    isKeyed: 'idempotency-key' in headers,
    authorization: headers.authorization,
    body: isForm ? await Promise.all(files) : type === 'application/json' ? JSON.parse(body) : body,
  }
}

describe('the Python client', function () {
  this.timeout(120_000)
  let python: string
  before(async function () {
    const found = await findPython()
    if (found === null) return this.skip()
    python = found
  })

  const runScript = (script: string, args: readonly string[] = [], input = '') =>
    runPython(python, HEAD + script, args, input)

  /** Runs an expression of a call with both clients, each against its own scripted answers; returns what the first one did. */
  async function both(expression: string, ...answers: Answer[]) {
    const servers = await Promise.all([startScripted(...answers), startScripted(...answers)])
    try {
      const [result, other] = await runScript(
        `def first():
    muster = Muster(sys.argv[1], "sk_secret")
    try:
        return ["ok", ${expression}]
    except Exception as error:
        return outcome(error)
async def second():
    async with AsyncMuster(sys.argv[2], "sk_secret") as muster:
        try:
            return ["ok", await ${expression}]
        except Exception as error:
            return outcome(error)
print(json.dumps([first(), asyncio.run(second())]))`,
        servers.map(({ url }) => url),
      )
      assert.deepEqual(other, result)
      const [requests, others] = servers.map(each => each.requests)
      assert.deepEqual(
        others.map(({ method, url }) => [method, url]),
        requests.map(({ method, url }) => [method, url]),
      )
      return { result, requests }
    } finally {
      for (const server of servers) await server.close()
    }
  }

  it('has a method for each operation, in both forms, that sends the request of the TypeScript client', async () => {
    const calls = examplesOfCalls()
    assert.ok(calls.length > 500, String(calls.length))
    const answer = refusal(404, 'RESOURCE_NOT_FOUND')
    const servers = await Promise.all([startScripted(answer), startScripted(answer), startScripted(answer)])
    try {
      const problems = await runScript(
        `import inspect, keyword
safe = lambda name: name + "_" if keyword.iskeyword(name) else name
snake = lambda word: word.replace("-", "_")
problems = []
def start(client, call):
    target = client
    for word in call["words"]:
        target = getattr(target, safe(snake(word)))
    files = {"file": b"x"} if call["has_file"] else {}
    return target(**{safe(name): value for name, value in {**call["args"], **call["open"], **files}.items()})
def first():
    muster = Muster(sys.argv[1], "sk_secret")
    for call in calls:
        try:
            result = start(muster, call)
            result.page() if hasattr(result, "page") else list(result)
            problems.append([call["words"], "no request"])
        except NotFound:
            pass
        except Exception as error:
            problems.append([call["words"], repr(error)])
async def second():
    async with AsyncMuster(sys.argv[2], "sk_secret") as muster:
        for call in calls:
            try:
                result = start(muster, call)
                if hasattr(result, "page"):
                    await result.page()
                elif inspect.isawaitable(result):
                    await result
                else:
                    [each async for each in result]
                problems.append([call["words"], "no request"])
            except NotFound:
                pass
            except Exception as error:
                problems.append([call["words"], repr(error)])
calls = json.load(sys.stdin)
first()
asyncio.run(second())
print(json.dumps(problems))`,
        servers.map(({ url }) => url),
        JSON.stringify(calls),
      )
      assert.deepEqual(problems, [])
      const muster = new Muster({ baseUrl: servers[2].url, token: 'sk_secret' })
      for (const { words, args, open, has_file } of calls) {
        const names = words.map(word => word.replace(/[-_](\w)/g, (_, letter: string) => letter.toUpperCase()))
        const [group, method] = [names.slice(0, -1), names.at(-1) as string]
        const target = group.reduce((node: any, name) => node[name], muster)
        // Fields of any names follow the others; a name that the path has too gets a prefix.
        const fields = Object.entries(open.body ?? {}).map(([name, value]) => [
          name in args ? `body_${name}` : name,
          value,
        ])
        const given = { ...args, ...Object.fromEntries(fields), ...(has_file ? { file: new Blob(['x']) } : {}) }
        const sent = async () => {
          const result = target[method](given)
          if ('page' in result) await result.page()
          else if ('then' in result) await result
          else for await (const _ of result);
        }
        await assert.rejects(sent, { code: 'RESOURCE_NOT_FOUND' }, words.join(' '))
      }
      const [first, second, expected] = await Promise.all(
        servers.map(({ requests }) => Promise.all(requests.map(plain))),
      )
      for (const [index, { words }] of calls.entries())
        for (const requests of [first, second]) assert.deepEqual(requests[index], expected[index], words.join(' '))
      assert.deepEqual([first.length, second.length, expected.length], Array(3).fill(calls.length))
    } finally {
      for (const server of servers) await server.close()
    }
  })

  it('has types whose references exist, and is marked as typed', async () => {
    const { count, marked } = await runScript(
      `import typing, zipfile, muster_client.types as types
found = [each for each in vars(types).values() if isinstance(each, type) and hasattr(each, "__required_keys__")]
for each in found:
    typing.get_type_hints(each)
names = zipfile.ZipFile(sys.argv[1]).namelist()
print(json.dumps({"count": len(found), "marked": "muster_client/py.typed" in names}))`,
      [wheelFile()],
    )
    assert.ok(count > 700, String(count))
    assert.ok(marked)
  })

  it('sends the names of the wire, null for None and nothing for an argument that is absent', async () => {
    const { requests } = await both(
      'muster.agents.update("agent_1/2", name="Grüße", description=None)',
      json({ id: 'agent_1' }),
    )
    const [{ method, url, body, headers }] = requests
    assert.deepEqual(
      [method, url, JSON.parse(body)],
      ['PATCH', '/api/v1/agents/agent_1%2F2', { name: 'Grüße', description: null }],
    )
    assert.equal(headers.authorization, 'Bearer sk_secret')
    assert.match(headers['x-muster-client'] as string, /^\d+\.\d+\.\d+\/python3/)
    const { requests: listed } = await both(
      'muster.users.authored.list("user_1", from_="2026-01-01T00:00:00Z").page()',
      json({ data: [] }),
    )
    assert.equal(listed[0].url, '/api/v1/users/user_1/authored?from=2026-01-01T00%3A00%3A00Z')
  })

  it('raises errors with code, hint and request ID, of the class of the status', async () => {
    const { result } = await both(
      'muster.agents.get("agent_1")',
      refusal(404, 'RESOURCE_NOT_FOUND', { 'x-request-id': 'req_1' }),
    )
    const [name, { code, status, message, hint, request_id }] = result
    assert.deepEqual(
      [name, code, status, message, hint, request_id],
      ['NotFound', 'RESOURCE_NOT_FOUND', 404, 'refused: RESOURCE_NOT_FOUND', 'hint', 'req_1'],
    )
    const page = await both('muster.agents.get("agent_1")', {
      status: 200,
      body: '<html>',
      headers: { 'content-type': 'text/html' },
    })
    assert.deepEqual([page.result[0], page.result[1].reason], ['NoAnswer', 'type'])
    const foreign = await both('muster.agents.get("agent_1")', { status: 418, body: 'tea' })
    assert.deepEqual([foreign.result[0], foreign.result[1].reason], ['NoAnswer', 'broken'])
  })

  it('repeats a POST with one key, a DELETE whose answer was lost, and no change that is conditional', async () => {
    const created = await both(
      'muster.actors.create(name="Ann")',
      { destroy: true },
      refusal(503, 'SERVICE_NOT_READY'),
      json({ id: 'a' }),
    )
    assert.deepEqual(created.result, ['ok', { id: 'a' }])
    const keys = new Set(created.requests.map(({ headers }) => headers['idempotency-key']))
    assert.equal(created.requests.length, 3)
    assert.match([...keys].join(), /^[0-9a-f]{32}$/)
    const deleted = await both('muster.actors.delete("a")', { destroy: true }, refusal(404, 'RESOURCE_NOT_FOUND'))
    assert.deepEqual(deleted.result, ['ok', null])
    const conditional = await both(
      'muster.actors.update("a", name="b", request_options={"if_match": "x"})',
      refusal(503, 'SERVICE_NOT_READY'),
    )
    assert.deepEqual([conditional.requests.length, conditional.requests[0].headers['if-match']], [1, 'x'])
    const login = await both('muster.users.login(username="a", password="b")', { destroy: true })
    assert.deepEqual([login.requests.length, login.requests[0].headers['idempotency-key']], [1, undefined])
  })

  it('repeats a streamed POST before its first event with one key, and never an upload that was read', async () => {
    const server = await startScripted(
      { destroy: true },
      refusal(503, 'SERVICE_NOT_READY'),
      events(['completed', { id: 'gen_1' }]),
      { destroy: true },
    )
    try {
      const result = await runScript(
        `import muster_client._calls as calls
calls.backoff = lambda tries: 0
muster = Muster(sys.argv[1], "sk_secret")
turn = muster.agents.generate_stream("a", prompt="x").result()
try:
    muster.files.upload(file=io.BytesIO(b"x"), filename="a")
except NoAnswer as error:
    print(json.dumps([turn, error.reason]))`,
        [server.url],
      )
      assert.deepEqual(result, [{ id: 'gen_1' }, 'network'])
      const keys = server.requests.map(({ headers }) => headers['idempotency-key'])
      assert.deepEqual([keys.length, new Set(keys.slice(0, 3)).size, keys[3]], [4, 1, undefined])
      assert.match(String(keys[0]), /^[0-9a-f]{32}$/)
    } finally {
      await server.close()
    }
  })

  it('sends no request with a line break in a header, and shows no value of one', async () => {
    const server = await startScripted(json({ id: 'a' }))
    try {
      const results = await runScript(
        `muster = Muster(sys.argv[1], "sk_secret")
def attempt(options):
    try:
        return muster.actors.create(name="a", request_options=options)
    except Exception as error:
        return [type(error).__name__, repr(error)]
print(json.dumps([attempt(options) for value in ("secret\\r\\nx-other: 1", "secret\\n continued", "secret\\r", "secret\\0")
    for options in ({"headers": {"X-Mine": value}}, {"idempotency_key": value}, {"if_match": value})]))`,
        [server.url],
      )
      assert.deepEqual([results.length, server.requests.length], [12, 0])
      for (const [name, text] of results) {
        assert.equal(name, 'ValueError')
        assert.doesNotMatch(text, /secret/)
      }
    } finally {
      await server.close()
    }
  })

  it('stays below the path of the operation, whatever the arguments are', async () => {
    const { result, requests } = await both('muster.actors.get("../keys/?a=b#c%2e%2e")', json({ id: 'a' }))
    assert.deepEqual(result, ['ok', { id: 'a' }])
    assert.deepEqual(
      requests.map(({ url }) => url),
      ['/api/v1/actors/..%2Fkeys%2F%3Fa%3Db%23c%252e%252e'],
    )
    const refused = await runScript(`def attempt(given):
    try:
        Muster("http://127.0.0.1:1", max_retries=0).actors.get(given)
    except Exception as error:
        return type(error).__name__
print(json.dumps([attempt(given) for given in ("", ".", "..", None)]))`)
    assert.deepEqual(refused, Array(4).fill('TypeError'))
  })

  it('waits as Retry-After says, at most 60 seconds, and for a request under the same key', async () => {
    const waited = await both(
      'muster.actors.get("a")',
      refusal(429, 'RATE_LIMITED', { 'retry-after': '1' }),
      json({ id: 'a' }),
    )
    assert.ok(waited.requests[1].at - waited.requests[0].at >= 900)
    const late = await both('muster.actors.get("a")', refusal(429, 'RATE_LIMITED', { 'retry-after': '61' }))
    assert.deepEqual([late.result[0], late.result[1].retry_after, late.requests.length], ['LimitExceeded', 61, 1])
    const same = await both(
      'muster.actors.create(name="a")',
      refusal(409, 'IDEMPOTENCY_IN_PROGRESS', { 'retry-after': '0' }),
      refusal(409, 'IDEMPOTENCY_IN_PROGRESS', { 'retry-after': '0' }),
      refusal(409, 'IDEMPOTENCY_IN_PROGRESS', { 'retry-after': '0' }),
      json({ id: 'a' }),
    )
    assert.deepEqual(same.result, ['ok', { id: 'a' }])
  })

  it('follows redirects of reads within the origin only', async () => {
    const moved = await both(
      'muster.actors.get("a")',
      { status: 307, headers: { location: '/api/v1/actors/b' } },
      json({ id: 'b' }),
    )
    assert.deepEqual([moved.result, moved.requests[1].url], [['ok', { id: 'b' }], '/api/v1/actors/b'])
    const other = await startScripted(json({ id: 'b' }))
    const { host } = new URL(other.url)
    try {
      for (const [call, location] of [
        ['muster.actors.get("a")', `http://${host}/x`],
        ['muster.actors.get("a")', `//${host}/x`],
        ['muster.actors.get("a")', `https://${host}/x`],
        ['muster.actors.get("a")', `http://127.0.0.1@${host}/x`],
        ['muster.actors.create(name="a")', '/x'],
      ]) {
        const refused = await both(call, { status: 307, headers: { location } })
        assert.deepEqual(
          [refused.result[0], refused.result[1].reason, refused.requests.length],
          ['NoAnswer', 'redirect', 1],
          location,
        )
      }
      assert.deepEqual(other.requests, [])
    } finally {
      await other.close()
    }
  })

  it('ends a try at its timeout, and shows the token in no error', async () => {
    const late = await both('muster.actors.get("a", request_options={"timeout": 0.2, "max_retries": 0})', {
      hang: true,
    })
    assert.deepEqual([late.result[0], late.result[1].reason], ['NoAnswer', 'timeout'])
    const text = await runScript(`result = []
for token, url in (("sk_secret\\n", "http://127.0.0.1:1"), ("sk_secret", "http://127.0.0.1:1")):
    try:
        Muster(url, token, max_retries=0).actors.get("a")
    except Exception as error:
        result.append(type(error).__name__ + repr(error))
print(json.dumps(result))`)
    assert.match(text[0], /^ValueError/)
    assert.match(text[1], /^NoAnswer/)
    assert.doesNotMatch(text.join(), /sk_secret/)
  })

  it('reports an answer that is not HTTP as no answer', async () => {
    const server = net.createServer(socket => socket.on('error', () => {}).end('<!DOCTYPE HTML>\r\n\r\n'))
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    try {
      const result = await runScript(
        `try:
    Muster(sys.argv[1], max_retries=0).actors.get("a")
except Exception as error:
    print(json.dumps(outcome(error)))`,
        [`http://127.0.0.1:${(server.address() as net.AddressInfo).port}`],
      )
      assert.deepEqual(result, ['NoAnswer', { reason: 'network', status: null }])
    } finally {
      server.close()
    }
  })

  it('keeps connections for the next request, and replaces those that the service has closed', async () => {
    const server = await startScripted(json({ id: 'a' }))
    try {
      const result = await runScript(
        `muster = Muster(sys.argv[1], max_retries=0)
for _ in range(3):
    muster.actors.get("a")
idle = muster._connection._pool._idle
first = len(idle)
idle[0].sock.shutdown(2)
muster.actors.get("a")
print(json.dumps([first, len(idle)]))`,
        [server.url],
      )
      assert.deepEqual([result, server.requests.length], [[1, 1], 4])
    } finally {
      await server.close()
    }
  })

  it('has threads for calls and for cancels while all threads of streams wait', async () => {
    const server = await startScripted(res => {
      const { url = '' } = res.req
      if (url.endsWith('/slow')) return
      if (url.endsWith('/generate')) {
        res.writeHead(200, { 'content-type': 'text/event-stream' })
        res.write('id: 1\nevent: started\ndata: {"generation_id":"gen_1"}\n\n')
      } else res.writeHead(200, { 'content-type': 'application/json' }).end('{"id":"a"}')
    })
    try {
      const result = await runScript(
        `async def main():
    async with AsyncMuster(sys.argv[1], "sk_secret", max_threads=2) as muster:
        streams = [muster.agents.generate_stream("a", prompt="x") for _ in range(2)]
        readers = [stream.__aiter__() for stream in streams]
        for reader in readers:
            await reader.__anext__()
        waiting = [asyncio.ensure_future(reader.__anext__()) for reader in readers]
        await asyncio.sleep(0)
        async def within(work):
            await asyncio.wait_for(work, 10)
        try:
            await within(muster.actors.get("a"))
            waiting += [asyncio.ensure_future(muster.actors.get("slow")) for _ in range(2)]
            await asyncio.sleep(0)
            await within(streams[0].cancel())
            await within(streams[0].close())
            return "done"
        except asyncio.TimeoutError:
            return "late"
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
print(json.dumps(asyncio.run(main())))`,
        [server.url],
      )
      assert.equal(result, 'done')
      assert.ok(
        server.requests.some(({ method, url }) => `${method} ${url}` === 'POST /api/v1/generations/gen_1/cancel'),
      )
    } finally {
      await server.close()
    }
  })

  describe('on networks', () => {
    /** Removes the proxies of this machine, then sets some. */
    const withProxies = (proxies: Record<string, string>) => `import os, socket, ssl
for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]
os.environ.update(${JSON.stringify(proxies)})
def attempt(url, **options):
    try:
        return Muster(url, "sk_secret", max_retries=0, **options).actors.get("a")
    except Exception as error:
        return [*outcome(error), repr(error)]
`
    const service = https.createServer({ key, cert }, (req, res) => {
      tokens.push(req.headers.authorization)
      res.writeHead(200, { 'content-type': 'application/json' }).end('{"id":"a"}')
    })
    let tokens: (string | undefined)[]
    const proxy = http.createServer()
    let heads: [target: string, headers: http.IncomingHttpHeaders][]
    const portOf = (server: net.Server) => (server.address() as net.AddressInfo).port
    before(async () => {
      proxy.on('connect', (req, client) => {
        heads.push([req.url as string, req.headers])
        if (req.headers['proxy-authorization'] === undefined)
          return client.end('HTTP/1.1 407 Proxy Authentication Required\r\n\r\n')
        const upstream = net.connect(portOf(service), '127.0.0.1', () => {
          client.write('HTTP/1.1 200 OK\r\n\r\n')
          client.pipe(upstream).pipe(client)
        })
        for (const each of [client, upstream]) each.on('error', () => upstream.destroy())
      })
      for (const server of [service, proxy]) await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    })
    beforeEach(() => {
      tokens = []
      heads = []
    })
    after(() => {
      for (const server of [service, proxy]) {
        server.close()
        server.closeAllConnections()
      }
    })

    it('verifies certificates and names, and sends the token to no service that it cannot verify', async () => {
      const result = await runScript(
        `${withProxies({})}
socket.getaddrinfo = lambda host, port, *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
trusting = ssl.create_default_context(cadata=sys.argv[2])
print(json.dumps([attempt(f"https://{host}:{sys.argv[1]}", **options) for host, options in (
    ("${TLS_HOST}", {"ssl_context": trusting}), ("${TLS_HOST}", {}), ("other.test", {"ssl_context": trusting}))]))`,
        [String(portOf(service)), cert],
      )
      assert.deepEqual(result[0], { id: 'a' })
      for (const refused of result.slice(1)) {
        assert.deepEqual([refused[0], refused[1].reason], ['NoAnswer', 'network'])
        assert.match(refused[2], /certificate verify failed/i)
      }
      assert.deepEqual(tokens, ['Bearer sk_secret'])
    })

    it('passes the proxy of the environment in a tunnel, which sees no token', async () => {
      const address = `https://${TLS_HOST}:${portOf(service)}`
      const open = `http://127.0.0.1:${portOf(proxy)}`
      const script = (url: string) => `${withProxies({ HTTPS_PROXY: url })}
context = ssl.create_default_context(cadata=sys.argv[2])
print(json.dumps([attempt(sys.argv[1], ssl_context=context)]))`
      const passed = await runScript(script(open.replace('://', '://me:a%20b@')), [address, cert])
      assert.deepEqual([passed, tokens], [[{ id: 'a' }], ['Bearer sk_secret']])
      const [[target, headers]] = heads
      const credential = Buffer.from('me:a b').toString('base64')
      assert.deepEqual([heads.length, target], [1, `${TLS_HOST}:${portOf(service)}`])
      assert.equal(headers['proxy-authorization'], `Basic ${credential}`)
      assert.equal(headers.authorization, undefined)
      const [refused] = await runScript(script(open), [address, cert])
      assert.deepEqual([refused[0], refused[1].reason], ['NoAnswer', 'network'])
      assert.match(refused[2], /407/)
      for (const url of ['socks5://127.0.0.1:1', 'https://127.0.0.1:1']) {
        const [unknown] = await runScript(script(url), [address, cert])
        assert.equal(unknown[0], 'ValueError', url)
      }
      assert.equal(tokens.length, 1)
    })

    it('requests plain addresses from the proxy, except the addresses in NO_PROXY', async () => {
      const server = await startScripted(json({ id: 'a' }))
      try {
        const proxies = { HTTP_PROXY: server.url.replace('://', '://me:pw@'), NO_PROXY: '127.0.0.1' }
        const result = await runScript(
          `${withProxies(proxies)}print(json.dumps([attempt("http://muster.test/base"), attempt(sys.argv[1])]))`,
          [server.url],
        )
        assert.deepEqual(result, [{ id: 'a' }, { id: 'a' }])
        const [forwarded, direct] = server.requests
        assert.deepEqual(
          [forwarded.url, forwarded.headers.host],
          ['http://muster.test/base/api/v1/actors/a', 'muster.test'],
        )
        assert.ok(forwarded.headers['proxy-authorization'])
        assert.deepEqual([direct.url, direct.headers['proxy-authorization']], ['/api/v1/actors/a', undefined])
      } finally {
        await server.close()
      }
    })
  })

  describe('with the service', () => {
    const app: SessionApp = forSuite(startSessionApp)

    it('creates, changes, pages and deletes', async () => {
      const result = await runScript(
        `muster = Muster(sys.argv[1], sys.argv[2])
actor = muster.actors.create(name="Ann")
seen = []
muster.actors.get(actor["id"], request_options={"on_response": seen.append})
muster.actors.update(actor["id"], name="Ben", request_options={"if_match": seen[0].etag})
try:
    muster.actors.update(actor["id"], name="Eve", request_options={"if_match": seen[0].etag})
except MusterError as error:
    refused = [error.code, error.status, error.request_id is not None]
tags = muster.actors.tags.merge(actor["id"], body={"team": "desk"})
data = muster.datasets.create(name="many")
lines = b'{"input":[{"role":"user","content":"x"}]}\\n' * 120
muster.datasets.items.import_file(data["id"], content_type="application/x-ndjson", file=io.BytesIO(lines))
items = muster.datasets.items.list(data["id"], limit=50)
many = [each["id"] for each in items]
file = muster.files.upload(file=io.BytesIO("Grüße".encode()), filename="a b.txt", prefix="/docs")
with muster.files.download(file["id"]) as content:
    downloaded = [content.filename, content.text()]
exported = len(list(muster.datasets.items.export(data["id"]).lines()))
muster.actors.delete(actor["id"])
print(json.dumps([refused, tags, len(many), len(set(many)), items.total, len(items.all(max=7)), downloaded, exported]))`,
        [app.url, app.key.token as string],
      )
      assert.deepEqual(result, [
        ['PRECONDITION_FAILED', 412, true],
        { team: 'desk' },
        120,
        120,
        120,
        7,
        ['a b.txt', 'Grüße'],
        120,
      ])
    })

    it('streams a turn over connections that are cut, without loss or repetition', async () => {
      const text = 'Orders can be returned within thirty days, Grüße. '.repeat(3)
      const { agentId, requests } = await app.scripted([{ reply: { text, chunk_words: 2, chunk_delay_ms: 1 } }])
      const draw = random(7)
      const cutter = await startCutter(new URL(app.url), () => 1 + draw(4000))
      try {
        const turns = await runScript(
          `def named(events):
    return [[each["event"], each.get("id"), each["data"]] for each in events]
def turn():
    muster = Muster(sys.argv[1], sys.argv[2], max_retries=1000)
    stream = muster.agents.generate_stream(sys.argv[4], prompt="How long?")
    events = list(stream)
    whole = list(Muster(sys.argv[3], sys.argv[2]).generations.stream(stream.result()["id"]))
    return [named(events) == named(whole), "".join(filter(None, map(piece, events)))]
async def other():
    async with AsyncMuster(sys.argv[1], sys.argv[2], max_retries=1000) as muster:
        async with muster.agents.generate_stream(sys.argv[4], prompt="How long?") as stream:
            return [True, "".join([each async for each in stream.text()])]
from muster_client._calls import text_in as piece
import muster_client._calls as calls
calls.backoff = lambda tries: 0
print(json.dumps([turn() for _ in range(10)] + [asyncio.run(other()) for _ in range(5)]))`,
          [cutter.url, app.key.token as string, app.url, agentId],
        )
        assert.deepEqual(turns, Array(15).fill([true, text]))
        assert.ok(cutter.cuts() > 7, `${cutter.cuts()} cuts`)
        assert.equal((await requests()).length, 15)
      } finally {
        cutter.close()
      }
    })

    it('reports work that fails, and ends a stream of which a task is cancelled', async () => {
      const { agentId } = await app.scripted([{ reply: { error: { status: 400 } } }])
      const failed = await runScript(
        `muster = Muster(sys.argv[1], sys.argv[2])
try:
    muster.agents.generate_stream(sys.argv[3], prompt="x").result()
except WorkFailed as error:
    print(json.dumps([error.code is not None, bool(str(error))]))`,
        [app.url, app.key.token as string, agentId],
      )
      assert.deepEqual(failed, [true, true])
      const { agentId: slow } = await app.scripted([{ reply: { text: 'late', gate: 'python' } }])
      const ended = await runScript(
        `import threading, time
async def main():
    async with AsyncMuster(sys.argv[1], sys.argv[2]) as muster:
        stream = muster.agents.generate_stream(sys.argv[3], prompt="x")
        started = asyncio.Event()
        async def read():
            async for event in stream:
                started.set()
        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            await stream.cancel()
            return "cancelled"
print(json.dumps(asyncio.run(main())))`,
        [app.url, app.key.token as string, slow],
      )
      assert.equal(ended, 'cancelled')
      await app.openGate('python')
    })
  })
})
