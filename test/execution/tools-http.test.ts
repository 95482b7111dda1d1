import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import type { ServerResponse } from 'node:http'
import { rawQuery, sql } from '#core/db/sql.ts'
import { callTool, openCall } from '#execution/tools/call.ts'
import { type ToolRow, toolKind } from '#execution/tools/model.ts'
import { type Client, eventually, startApp } from '../support/app.ts'
import { longestTurn } from '../support/event-loop.ts'
import { forSuite } from '../support/suite.ts'
import { call, json, made, refused, refusedAt, secretOf, startTarget, type Target } from './tool-target.ts'

const SECRET = `a secret of "quotes" & 100% / it's`

describe('http tools', () => {
  const target = forSuite(startTarget)
  const other = forSuite(startTarget)
  const app = forSuite(() =>
    startApp({
      env: {
        EGRESS_ALLOW_HOSTS: `127.0.0.1:${target.port},localhost:${target.port},127.0.0.1:${other.port}`,
        TOOL_MAX_RESPONSE_BYTES: '200000',
        TOOL_CALL_TIMEOUT_MS: '3000',
      },
    }),
  )
  let id: string
  let key: Client
  /** May call tools of the project, and nothing else. */
  let caller: Client

  before(async () => {
    ;({ id, key } = await app.projectWith(['*']))
    const statement = [{ effect: 'Allow', action: ['tools:CallTool'], resource: [`srn:${id}:tool:*`] }]
    caller = await app.user(undefined, [{ statement }])
  })
  beforeEach(() => {
    target.answer = json({ ok: true })
    other.answer = json({ other: true })
    target.requests.length = 0
    other.requests.length = 0
  })

  /** A tool at a path of the target. */
  const tool = (execute: object, fields: object = {}) =>
    made(key, { ...fields, execute: { url: `${target.url}/x`, ...execute } })
  const called = async (made: { id: string }, input?: object) => {
    const reply = await call(caller, made.id, input)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }

  describe('send', () => {
    it('arguments as JSON by POST unless configured otherwise', async () => {
      const made = await tool({})
      assert.deepEqual(await called(made, { 'Key-One': [1, null, { a: 'ü' }] }), { ok: true })
      const { method, url, headers, body } = target.last()
      assert.deepEqual([method, url, headers['content-type']], ['POST', '/x', 'application/json'])
      assert.equal(body, '{"Key-One":[1,null,{"a":"ü"}]}')
      await called(made)
      assert.equal(target.last().body, '{}')
      assert.equal((await caller.post(`/tools/${made.id}/call`)).status, 200)
      for (const method of ['put', 'PATCH']) {
        await called(await tool({ method }), { a: 1 })
        assert.deepEqual([target.last().method, target.last().body], [method.toUpperCase(), '{"a":1}'])
      }
    })

    it('headers with their names as written, and a configured content type', async () => {
      await called(await tool({ headers: { 'X-CamelCase-name': 'v', 'CONTENT-type': 'application/vnd.x+json' } }), {
        a: 1,
      })
      const { rawHeaders, headers } = target.last()
      assert.ok(rawHeaders.includes('X-CamelCase-name'))
      assert.equal(headers['content-type'], 'application/vnd.x+json')
    })

    it('arguments in the address, encoded, and no longer in the rest', async () => {
      const made = await tool({ url: `${target.url}/u/{id}/\${body.part}?fixed=1&q={q}` })
      await called(made, { id: 'a/b ?#%é', part: 7, q: '&x=1', rest: true })
      assert.equal(target.last().url, '/u/a%2Fb%20%3F%23%25%C3%A9/7?fixed=1&q=%26x%3D1')
      assert.equal(target.last().body, '{"rest":true}')
    })

    it('the remaining arguments as a query for methods without a body', async () => {
      for (const method of ['GET', 'DELETE', 'HEAD', 'OPTIONS']) {
        await called(await tool({ method, url: `${target.url}/u/{id}?a=b#fragment` }), {
          id: 1,
          none: null,
          list: [1, 'x'],
          object: { ä: true },
          'k&': 'v=',
        })
        const { url, body, headers } = target.last()
        assert.equal(url, '/u/1?a=b&list=%5B1%2C%22x%22%5D&object=%7B%22%C3%A4%22%3Atrue%7D&k%26=v%3D', method)
        assert.deepEqual([body, headers['content-type']], ['', undefined])
      }
    })

    it('no argument that would lead elsewhere', async () => {
      const made = await tool({ url: `${target.url}/a/{id}/b` })
      for (const value of ['.', '..', '', null, undefined, {}, []])
        refusedAt(await call(caller, made.id, { id: value }), 'input.id')
      refusedAt(await call(caller, made.id), 'input.id')
      for (const value of ['../..', '%2e%2e', '..%2f', '//evil', '\\..\\'])
        await called(made, { id: value }).then(() => assert.match(target.last().url, /^\/a\/[^/]+\/b$/, value))
      assert.equal(target.requests.length, 5)
      const inQuery = await tool({ method: 'GET', url: `${target.url}/a?q={q}` })
      await called(inQuery, { q: '' })
      refusedAt(await call(caller, inQuery.id, { q: '..' }), 'input.q')
    })

    it('an address of at most 64 KiB', async () => {
      refusedAt(await call(caller, (await tool({ method: 'GET' })).id, { a: 'x'.repeat(70_000) }), 'input')
      assert.equal(target.requests.length, 0)
    })

    it('forms with files as multipart bodies', async () => {
      const made = await tool({ body_mode: 'multipart', headers: { 'Content-Type': 'text/plain', 'X-A': 'b' } })
      await called(made, {
        text: 'a',
        number: 5,
        flag: false,
        none: null,
        object: { a: [1] },
        file: { data_base64: Buffer.from([0, 255, 1]).toString('base64') },
        named: { data_base64: 'aGk=', filename: 'a"b\r\nX: y.txt', content_type: 'text/x' },
        notFile: { data_base64: 'aGk=', more: 1 },
      })
      const { headers, bytes } = target.last()
      assert.match(headers['content-type'] as string, /^multipart\/form-data; boundary=/)
      const form = await new Response(new Uint8Array(bytes), {
        headers: { 'content-type': headers['content-type'] as string },
      }).formData()
      assert.deepEqual(
        [form.get('text'), form.get('number'), form.get('flag'), form.has('none')],
        ['a', '5', 'false', false],
      )
      assert.deepEqual([form.get('object'), form.get('notFile')], ['{"a":[1]}', '{"data_base64":"aGk=","more":1}'])
      const file = form.get('file') as File
      assert.deepEqual([file.name, file.type], ['file', 'application/octet-stream'])
      assert.deepEqual(Buffer.from(await file.arrayBuffer()), Buffer.from([0, 255, 1]))
      const named = form.get('named') as File
      assert.deepEqual([await named.text(), named.type], ['hi', 'text/x'])
      assert.ok(!bytes.toString().includes('\r\nX: y'))
      refusedAt(await call(caller, made.id, { file: { data_base64: 'not base64!' } }), 'input.file.data_base64')
    })

    it('presets in place of arguments of their names', async () => {
      const made = await tool({ method: 'GET' }, { preset_parameters: { a: 1 } })
      await called(made, { a: 2, b: 3 })
      assert.equal(target.last().url, '/x?a=1&b=3')
    })

    it('only what the parameters allow, presets included', async () => {
      const parameters = {
        type: 'object',
        required: ['city', 'unit'],
        properties: {
          city: { type: 'string' },
          unit: { enum: ['C', 'F'] },
          days: { type: 'array', items: { type: 'integer' } },
        },
        additionalProperties: false,
      }
      const made = await tool({}, { parameters, preset_parameters: { unit: 'C' } })
      await called(made, { city: 'Bonn', unit: 'K' })
      refusedAt(await call(caller, made.id, {}), 'input')
      refusedAt(await call(caller, made.id, { city: 5 }), 'input.city')
      refusedAt(await call(caller, made.id, { city: 'x', days: [1, 'y'] }), 'input.days[1]')
      refusedAt(await call(caller, made.id, { city: 'x', other: 1 }), 'input')
      assert.equal(target.requests.length, 1)
    })

    it('nothing of a body that is no call', async () => {
      const made = await tool({})
      refusedAt(await caller.post(`/tools/${made.id}/call`, { input: [] }), 'input')
      refusedAt(await caller.post(`/tools/${made.id}/call`, { input: 'x' }), 'input')
      refusedAt(await caller.post(`/tools/${made.id}/call`, { arguments: {} }), 'arguments')
      refusedAt(await caller.post(`/tools/${made.id}/call`, { tool_context: {} }), 'tool_context')
      await called(made, {})
      assert.equal((await call(caller, made.id, {}, { action: 'ignored' })).status, 200)
      refusedAt(await call(caller, (await made_draft()).id), 'execute')
    })
    const made_draft = () => made(key, {})
  })

  describe('with secrets', () => {
    it('fill them in for the call alone: in headers, and encoded in the address', async () => {
      const secret = await secretOf(key, SECRET)
      const made = await tool({
        url: `${target.url}/k/{{secret:${secret}}}?k={{secret:${secret}}}&{q}`,
        headers: { Authorization: `Bearer {{secret:${secret}}}`, 'X-Two': `{{secret:${secret}}}-{{secret:${secret}}}` },
      })
      await called(made, { q: `{{secret:${secret}}}` })
      const { url, headers } = target.last()
      assert.equal(headers.authorization, `Bearer ${SECRET}`)
      assert.equal(headers['x-two'], `${SECRET}-${SECRET}`)
      const sent = encodeURIComponent(SECRET)
      const inQuery = sent.replaceAll("'", '%27')
      assert.equal(url, `/k/${sent}?k=${inQuery}&${encodeURIComponent(`{{secret:${secret}}}`)}`)
      assert.ok(!JSON.stringify((await key.get(`/tools/${made.id}`)).body).includes('quotes'))
    })

    it('use a new value from the next call on', async () => {
      const secret = await secretOf(key, 'first value')
      const made = await tool({ headers: { 'X-Key': `{{secret:${secret}}}` } })
      await called(made)
      await key.patch(`/secrets/${secret}`, { value: 'second value' })
      await called(made)
      assert.deepEqual(
        target.requests.map(({ headers }) => headers['x-key']),
        ['first value', 'second value'],
      )
    })

    it('never reveal them, whatever the target does', async () => {
      const secret = await secretOf(key, SECRET)
      const S = `{{secret:${secret}}}`
      const made = await tool({ url: `${target.url}/{a}?k=${S}`, headers: { 'X-Key': S } })
      const shown = `${target.url}/b?k=${S}`
      const leaks = (text: string) =>
        text.includes(SECRET) || text.includes(encodeURIComponent(SECRET)) || text.includes('quotes')
      const errors: any[] = []
      target.answer = ({ url, headers }, response) => response.writeHead(418).end(`${url} ${headers['x-key']}`)
      errors.push(refused(await call(caller, made.id, { a: 'b' }), 502, 'TOOL_HTTP_ERROR'))
      assert.equal(errors[0].meta.tool_response_body, '/b?k=*** ***')
      target.answer = (_request, response) => response.writeHead(418).end(encodeURIComponent(SECRET))
      errors.push(refused(await call(caller, made.id, { a: 'b' }), 502, 'TOOL_HTTP_ERROR'))
      assert.equal(errors.pop().meta.tool_response_body, '***')
      target.answer = ({ url }, response) => response.writeHead(302, { location: `http://169.254.169.254${url}` }).end()
      errors.push(refused(await call(caller, made.id, { a: 'b' }), 403, 'TOOL_EGRESS_BLOCKED'))
      assert.equal(errors[1].meta.tool_url, 'http://169.254.169.254/b?k=***')
      target.answer = (_request, response) => response.destroy()
      errors.push(refused(await call(caller, made.id, { a: 'b' }), 502, 'TOOL_HTTP_ERROR'))
      for (const error of [errors[0], errors[2]]) assert.equal(error.meta.tool_url, shown)
      const blocked = await made_({ execute: { url: `http://10.1.2.3/{a}?k=${S}` } })
      errors.push(refused(await call(caller, blocked.id, { a: 'b' }), 403, 'TOOL_EGRESS_BLOCKED'))
      assert.equal(errors[3].meta.tool_url, `http://10.1.2.3/b?k=${S}`)
      for (const error of errors) assert.ok(!leaks(JSON.stringify(error)), JSON.stringify(error))
      assert.ok(!app.logs.some(leaks))
      const kept = (await app.pool.anyFirst(sql.unsafe`select to_jsonb(e)::text as text from events e
        union all select to_jsonb(a)::text from audit_entries a union all select to_jsonb(t)::text from tools t`)) as unknown as string[]
      for (const text of kept) assert.ok(!leaks(text))
    })
    const made_ = (fields: Record<string, unknown>) => made(key, fields)

    it('do not hold up the process where secret and answer are alike', async () => {
      const ids = await Promise.all(Array.from({ length: 10 }, () => secretOf(key, `${'a'.repeat(1023)}/`)))
      const headers = Object.fromEntries(ids.map((id, index) => [`X-${index}`, `{{secret:${id}}}`]))
      const made = await tool({ headers })
      const text = `${'a'.repeat(1023)}%2f_${'a'.repeat(65_000)}`
      target.answer = (_request, response) => response.writeHead(418).end(text)
      let body = ''
      const held = await longestTurn(async () => {
        body = refused(await call(caller, made.id), 502, 'TOOL_HTTP_ERROR').meta.tool_response_body
      })
      assert.match(body, /^\*\*\*_a+\*\*\*$/)
      assert.ok(held < 1000, `${held} ms`)
    })

    it('fail when one was deleted, cannot be decrypted, or cannot be a header', async () => {
      const secret = await secretOf(key, 'value')
      const made = await tool({ headers: { 'X-Key': `{{secret:${secret}}}` } })
      await key.patch(`/secrets/${secret}`, { value: 'line\r\nX-Injected: yes' })
      refusedAt(await call(caller, made.id), 'execute.headers.X-Key')
      await app.pool.query(sql.unsafe`update secrets set sealed_value = 'v1.x.y' where id = ${secret}`)
      assert.deepEqual(refused(await call(caller, made.id), 500, 'SECRET_NOT_DECRYPTABLE').meta, { secret_id: secret })
      await key.delete(`/secrets/${secret}`)
      assert.deepEqual(refused(await call(caller, made.id), 400, 'SECRET_NOT_FOUND').meta, { secret_id: secret })
      assert.equal(target.requests.length, 0)
    })

    it('sign their requests, as webhooks are signed', async () => {
      const secret = await secretOf(key, 'signing key')
      await called(await tool({ sign: `{{secret:${secret}}}` }), { a: 'ü' })
      const { headers, body } = target.last()
      const [, t, v1] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(headers['x-svc-signature'] as string) as RegExpExecArray
      assert.ok(Math.abs(Number(t) - Date.now() / 1000) < 60)
      assert.equal(v1, createHmac('sha256', 'signing key').update(`${t}.${body}`).digest('hex'))
    })
  })

  describe('answer', () => {
    const answering = async (write: Target['answer'], fields: object = {}) => {
      target.answer = write
      return called(await tool({}, fields))
    }
    const text =
      (body: string | Buffer, type?: string): Target['answer'] =>
      (_request, response) =>
        response.writeHead(200, type === undefined ? {} : { 'content-type': type }).end(body)

    it('JSON, text, nothing, or bytes', async () => {
      assert.deepEqual(await answering(json({ a: [1, null], b: 'ü' })), { a: [1, null], b: 'ü' })
      for (const value of [0, false, null, 'text', []]) assert.deepEqual(await answering(json(value)), value)
      assert.deepEqual(await answering(text('{"a":1}', 'application/problem+json; charset=utf-8')), { a: 1 })
      assert.deepEqual(await answering(text('\ufeff{"a":1}', 'application/json')), { a: 1 })
      assert.deepEqual(await answering(text('{"a":1}')), { a: 1 })
      assert.equal(await answering(text('{"a":1}', 'text/plain')), '{"a":1}')
      assert.equal(await answering(text('{not json', 'application/json')), '{not json')
      assert.equal(await answering(text('plain')), 'plain')
      assert.equal(await answering(text('', 'text/plain')), null)
      assert.equal(await answering((_request, response) => response.writeHead(204).end()), null)
      assert.deepEqual(await answering(text(Buffer.from([0xff, 0xfe, 0]), 'image/x')), {
        content_type: 'image/x',
        data_base64: '//4A',
      })
      const bare = await answering(text(Buffer.from([0xff])))
      assert.deepEqual(bare, { content_type: 'application/octet-stream', data_base64: '/w==' })
      const raw = await fetch(`${app.url}/api/v1/tools/${(await tool({})).id}/call`, {
        method: 'POST',
        headers: { authorization: `Bearer ${caller.token}` },
      })
      assert.equal(raw.headers.get('content-type'), 'application/json; charset=utf-8')
    })

    it('what the mapping makes of it and of the merged input', async () => {
      assert.equal(await answering(json({ text: 'hi' }), { output_mapping: { var: 'output.text' } }), 'hi')
      const output_mapping = {
        who: { var: 'input.name' },
        twice: { '*': [{ var: 'output.n' }, 2] },
        none: { var: 'output.x' },
      }
      const fields = { output_mapping, preset_parameters: { name: 'preset' } }
      assert.deepEqual(await answering(json({ n: 4 }), fields), { who: 'preset', twice: 8, none: null })
      const noted = app.logs.filter(line => line.includes('output mapping read missing values'))
      assert.deepEqual([noted.length, JSON.parse(noted[0]).missing], [1, ['output.x']])
      const range = Array.from({ length: 999 }, (_, index) => index)
      const tooMuch = {
        output_mapping: { map: [{ var: 'output' }, { map: [{ preserve: range }, { '+': [{ var: '' }] }] }] },
      }
      target.answer = json(range)
      refusedAt(await call(caller, (await tool({}, tooMuch)).id), 'output_mapping')
    })

    it('TOOL_HTTP_ERROR for any other status, with the start of the body', async () => {
      target.answer = (_request, response) => response.writeHead(418).end('x')
      const made = await tool({ url: `${target.url}/{a}`, method: 'PUT' })
      assert.deepEqual(refused(await call(caller, made.id, { a: 'b c' }), 502, 'TOOL_HTTP_ERROR').meta, {
        tool_status_code: 418,
        tool_response_body: 'x',
        tool_url: `${target.url}/b%20c`,
        tool_method: 'PUT',
      })
      target.answer = (_request, response) => response.writeHead(500).end(`\0${'ü'.repeat(20_000)}`)
      const { meta } = refused(await call(caller, made.id, { a: 'b' }), 502, 'TOOL_HTTP_ERROR')
      assert.ok(Buffer.byteLength(meta.tool_response_body) <= 16_384 && !meta.tool_response_body.includes('\0'))
      for (const status of [199 + 105, 400, 401, 503]) {
        target.answer = (_request, response) => response.writeHead(status).end()
        assert.equal(
          refused(await call(caller, made.id, { a: 'b' }), 502, 'TOOL_HTTP_ERROR').meta.tool_status_code,
          status,
        )
      }
    })

    it('not more than fits: in bytes, values and levels', async () => {
      const made = await tool({})
      const tooLarge = async (body: string) => {
        target.answer = text(body, 'application/json')
        const { meta } = refused(await call(caller, made.id), 502, 'TOOL_HTTP_ERROR')
        assert.equal(meta.reason, 'response_too_large')
      }
      await tooLarge('"'.padEnd(200_001, 'x'))
      await tooLarge(`${'['.repeat(65)}${']'.repeat(65)}`)
      target.answer = text(JSON.stringify('x'.repeat(199_998)), 'application/json')
      assert.equal((await called(made)).length, 199_998)
    })

    it('TOOL_HTTP_ERROR without a status where none came, with the reason', async () => {
      const reasonOf = async (execute: object) => {
        const error = refused(await call(caller, (await tool(execute)).id), 502, 'TOOL_HTTP_ERROR')
        assert.equal(error.meta.tool_status_code, null)
        return error.meta.reason
      }
      target.answer = (_request, response) => response.destroy()
      assert.equal(await reasonOf({}), 'connect')
      assert.equal(await reasonOf({ url: 'http://nowhere.invalid/' }), 'dns')
      assert.equal(await reasonOf({ url: `https://127.0.0.1:${target.port}/` }), 'tls')
    })

    it('with an error after the timeout of the tool, or of the deployment, when the target never answers', async () => {
      target.answer = () => {}
      for (const [execute, least, most] of [
        [{ timeout_ms: 1000 }, 900, 2500],
        [{}, 2900, 6000],
      ] as const) {
        const started = performance.now()
        const { meta } = refused(await call(caller, (await tool(execute)).id), 502, 'TOOL_HTTP_ERROR')
        const ms = performance.now() - started
        assert.equal(meta.reason, 'timeout')
        assert.ok(ms > least && ms < most + 10_000, `${ms}`)
      }
      target.answer = (_request, response) => {
        response.writeHead(200).write('a')
        const timer = setInterval(() => response.write('b'), 100)
        response.on('close', () => clearInterval(timer))
      }
      assert.equal(
        refused(await call(caller, (await tool({ timeout_ms: 1000 })).id), 502, 'TOOL_HTTP_ERROR').meta.reason,
        'timeout',
      )
    })

    it('to no caller that left: the call ends, unless it may be requested again', async () => {
      const made = await tool({})
      const path = `/tools/${made.id}/call`
      /** Calls, leaves once the target was called, and gives the answer that the target still owes. */
      const leave = async (headers: Record<string, string>) => {
        const owed = new Promise<ServerResponse>(resolve => {
          target.answer = (_request, response) => resolve(response)
        })
        const gone = new AbortController()
        const init = {
          method: 'POST',
          headers: { authorization: `Bearer ${caller.token}`, ...headers },
          signal: gone.signal,
        }
        const asking = fetch(`${app.url}/api/v1${path}`, init).catch(() => {})
        const response = await owed
        gone.abort()
        await asking
        return response
      }
      const left = await leave({})
      await eventually(() => left.closed, { what: 'the end of the call' })
      const key = { 'Idempotency-Key': 'stays' }
      json('late')(undefined as never, await leave(key))
      const count = target.requests.length
      const repeat = await eventually(async () => {
        const reply = await caller.post(path, undefined, key)
        return reply.status === 200 ? reply : null
      })
      assert.deepEqual([repeat.body, repeat.headers.get('idempotency-replayed')], ['late', 'true'])
      assert.equal(target.requests.length, count)
    })
  })

  describe('keep to the egress rule', () => {
    it('no connection to an address that is not public', async () => {
      const stranger = await startTarget()
      const hosts = [
        `127.0.0.1:${stranger.port}`,
        '10.0.0.1',
        '169.254.169.254',
        '[::1]:9',
        '[::ffff:127.0.0.1]:9',
        '0x7f.1:9',
      ]
      for (const host of hosts) {
        const { id } = await tool({ url: `http://${host}/` })
        const { meta } = refused(await call(caller, id), 403, 'TOOL_EGRESS_BLOCKED')
        assert.ok(meta.tool_address, host)
        assert.ok(meta.tool_url.startsWith('http://'))
      }
      assert.equal(stranger.connections, 0)
      await stranger.close()
    })

    it('nor by a redirect, and not many of those', async () => {
      const made = await tool({})
      target.answer = (_request, response) => response.writeHead(307, { location: 'http://169.254.169.254/' }).end()
      const { meta } = refused(await call(caller, made.id), 403, 'TOOL_EGRESS_BLOCKED')
      assert.deepEqual(meta, { tool_url: 'http://169.254.169.254/', tool_address: '169.254.169.254' })
      target.answer = (_request, response) => response.writeHead(302, { location: '/again' }).end()
      target.requests.length = 0
      assert.equal(refused(await call(caller, made.id), 403, 'TOOL_EGRESS_BLOCKED').meta.tool_address, null)
      assert.equal(target.requests.length, 6)
      target.answer = (_request, response) => response.writeHead(302, { location: 'file:///etc/passwd' }).end()
      assert.equal(refused(await call(caller, made.id), 403, 'TOOL_EGRESS_BLOCKED').meta.tool_address, null)
    })

    it('a redirect to another origin gets no credentials', async () => {
      const secret = await secretOf(key, 'secret value')
      const S = `{{secret:${secret}}}`
      const made = await tool({
        headers: { 'X-Key': S, Authorization: 'Basic abc', Cookie: 'a=b', 'X-Plain': 'p' },
        sign: S,
      })
      const redirect =
        (status: number, location: string): Target['answer'] =>
        ({ url }, response) =>
          url === '/x' ? response.writeHead(status, { location }).end() : json(1)(undefined as never, response)
      target.answer = redirect(307, '/same')
      await called(made, { a: 1 })
      assert.deepEqual(
        [target.last().url, target.last().headers['x-key'], target.last().body],
        ['/same', 'secret value', '{"a":1}'],
      )
      target.answer = redirect(307, `${other.url}/y`)
      await called(made, { a: 1 })
      const { headers, method, body } = other.last()
      assert.deepEqual([method, body, headers['x-plain']], ['POST', '{"a":1}', 'p'])
      for (const name of ['x-key', 'authorization', 'cookie', 'x-svc-signature'])
        assert.equal(headers[name], undefined, name)
      target.answer = redirect(302, `${other.url}/y`)
      await called(made, { a: 1 })
      assert.deepEqual(
        [other.last().method, other.last().body, other.last().headers['content-type']],
        ['GET', '', undefined],
      )
    })
  })

  describe('with a tool context', () => {
    const direct = async (execute: object, context: Record<string, string>, fields: object = {}) => {
      const { id } = await tool(execute, fields)
      const row = (await toolKind.find(app.pool, id)) as ToolRow
      return callTool(
        app.services,
        row,
        openCall(app.services, { caller: async () => null, context, idempotencyKey: 'k-1', metering: null }),
      )
    }

    it('send it as headers, as far as they list its keys', async () => {
      const context = { Tenant: 't1', other: 'ö ✓', sessionId: 'sess_1' }
      await direct({ headers: { 'x-svc-context-tenant': 'configured', 'idempotency-KEY': 'mine' } }, context)
      const { headers, rawHeaders } = target.last()
      assert.ok(rawHeaders.includes('X-Svc-Context-Tenant'))
      assert.deepEqual([headers['x-svc-context-tenant'], headers['idempotency-key']], ['t1', 'k-1'])
      assert.equal(Buffer.from(headers['x-svc-context-other'] as string, 'latin1').toString(), 'ö ✓')
      await direct({}, context, { context_keys: ['TENANT'] })
      assert.deepEqual(
        Object.keys(target.last().headers).filter(name => name.startsWith('x-svc-context-')),
        ['x-svc-context-tenant', 'x-svc-context-sessionid'],
      )
      await direct({}, context, { context_keys: [] })
      assert.equal(target.last().headers['x-svc-context-tenant'], undefined)
    })

    it('fill its values into headers once, whatever the list of keys', async () => {
      const secret = await secretOf(key, 'never sent')
      const value = `{{secret:${secret}}}`
      await direct({ headers: { 'X-A': '<{{context:tok}}>' } }, { tok: value, empty: '' }, { context_keys: [] })
      assert.equal(target.last().headers['x-a'], `<${value}>`)
      await direct({ headers: { 'X-A': 'a{{context:empty}}b' } }, { empty: '' })
      assert.equal(target.last().headers['x-a'], 'ab')
      await assert.rejects(direct({}, { a: 'b\u0001' }), /VALIDATION_FAILED|header value/)
    })

    it('do not send it to another origin', async () => {
      target.answer = (_request, response) => response.writeHead(307, { location: `${other.url}/y` }).end()
      await direct({ headers: { 'X-A': '{{context:tok}}' } }, { tok: 'v' })
      assert.deepEqual([other.last().headers['x-a'], other.last().headers['x-svc-context-tok']], [undefined, undefined])
      assert.equal(other.last().headers['idempotency-key'], 'k-1')
    })

    it('fail without a key that they need, and send nothing', async () => {
      const made = await tool({ headers: { 'X-A': 'Bearer {{context:tok}}' } })
      const { meta } = refused(await call(caller, made.id), 400, 'MISSING_TOOL_CONTEXT_KEY')
      assert.deepEqual(meta, { key: 'tok', header: 'X-A' })
      assert.equal(target.requests.length, 0)
    })
  })

  describe('called directly', () => {
    it('are not, when they run at the client', async () => {
      const made_ = await made(key, { type: 'client', execute: { url: target.url } })
      assert.deepEqual(refused(await call(caller, made_.id), 422, 'TOOL_CALL_NOT_SUPPORTED').meta, {
        tool_id: made_.id,
      })
      assert.equal(target.requests.length, 0)
    })

    it('are not, in a project that is paused', async () => {
      const own = await app.project()
      const tool = await made(own.key, { execute: { url: target.url } })
      await app.admin.post(`/projects/${own.id}/pause`, { reason: 'night' })
      const { meta } = refused(await call(own.key, tool.id), 409, 'PROJECT_PAUSED')
      assert.deepEqual(meta, { project_id: own.id, pause_reason: 'night' })
      assert.equal(target.requests.length, 0)
    })

    it('leave one audit entry, without arguments', async () => {
      const made = await tool({})
      await called(made, { card: 'argument value' })
      await eventually(
        async () => (await app.admin.get(`/audit-log?project_id=${id}&action=tools:CallTool`)).body.total > 0,
      )
      const { data } = (await app.admin.get(`/audit-log?project_id=${id}&action=tools:CallTool`)).body
      const entries = data.filter((entry: any) => entry.resource_public_id === made.id)
      assert.equal(entries.length, 1)
      assert.deepEqual([entries[0].status, entries[0].resource_srn], [200, `srn:${id}:tool:${made.id}`])
      assert.ok(!JSON.stringify(entries).includes('argument value'))
      assert.ok(!app.logs.join('').includes('argument value'))
      const lines = app.logs.filter(line => line.includes(made.id) && line.includes('"tool called"'))
      assert.equal(lines.length, 1)
    })

    it('write their entries with their events together, and lose none for a call that is refused', async () => {
      const { pool } = app.services
      const made = await tool({})
      await pool.query(
        rawQuery(
          `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`,
        ),
      )
      await pool.query(
        rawQuery(`create trigger refuse before insert on audit_entries for each row when (new.request_id = 'together-2')
          execute function refuse()`),
      )
      try {
        const waiting = await pool.transaction(async locked => {
          await locked.query(rawQuery('lock table audit_entries in share row exclusive mode'))
          const calls = Array.from({ length: 6 }, (_, n) =>
            caller.post(`/tools/${made.id}/call`, {}, { 'X-Request-Id': `together-${n}` }),
          )
          await eventually(() => target.requests.length === calls.length)
          return calls
        })
        for (const { status } of await Promise.all(waiting)) assert.equal(status, 200)
      } finally {
        await pool.query(rawQuery('drop function refuse cascade'))
      }
      const entries = await pool.any(sql.unsafe`
        select a.request_id, e.resource_id is not null as told from audit_entries a
        left join events e on e.resource_id = a.id and e.name = 'audit_entries.created' and e.project_id = ${id}
        where a.resource_public_id = ${made.id} and a.action = 'tools:CallTool' order by a.request_id`)
      assert.deepEqual(
        entries,
        [0, 1, 3, 4, 5].map(n => ({ request_id: `together-${n}`, told: true })),
      )
    })

    it('leave an entry of the deployment where their project was deleted meanwhile', async () => {
      const own = await app.project()
      const tool = await made(own.key, { execute: { url: target.url } })
      target.answer = async (request, response) => {
        await app.admin.delete(`/projects/${own.id}?force=true`)
        json({ ok: true })(request, response)
      }
      await app.admin.post(`/tools/${tool.id}/call`, {}, { 'X-Request-Id': 'of-a-gone-project' })
      const entries = await app.pool.any(
        sql.unsafe`select project_id, action from audit_entries where request_id = 'of-a-gone-project'`,
      )
      assert.deepEqual(entries, [{ project_id: null, action: 'tools:CallTool' }])
    })

    it('see a pause that began while others of the tool were being looked up', async () => {
      const own = await app.project()
      const tool = await made(own.key, { execute: { url: target.url } })
      const calls = () => Promise.all(Array.from({ length: 8 }, () => call(own.key, tool.id)))
      const before = calls()
      await app.admin.post(`/projects/${own.id}/pause`, { reason: 'night' })
      for (const reply of await calls()) refused(reply, 409, 'PROJECT_PAUSED')
      await before
    })

    it('once for an Idempotency-Key, whatever they answered', async () => {
      const made = await tool({})
      for (const value of [{ b: 1, a: ['\0', '\ud800'] }, null, 'text', 0]) {
        target.answer = json(value)
        const send = () =>
          caller.post(
            `/tools/${made.id}/call`,
            {},
            { 'Idempotency-Key': `k-${JSON.stringify(value)}`.replace(/[^a-z0-9-]/g, '') },
          )
        const first = await send()
        assert.deepEqual([first.status, first.body], [200, value])
        const before = target.requests.length
        target.answer = json('another')
        const repeat = await send()
        assert.deepEqual([repeat.status, repeat.body, repeat.headers.get('idempotency-replayed')], [200, value, 'true'])
        assert.equal(target.requests.length, before)
      }
      target.answer = (_request, response) => response.writeHead(500).end()
      const again = () => caller.post(`/tools/${made.id}/call`, {}, { 'Idempotency-Key': 'failing' })
      refused(await again(), 502, 'TOOL_HTTP_ERROR')
      target.answer = json('better')
      assert.equal((await again()).body, 'better')
      assert.equal(target.last().headers['idempotency-key'], undefined)
    })

    it('many calls concurrently, each with its answer', async () => {
      const made = await tool({})
      target.answer = ({ body }, response) =>
        void setTimeout(() => json(JSON.parse(body).n)(undefined as never, response), 50)
      const answers = await Promise.all(Array.from({ length: 40 }, (_, n) => called(made, { n })))
      assert.deepEqual(
        answers,
        Array.from({ length: 40 }, (_, n) => n),
      )
    })

    it('without holding a connection to the database while the target thinks', async () => {
      const made = await tool({})
      target.answer = () => {}
      const hanging = Array.from({ length: 30 }, () => call(caller, made.id))
      await eventually(() => target.requests.length === 30)
      assert.equal((await key.get('/tools')).status, 200)
      await Promise.all(hanging)
    })
  })
})
