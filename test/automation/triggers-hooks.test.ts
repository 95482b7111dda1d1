import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { sql } from '#core/db/sql.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { codeOf, ended, firingsOf, hook, madeTrigger, signatureOf, startTriggerApp } from './triggers-support.ts'

const MIB = 1024 * 1024

describe('trigger hooks', function () {
  this.timeout(60_000)
  const app = forSuite(startTriggerApp)
  const key = forSuite(() => app.key)
  let trigger: any
  const call = (body: string | Buffer, headers?: Record<string, string>) => hook(app.url, trigger, body, headers)
  const code = async (answer: ReturnType<typeof call>) => {
    const { status, body } = await answer
    return [status, body?.error?.code]
  }
  beforeEach(async () => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
    trigger = await madeTrigger(key, { type: 'webhook', target_type: 'tool', target_id: app.toolId, input: { own: 1 } })
  })

  it('accepts a signed call once', async () => {
    const body = '{"b":1,"__proto__":{"x":1},"a":"é","own":2}'
    const headers = { 'X-Svc-Signature': signatureOf(trigger.secret, body), 'content-type': 'text/html' }
    const first = await call(body, headers)
    assert.deepEqual(first, {
      status: 202,
      body: { firing_id: first.body.firing_id, trigger_id: trigger.id, status: 'pending' },
    })
    const firing = await ended(key, first.body.firing_id)
    assert.deepEqual([firing.status, firing.source, firing.fired_by], ['succeeded', 'webhook', null])
    assert.equal(JSON.stringify(firing.input), '{"own":2,"b":1,"__proto__":{"x":1},"a":"é"}')
    const again = await Promise.all([call(body, headers), call(body, headers)])
    for (const reply of again)
      assert.deepEqual([reply.status, reply.body.firing_id, reply.body.status], [202, firing.id, 'succeeded'])
    // Only the signed parts count, not the other parts of the header.
    const more = { 'X-Svc-Signature': `${headers['X-Svc-Signature']},v1=${'0'.repeat(64)}` }
    assert.equal((await call(body, more)).body.firing_id, firing.id)
    assert.equal((await firingsOf(key, trigger.id)).length, 1)
    assert.equal(app.target.requests.length, 1)
  })

  it('creates one firing for concurrent calls with the same signature', async () => {
    const headers = { 'X-Svc-Signature': signatureOf(trigger.secret, '{}') }
    const replies = await Promise.all(Array.from({ length: 8 }, () => call('{}', headers)))
    assert.deepEqual(new Set(replies.map(({ status }) => status)), new Set([202]))
    assert.equal(new Set(replies.map(({ body }) => body.firing_id)).size, 1)
    assert.equal((await firingsOf(key, trigger.id)).length, 1)
  })

  it('accepts any JSON value as input', async () => {
    for (const [body, input] of [
      ['', {}],
      ['[1,2]', { payload: [1, 2] }],
      ['"x"', { payload: 'x' }],
      ['null', { payload: null }],
      ['{"nul":"a\\u0000b"}', { nul: 'a\u{fffd}b' }],
    ] as const) {
      const { body: answer } = await call(body)
      const { input: given } = (await key.get(`/trigger-firings/${answer.firing_id}`)).body
      assert.deepEqual(given, { own: 1, ...input })
    }
  })

  it('refuses unsigned, wrongly signed and expired calls', async () => {
    const now = Math.floor(Date.now() / 1000)
    const digest = (secret: string, at: number | string, body: string) =>
      createHmac('sha256', secret).update(`${at}.${body}`).digest('hex')
    const good = digest(trigger.secret, now, '{}')
    for (const value of [
      undefined,
      '',
      'nonsense',
      `t=${now}`,
      `v1=${good}`,
      `t=${now},v1=`,
      `t=${now},v1=${good.slice(2)}`,
      `t=${now},v1=zz${good.slice(2)}`,
      `t=${now},t=${now},v1=${good}`,
      `t=${now}.0,v1=${good}`,
      `t=-1,v1=${digest(trigger.secret, -1, '{}')}`,
      `t=${now},v0=${good}`,
      `t=${now},v1=${digest('other', now, '{}')}`,
      `t=${now},v1=${digest(trigger.secret, now, '{} ')}`,
      `t=${now - 600},v1=${digest(trigger.secret, now - 600, '{}')}`,
      `t=${now + 600},v1=${digest(trigger.secret, now + 600, '{}')}`,
      `t=${now},${`v1=${'0'.repeat(64)},`.repeat(20)}v1=${good}`,
    ])
      assert.deepEqual(
        await code(call('{}', value === undefined ? {} : { 'X-Svc-Signature': value })),
        [401, 'UNAUTHORIZED'],
        value,
      )
    // Both ends of the tolerance, several signatures, upper case.
    for (const value of [
      `t=${now - 250},v1=${digest(trigger.secret, now - 250, '{}')}`,
      `t=${now + 250},v1=${digest(trigger.secret, now + 250, '{}')}`,
      `t=${now},v1=${'0'.repeat(64)},v1=${good.toUpperCase()}`,
    ])
      assert.equal((await call('{}', { 'X-Svc-Signature': value })).status, 202, value)
    assert.equal((await firingsOf(key, trigger.id)).length, 3)
  })

  it('checks a call in the documented order', async () => {
    const manual = await madeTrigger(key, { target_type: 'tool', target_id: app.toolId })
    for (const id of [manual.id, 'trg_01m839z85t2hz61d7c3k8rha9n', 'x', '%00'])
      assert.deepEqual(await code(hook(app.url, { id, secret: 'x' }, '{}')), [404, 'RESOURCE_NOT_FOUND'])
    const full = JSON.stringify('x'.repeat(MIB - 2))
    assert.equal(full.length, MIB)
    assert.equal((await call(full)).status, 202)
    assert.deepEqual(await code(call(`${full} `)), [413, 'HOOK_PAYLOAD_TOO_LARGE'])
    assert.deepEqual(await code(call(`${full} `, {})), [413, 'HOOK_PAYLOAD_TOO_LARGE'])
    assert.deepEqual(await code(call('{"a":')), [400, 'HOOK_INVALID_JSON'])
    assert.deepEqual(await code(call(Buffer.from([0x22, 0xff, 0x22]))), [400, 'HOOK_INVALID_JSON'])
    assert.deepEqual(await code(call('{"a":', { 'X-Svc-Signature': 'x' })), [401, 'UNAUTHORIZED'])
    assert.deepEqual(await code(call(`${'['.repeat(1000)}${']'.repeat(1000)}`)), [400, 'VALIDATION_FAILED'])
    await key.patch(`/triggers/${trigger.id}`, { active: false })
    assert.deepEqual(await code(call('{}', {})), [401, 'UNAUTHORIZED'])
    assert.deepEqual(await code(call('{')), [409, 'TRIGGER_NOT_ACTIVE'])
    await key.patch(`/triggers/${trigger.id}`, { active: true })
    await app.admin.post(`/projects/${app.projectId}/pause`)
    assert.deepEqual(await code(call('{')), [409, 'PROJECT_PAUSED'])
    await app.admin.post(`/projects/${app.projectId}/resume`)
    assert.equal((await firingsOf(key, trigger.id)).length, 1)
    const agent = await madeTrigger(key, { type: 'webhook', target_type: 'agent', target_id: app.agentId })
    assert.deepEqual(await code(hook(app.url, agent, '{}')), [400, 'TRIGGER_INPUT_INVALID'])
    assert.equal((await firingsOf(key, agent.id)).length, 0)
  })

  it('reports an unreadable secret before it verifies a signature', async () => {
    await app.pool.query(
      sql.unsafe`update triggers set sealed_secret = 'v1.00000000.AAAA.AAAA.AAAA' where id = ${trigger.id}`,
    )
    assert.deepEqual(await code(call('{}', {})), [500, 'SECRET_NOT_DECRYPTABLE'])
    assert.deepEqual(codeOf(await key.get(`/triggers/${trigger.id}/secret`)), [500, 'SECRET_NOT_DECRYPTABLE'])
    const { secret } = (await key.post(`/triggers/${trigger.id}/rotate-secret`)).body
    assert.equal((await hook(app.url, { id: trigger.id, secret }, '{}')).status, 202)
  })

  it('accepts a body without a Content-Length', async () => {
    const chunk = new TextEncoder().encode('x'.repeat(64 * 1024))
    let left = 64
    const body = new ReadableStream({
      pull: controller => (left-- > 0 ? controller.enqueue(chunk) : controller.close()),
    })
    const request = fetch(`${app.url}/api/v1/hooks/triggers/${trigger.id}`, {
      method: 'POST',
      headers: { 'X-Svc-Signature': signatureOf(trigger.secret, '') },
      body,
      duplex: 'half',
    } as never).then(
      ({ status }) => status,
      () => 413,
    )
    assert.equal(await request, 413)
  })

  it('accepts the previous secret until it expires', async () => {
    const rotate = (body?: object) => key.post(`/triggers/${trigger.id}/rotate-secret`, body)
    const old = trigger.secret
    const next = (await rotate({ keep_previous_seconds: 60 })).body.secret
    for (const secret of [old, next])
      assert.equal((await hook(app.url, { ...trigger, secret }, `{"s":"${secret}"}`)).status, 202)
    const last = (await rotate()).body.secret
    for (const secret of [old, next])
      assert.deepEqual(await code(hook(app.url, { ...trigger, secret }, '{}')), [401, 'UNAUTHORIZED'])
    assert.equal((await hook(app.url, { ...trigger, secret: last }, '{}')).status, 202)
  })

  it('verifies a signature of the body with body_sha256', async () => {
    trigger = await madeTrigger(key, {
      type: 'webhook',
      target_type: 'tool',
      target_id: app.toolId,
      signature_scheme: 'body_sha256',
      signature_header: 'X-Hub-Signature-256',
    })
    const body = '{"zen":"x"}'
    const digest = createHmac('sha256', trigger.secret).update(body).digest('hex')
    const first = await call(body, { 'x-hub-signature-256': `sha256=${digest}` })
    assert.equal(first.status, 202, JSON.stringify(first.body))
    assert.equal((await call(body, { 'x-hub-signature-256': `sha256=${digest}` })).body.firing_id, first.body.firing_id)
    assert.deepEqual(await code(call(body, { 'x-hub-signature-256': digest })), [401, 'UNAUTHORIZED'])
    assert.deepEqual(await code(call(`${body} `, { 'x-hub-signature-256': `sha256=${digest}` })), [401, 'UNAUTHORIZED'])
    assert.deepEqual(await code(call(body)), [401, 'UNAUTHORIZED'])
  })

  it('uses three statements per call', async () => {
    await eventually(async () => (await call('{}')).status === 202)
    const before = app.statements.length
    assert.equal((await call('{"n":1}')).status, 202)
    const sent = app.statements.slice(before).filter(text => !/pg_stat_activity|select 1|muster_probe/.test(text))
    assert.ok(sent.length <= 3, sent.join('\n---\n'))
  })
})
