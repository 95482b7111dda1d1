import { strict as assert } from 'node:assert'
import { randomBytes } from 'node:crypto'
import { pruneEvents } from '#control/events/retention.ts'
import { deleteExpiredEvents, lockExpiredEvents } from '#control/events/store.ts'
import { createDispatcher } from '#control/webhooks/dispatch.ts'
import { type DeliveryRow, deliveryKind } from '#control/webhooks/model.ts'
import { notifyWorkers } from '#control/webhooks/operations.ts'
import { pruneDeliveries } from '#control/webhooks/retention.ts'
import { deleteOrphanedEnvelopes, insertDelivery, lockOrphanedEnvelopes } from '#control/webhooks/store.ts'
import { inTransaction, onSeparateConnection } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { type Client, eventually, startApp } from '../support/app.ts'
import { emitNamed } from '../support/events.ts'
import { type Receiver, readSignature, startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'

const UNKNOWN = 'wh_00000000000000000000000000'

describe('webhooks', () => {
  const app = forSuite(() => startApp({ workers: ['delivery'] }))
  let receiver: Receiver
  let project: string
  beforeEach(async () => {
    receiver = await startReceiver()
    project = (await app.project()).id
  })
  afterEach(async () => await receiver.close())

  const create = async (more: object = {}, caller: Client = app.admin) =>
    await caller.post('/webhooks', {
      project_id: project,
      name: 'hook',
      url: receiver.url,
      events: ['secrets.*'],
      ...more,
    })
  const makeSecret = async (in_ = project) =>
    (await app.admin.post('/secrets', { project_id: in_, name: `s${Math.random()}`, value: 'a value' })).body
  const deliveries = async (webhook: string, query = '') =>
    (await app.admin.get(`/webhook-deliveries?webhook_id=${webhook}${query}`)).body
  const settled = async (webhook: string, count = 1) =>
    await eventually(async () => {
      const { data } = await deliveries(webhook, '&status=completed&status=failed')
      return data.length >= count ? data : null
    })

  describe('the record', () => {
    it('shows the secret when it is created and never again', async () => {
      const made = await create({ description: 'for tests' })
      assert.equal(made.status, 201)
      const { secret, ...record } = made.body
      assert.match(secret, /^whsec_[A-Za-z0-9_-]{43}$/)
      assert.deepEqual(Object.keys(record), [
        'id',
        'project_id',
        'policy_id',
        'name',
        'description',
        'url',
        'events',
        'active',
        'template',
        'mail',
        'secret_id',
        'created_at',
        'updated_at',
      ])
      assert.deepEqual([record.template, record.mail, record.secret_id], [null, null, null])
      assert.equal(record.active, true)
      assert.equal(record.policy_id, null)
      const read = await app.admin.get(`/webhooks/${record.id}`)
      assert.deepEqual(read.body, record)
      const { data } = (await app.admin.get(`/webhooks?project_id=${project}`)).body
      assert.deepEqual(data, [record])
    })

    it('returns the secret to callers with the permission for it', async () => {
      const { id, secret } = (await create()).body
      assert.deepEqual((await app.admin.get(`/webhooks/${id}/secret`)).body, { secret })
      const reader = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['webhooks:GetWebhook'], resource: [`srn:${project}:webhook:*`] }] },
      ])
      assert.equal((await reader.get(`/webhooks/${id}`)).status, 200)
      const refused = await reader.get(`/webhooks/${id}/secret`)
      assert.equal(refused.status, 403)
      assert.equal(refused.body.error.code, 'FORBIDDEN')
    })

    it('keeps the secret encrypted, and says so when it cannot be opened', async () => {
      const { id, secret } = (await create()).body
      const stored = (await app.pool.oneFirst(
        sql.unsafe`select sealed_secret from webhooks where id = ${id}`,
      )) as string
      assert.ok(!stored.includes(secret.slice(6)))
      await app.pool.query(
        sql.unsafe`update webhooks set sealed_secret = 'v1.00000000.AAAA.AAAA.AAAA' where id = ${id}`,
      )
      const answer = await app.admin.get(`/webhooks/${id}/secret`)
      assert.equal(answer.status, 500)
      assert.equal(answer.body.error.code, 'SECRET_NOT_DECRYPTABLE')
    })

    it('refuses bad urls, patterns and unknown fields by name', async () => {
      const bad: [object, string][] = [
        [{ url: 'ftp://x' }, 'url'],
        [{ url: 'https://a:b@x' }, 'url'],
        [{ url: 'https://a@x/' }, 'url'],
        [{ url: 'https://@x/' }, 'url'],
        [{ url: '/relative' }, 'url'],
        [{ url: 'https://' }, 'url'],
        [{ url: 'http:///path' }, 'url'],
        [{ url: 'http:x' }, 'url'],
        [{ url: 'https://x/#part' }, 'url'],
        [{ url: `https://x/${'a'.repeat(2040)}` }, 'url'],
        [{ events: [] }, 'events'],
        [{ events: ['files.**'] }, 'events[0]'],
        [{ events: ['files.*', 'Files.created'] }, 'events[1]'],
        [{ events: ['*.created'] }, 'events[0]'],
        [{ events: [`a.${'b'.repeat(127)}`] }, 'events[0]'],
        [{ events: Array.from({ length: 101 }, (_, i) => `a.b${i}`) }, 'events'],
        [{ name: '' }, 'name'],
        [{ name: 'n'.repeat(201) }, 'name'],
        [{ description: 'd'.repeat(2001) }, 'description'],
        [{ secret: 'mine' }, 'secret'],
      ]
      for (const [more, path] of bad) {
        const answer = await create(more)
        assert.equal(answer.status, 400, JSON.stringify(more))
        assert.equal(answer.body.error.code, 'VALIDATION_FAILED')
        assert.deepEqual(
          answer.body.error.meta.problems.map((problem: { path: string }) => problem.path),
          [path],
        )
      }
    })

    it('accepts every well-formed pattern, without duplicates', async () => {
      const events = ['*', 'files.creatd', 'files.*', 'a.b.c', 'files.*', 'tasks']
      assert.deepEqual((await create({ events })).body.events, ['*', 'files.creatd', 'files.*', 'a.b.c', 'tasks'])
    })

    it('merges on PATCH and PUT alike', async () => {
      const { id } = (await create({ description: 'old' })).body
      for (const method of ['patch', 'put'] as const) {
        const answer = await app.admin[method](`/webhooks/${id}`, { name: method, description: null })
        assert.equal(answer.status, 200)
        assert.equal(answer.body.name, method)
        assert.equal(answer.body.description, null)
        assert.equal(answer.body.url, receiver.url)
        assert.equal('secret' in answer.body, false)
      }
      const changed = await app.admin.patch(`/webhooks/${id}`, { active: false, events: ['*'] })
      assert.equal(changed.body.active, false)
      assert.deepEqual(changed.body.events, ['*'])
      assert.equal((await app.admin.patch(`/webhooks/${id}`, { url: 'ftp://x' })).status, 400)
      assert.equal((await app.admin.patch(`/webhooks/${id}`, { project_id: project })).status, 400)
    })

    it('is unchanged by a change without fields', async () => {
      const { id } = (await create()).body
      const before = (await app.admin.get(`/webhooks/${id}`)).body
      for (const method of ['patch', 'put'] as const) {
        const answer = await app.admin[method](`/webhooks/${id}`, {})
        assert.equal(answer.status, 200)
        assert.deepEqual(answer.body, before)
      }
      const { data } = (await app.admin.get(`/events?project_id=${project}&event=webhooks.updated&resource_id=${id}`))
        .body
      assert.deepEqual(data, [])
    })

    it('starts with a clean record when it is switched on again', async () => {
      const { id } = (await create()).body
      const record = () => app.pool.one(sql.unsafe`select failures, failing_since from webhooks where id = ${id}`)
      const fail = () =>
        app.pool.query(sql.unsafe`update webhooks set failures = 7, failing_since = now() where id = ${id}`)
      await fail()
      await app.admin.patch(`/webhooks/${id}`, { name: 'other' })
      assert.equal(((await record()) as { failures: number }).failures, 7)
      await app.admin.patch(`/webhooks/${id}`, { active: true })
      assert.deepEqual(await record(), { failures: 0, failing_since: null })
    })

    it('refuses an update of a version that is not the latest', async () => {
      const { id } = (await create()).body
      const etag = (await app.admin.get(`/webhooks/${id}`)).headers.get('etag') as string
      assert.equal((await app.admin.patch(`/webhooks/${id}`, { name: 'a' }, { 'if-match': etag })).status, 200)
      const late = await app.admin.patch(`/webhooks/${id}`, { name: 'b' }, { 'if-match': etag })
      assert.equal(late.status, 412)
      assert.equal(late.body.error.code, 'PRECONDITION_FAILED')
    })

    it('answers 404 for an unknown id, and for a webhook of a project the caller cannot see', async () => {
      const { id } = (await create()).body
      const stranger = (await app.project()).key
      for (const answer of [
        await app.admin.get(`/webhooks/${UNKNOWN}`),
        await stranger.get(`/webhooks/${id}`),
        await stranger.delete(`/webhooks/${id}`),
        await stranger.get(`/webhook-deliveries?webhook_id=${id}`),
      ]) {
        assert.equal(answer.status, 404)
      }
      const missing = await app.admin.get(`/webhooks/${UNKNOWN}`)
      assert.equal(missing.status, 404)
      assert.equal(missing.body.error.code, 'RESOURCE_NOT_FOUND')
      assert.equal(missing.body.error.meta.id, UNKNOWN)
    })

    it('lists by active', async () => {
      const on = (await create()).body.id
      const off = (await create({ active: false })).body.id
      const ids = async (query: string) =>
        (await app.admin.get(`/webhooks?project_id=${project}${query}`)).body.data.map((row: { id: string }) => row.id)
      assert.deepEqual(await ids(''), [off, on])
      assert.deepEqual(await ids('&active=true'), [on])
      assert.deepEqual(await ids('&active=false'), [off])
      assert.equal((await app.admin.get('/webhooks?active=yes')).status, 400)
    })

    it('emits created, updated, secret_rotated and deleted without the secret', async () => {
      const { id } = (await create()).body
      await app.admin.patch(`/webhooks/${id}`, { name: 'renamed' })
      await app.admin.post(`/webhooks/${id}/rotate-secret`)
      await app.admin.delete(`/webhooks/${id}`)
      const { data } = (await app.admin.get(`/events?project_id=${project}&resource_id=${id}`)).body
      assert.deepEqual(
        data.map((event: { event: string }) => event.event),
        ['webhooks.deleted', 'webhooks.secret_rotated', 'webhooks.updated', 'webhooks.created'],
      )
      for (const event of data) assert.equal('secret' in event.data, false)
      assert.equal(data[0].data.name, 'renamed')
    })
  })

  describe('the policy of a webhook', () => {
    it('must exist, and cannot be deleted meanwhile', async () => {
      const missing = await create({ policy_id: 'pol_00000000000000000000000000' })
      assert.equal(missing.status, 400)
      assert.equal(missing.body.error.code, 'POLICY_NOT_FOUND')
      const document = { statement: [{ effect: 'Allow', action: ['*'] }] }
      const policy = (await app.admin.post('/policies', { document })).body.id
      const { id } = (await create({ policy_id: policy })).body
      const refused = await app.admin.delete(`/policies/${policy}`)
      assert.equal(refused.status, 409, JSON.stringify(refused.body))
      assert.equal(refused.body.error.code, 'POLICY_HAS_DEPENDENTS')
      assert.equal(refused.body.error.meta.counts.webhooks, 1)
      assert.deepEqual(refused.body.error.meta.sample_ids.webhooks, [id])
      assert.equal((await app.admin.patch(`/webhooks/${id}`, { policy_id: null })).body.policy_id, null)
      assert.equal((await app.admin.delete(`/policies/${policy}`)).status, 204)
    })
  })

  describe('a delivery', () => {
    it('is one signed POST of the event', async () => {
      const { id, secret } = (await create()).body
      const made = await makeSecret()
      const [delivery] = await settled(id)
      assert.equal(receiver.requests.length, 1)
      const [request] = receiver.requests
      assert.deepEqual(readSignature(request, secret).verified, [true])
      assert.ok(Math.abs(readSignature(request, secret).t - Date.now() / 1000) < 10)
      assert.equal(request.headers['content-type'], 'application/json')
      assert.equal(request.headers['x-svc-event'], 'secrets.created')
      assert.equal(request.headers['x-svc-delivery'], delivery.id)
      assert.equal(request.headers['x-svc-event-id'], request.event.id)
      assert.deepEqual(request.event.data, made)
      assert.equal(request.event.resource_id, made.id)
      assert.deepEqual(Object.keys(request.event), [
        'id',
        'event',
        'project_id',
        'resource_type',
        'resource_id',
        'data',
        'timestamp',
      ])
      assert.deepEqual(delivery.payload, request.event)
      assert.deepEqual(
        { ...delivery, id: null, payload: null, last_attempt_at: null, created_at: null, updated_at: null },
        {
          id: null,
          webhook_id: id,
          event_type: 'secrets.created',
          payload: null,
          status: 'completed',
          status_code: 200,
          attempts: 1,
          last_attempt_at: null,
          next_attempt_at: null,
          response_body: 'answered',
          redelivery_of: null,
          created_at: null,
          updated_at: null,
        },
      )
      assert.deepEqual((await app.admin.get(`/webhook-deliveries/${delivery.id}`)).body, delivery)
    })

    it('is listed by status, event type, event and time', async () => {
      const { id } = (await create()).body
      const made = await makeSecret()
      await app.admin.delete(`/secrets/${made.id}`)
      const all = await settled(id, 2)
      assert.deepEqual(
        all.map((row: { event_type: string }) => row.event_type),
        ['secrets.deleted', 'secrets.created'],
      )
      const total = async (query: string) => (await deliveries(id, query)).total
      assert.equal(await total(''), 2)
      assert.equal(await total('&status=failed'), 0)
      assert.equal(await total('&status=failed&status=completed'), 2)
      assert.equal(await total('&event_type=secrets.deleted'), 1)
      assert.equal(await total(`&event_id=${all[0].payload.id}`), 1)
      assert.equal(await total('&to=2020-01-01'), 0)
      assert.equal(await total('&from=2020-01-01&limit=1'), 2)
    })

    it('needs a webhook that exists to be listed', async () => {
      const missing = await app.admin.get('/webhook-deliveries')
      assert.equal(missing.status, 400)
      assert.deepEqual(missing.body.error.meta.problems[0].path, 'webhook_id')
      assert.equal((await app.admin.get(`/webhook-deliveries?webhook_id=${UNKNOWN}`)).status, 404)
      const { id } = (await create()).body
      assert.equal((await app.admin.get(`/webhook-deliveries?webhook_id=${id}&status=pending`)).status, 400)
    })

    it('is governed by the permissions on its webhook', async () => {
      const open = (await create()).body.id
      const closed = (await create()).body.id
      await makeSecret()
      const [ofOpen] = await settled(open)
      const [ofClosed] = await settled(closed)
      const user = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['webhooks:*'], resource: [`srn:${project}:webhook:${open}`] }] },
      ])
      assert.equal((await user.get(`/webhook-deliveries/${ofOpen.id}`)).status, 200)
      assert.equal((await user.get(`/webhook-deliveries/${ofClosed.id}`)).status, 403)
      assert.equal((await user.get(`/webhook-deliveries?webhook_id=${open}`)).body.total, 1)
      assert.equal((await user.get(`/webhook-deliveries?webhook_id=${closed}`)).status, 403)
      assert.equal((await user.post(`/webhook-deliveries/${ofClosed.id}/redeliver`)).status, 403)
      assert.equal((await user.post('/webhook-deliveries/redeliver', { webhook_id: closed })).status, 403)
    })

    it('is made again as a new delivery with the same bytes', async () => {
      receiver.answer = 410
      const { id } = (await create()).body
      await makeSecret()
      const [original] = await settled(id)
      assert.equal(original.status, 'failed')
      receiver.answer = 200
      const answer = await app.admin.post(`/webhook-deliveries/${original.id}/redeliver`)
      assert.equal(answer.status, 202)
      assert.notEqual(answer.body.id, original.id)
      assert.equal(answer.body.status, 'queued')
      assert.equal(answer.body.attempts, 0)
      assert.ok(answer.body.next_attempt_at)
      assert.equal(answer.body.redelivery_of, original.id)
      await eventually(
        async () => (await app.admin.get(`/webhook-deliveries/${answer.body.id}`)).body.status === 'completed',
      )
      const [first] = receiver.requests
      const last = receiver.requests.at(-1)!
      assert.equal(last.body, first.body)
      assert.equal(last.headers['x-svc-event-id'], first.headers['x-svc-event-id'])
      assert.equal(last.headers['x-svc-delivery'], answer.body.id)
      assert.deepEqual((await app.admin.get(`/webhook-deliveries/${original.id}`)).body, original)
    })

    it('is made again although the webhook is off and its patterns have changed', async () => {
      const { id } = (await create()).body
      await makeSecret()
      const [original] = await settled(id)
      await app.admin.patch(`/webhooks/${id}`, { active: false, events: ['none.such'] })
      await app.admin.post(`/webhook-deliveries/${original.id}/redeliver`)
      await eventually(() => receiver.requests.length === 2)
    })

    it('is made again in bulk', async () => {
      receiver.answer = 500
      const { id } = (await create()).body
      const other = (await create()).body.id
      for (let i = 0; i < 3; i++) await makeSecret()
      const failed = await settled(id, 3)
      await settled(other, 3)
      receiver.answer = 200
      const { requests } = receiver
      requests.length = 0
      assert.deepEqual(
        (await app.admin.post('/webhook-deliveries/redeliver', { webhook_id: id, event_type: 'x.y' })).body,
        {
          count: 0,
        },
      )
      const none = await app.admin.post('/webhook-deliveries/redeliver', { webhook_id: id, to: '2020-01-01T00:00:00Z' })
      assert.deepEqual(none.body, { count: 0 })
      const answer = await app.admin.post('/webhook-deliveries/redeliver', { webhook_id: id })
      assert.equal(answer.status, 202)
      assert.deepEqual(answer.body, { count: 3 })
      const again = await eventually(async () => {
        const { data } = await deliveries(id, '&status=completed')
        return data.length === 3 ? data : null
      })
      assert.deepEqual(
        again.map((row: { redelivery_of: string }) => row.redelivery_of).sort(),
        failed.map((row: { id: string }) => row.id).sort(),
      )
      assert.equal(requests.length, 3)
      for (const body of [
        { webhook_id: UNKNOWN },
        {},
        { webhook_id: id, status: 'queued' },
        { webhook_id: id, to: 'x' },
      ])
        assert.ok((await app.admin.post('/webhook-deliveries/redeliver', body)).status >= 400)
    })

    it('is deleted with its webhook', async () => {
      const { id } = (await create()).body
      await makeSecret()
      const [made] = await settled(id)
      assert.equal((await app.admin.delete(`/webhooks/${id}`)).status, 204)
      assert.equal((await app.admin.get(`/webhook-deliveries/${made.id}`)).status, 404)
    })
  })

  describe('the test route', () => {
    it('sends a synthetic event to this webhook only, whatever its patterns', async () => {
      const { id } = (await create({ events: ['none.such'] })).body
      const other = (await create({ events: ['*'] })).body.id
      const answer = await app.admin.post(`/webhooks/${id}/test`)
      assert.equal(answer.status, 202)
      assert.equal(answer.body.event_type, 'webhooks.test')
      const request = await eventually(() => receiver.requests.find(each => each.event.event === 'webhooks.test'))
      assert.equal(request.event.resource_id, id)
      assert.equal(request.event.data.id, id)
      const tests = (await deliveries(other)).data.filter(
        (row: { event_type: string }) => row.event_type === 'webhooks.test',
      )
      assert.deepEqual(tests, [])
    })
  })

  describe('rotation', () => {
    it('signs with the new secret from the next attempt on, retries included', async () => {
      receiver.answer = 500
      const { id, secret } = (await create()).body
      await makeSecret()
      await eventually(() => receiver.requests.length === 1)
      receiver.answer = 200
      const rotated = await app.admin.post(`/webhooks/${id}/rotate-secret`)
      assert.equal(rotated.status, 200)
      assert.match(rotated.body.secret, /^whsec_/)
      assert.notEqual(rotated.body.secret, secret)
      await eventually(() => receiver.requests.length === 2)
      assert.deepEqual(readSignature(receiver.requests[1], rotated.body.secret).verified, [true])
      assert.deepEqual(readSignature(receiver.requests[1], secret).verified, [false])
    })

    it('signs with both secrets while they overlap, then with the new one', async () => {
      const { id, secret } = (await create()).body
      const rotated = await app.admin.post(`/webhooks/${id}/rotate-secret`, { overlap_seconds: 3600 })
      await makeSecret()
      await eventually(() => receiver.requests.length === 1)
      assert.deepEqual(readSignature(receiver.requests[0], rotated.body.secret).verified, [true, false])
      assert.deepEqual(readSignature(receiver.requests[0], secret).verified, [false, true])
      await app.pool.query(
        sql.unsafe`update webhooks set previous_secret_until = now() - interval '1 s' where id = ${id}`,
      )
      await makeSecret()
      await eventually(() => receiver.requests.length === 2)
      assert.deepEqual(readSignature(receiver.requests[1], rotated.body.secret).verified, [true])
      const refused = await app.admin.post(`/webhooks/${id}/rotate-secret`, { overlap_seconds: 86_401 })
      assert.equal(refused.status, 400)
    })

    it('answers a repeated request with the same secret', async () => {
      const { id } = (await create()).body
      const key = { 'idempotency-key': `rotate-${id}` }
      const first = await app.admin.post(`/webhooks/${id}/rotate-secret`, {}, key)
      const second = await app.admin.post(`/webhooks/${id}/rotate-secret`, {}, key)
      assert.equal(second.headers.get('idempotency-replayed'), 'true')
      assert.equal(second.body.secret, first.body.secret)
      const kept = await app.pool.oneFirst(
        sql.unsafe`select count(*) from idempotency_keys where body::text like ${`%${first.body.secret}%`}`,
      )
      assert.equal(kept, 0)
    })
  })
})

describe('texts of deliveries', () => {
  const app = forSuite(() =>
    startApp({
      workers: ['delivery'],
      env: { EVENT_RETENTION_DAYS: '10', WEBHOOK_DELIVERY_RETENTION_DAYS: '20' },
    }),
  )
  let receiver: Receiver
  let project: string
  beforeEach(async () => {
    receiver = await startReceiver()
    project = (await app.project()).id
  })
  afterEach(async () => await receiver.close())

  const subscribe = async () =>
    (await app.admin.post('/webhooks', { project_id: project, name: 'x', url: receiver.url, events: ['agents.*'] }))
      .body.id as string
  const emit = (data = 'text') =>
    app
      .servicesOf(project)
      .write(async tx => emitNamed(tx, 'agents.updated', project, { id: 'agent_x', data } as { id: string }))
  const read = async (id: string) => (await app.admin.get(`/webhook-deliveries/${id}`)).body
  const redeliver = async (id: string) =>
    (await app.admin.post(`/webhook-deliveries/${id}/redeliver`)).body.id as string
  const received = (count: number) => eventually(() => receiver.requests.length >= count)
  const delivered = (webhook: string) =>
    eventually(
      async () =>
        (await app.admin.get(`/webhook-deliveries?webhook_id=${webhook}&status=completed`)).body.data[0] as any,
    )
  /** Makes the deliveries of the project older. */
  const age = (days: number) =>
    app.pool.query(sql.unsafe`
      update webhook_deliveries set created_at = created_at - make_interval(days => ${days})
      where project_id = ${project}`)
  const inDays = (days: number) => new Date(Date.now() + days * 86_400_000)
  /** Retention of events a year later, in each cell. */
  const pruneAllEvents = () =>
    app.inEachCell(services => pruneEvents({ ...services, clock: { now: () => inDays(365) } }))
  const bodies = () => new Set(receiver.requests.map(({ body }) => body)).size
  const count = async (table: string) =>
    (await app.pool.oneFirst(
      sql.unsafe`select count(*)::int from ${sql.identifier([table])} where project_id = ${project}`,
    )) as number

  it('are stored once per event, also for fifty webhooks', async () => {
    const size = () =>
      app.pool.oneFirst(sql.unsafe`select pg_total_relation_size('webhook_deliveries')::int`) as Promise<number>
    for (let n = 0; n < 50; n++) await subscribe()
    const before = await size()
    const data = randomBytes(100_000).toString('base64')
    await emit(data)
    await received(50)
    assert.equal(bodies(), 1)
    assert.equal(receiver.requests[0].event.data.data, data)
    assert.ok((await size()) - before < 1_000_000, `${(await size()) - before} bytes`)
  })

  it('outlive their event with unchanged bytes, and are deleted with the last delivery', async () => {
    const webhook = await subscribe()
    await emit('a "text" \u0000\u2028 ä')
    const first = await delivered(webhook)
    await pruneAllEvents()
    assert.equal(await count('events'), 0)
    assert.deepEqual(await read(first.id), first)
    const again = await redeliver(first.id)
    await received(2)
    const bulk = await app.admin.post('/webhook-deliveries/redeliver', { webhook_id: webhook, status: 'completed' })
    assert.equal(bulk.status, 202)
    await received(2 + bulk.body.count)
    assert.equal(bodies(), 1)
    assert.deepEqual((await read(again)).payload, first.payload)
    assert.equal(await count('retained_envelopes'), 1)
    const finished = await eventually(async () => {
      const { body } = await app.admin.get(`/webhook-deliveries?webhook_id=${webhook}`)
      return body.data.every((row: { status: string }) => row.status === 'completed') && body.total
    })
    await age(19)
    await pruneDeliveries(app.servicesOf(project))
    assert.equal(await count('retained_envelopes'), 1)
    await age(2)
    assert.ok((await pruneDeliveries(app.servicesOf(project))) >= finished)
    assert.equal(await count('retained_envelopes'), 0)
  })

  it('from before deliveries referred to events, held by the delivery, are shown and made again', async () => {
    const webhook = await subscribe()
    await emit()
    const first = await delivered(webhook)
    await app.pool.query(sql.unsafe`
      update webhook_deliveries d set envelope = e.envelope from events e where d.id = ${first.id} and e.id = d.event_id`)
    await app.pool.query(sql.unsafe`delete from events where project_id = ${project}`)
    assert.deepEqual(await read(first.id), first)
    await redeliver(await redeliver(first.id))
    const bulk = await app.admin.post('/webhook-deliveries/redeliver', { webhook_id: webhook, status: 'completed' })
    await received(3 + bulk.body.count)
    assert.equal(bodies(), 1)
  })

  it('of the test route are made again as they were', async () => {
    const webhook = await subscribe()
    const { id } = (await app.admin.post(`/webhooks/${webhook}/test`)).body
    await redeliver(id)
    await received(2)
    assert.equal(bodies(), 1)
  })

  describe('while their event is deleted', () => {
    /** A delivery that has ended, whose event is past its retention. */
    async function past() {
      const webhook = await subscribe()
      await emit()
      const { id } = await delivered(webhook)
      return (await deliveryKind.find(app.pool, id)) as DeliveryRow
    }
    const before = () => inDays(1)
    const again = (row: DeliveryRow) => ({ ...row, redelivery_of: row.id })
    const sentTwice = async () => {
      await received(2)
      assert.equal(bodies(), 1)
    }
    /** Waits until a statement waits for a lock of another transaction. */
    const blocked = () =>
      eventually(async () => {
        const { rows } = await app
          .servicesOf(project)
          .queues.db.executeSql(
            `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
          )
        return rows.length > 0
      })

    it('stay for a delivery that was made again before', async () => {
      const row = await past()
      await inTransaction(app.servicesOf(project).pool, async db => {
        await insertDelivery(db, again(row))
        await onSeparateConnection(() => pruneAllEvents())
      })
      await pruneAllEvents()
      assert.equal(await count('events'), 0)
      await app.servicesOf(project).write(async tx => notifyWorkers(tx, { id: row.webhook_id, project_id: project }))
      await sentTwice()
    })

    it('are held by a delivery that is made again meanwhile', async () => {
      const row = await past()
      let made: Promise<string> | undefined
      await inTransaction(app.servicesOf(project).pool, async db => {
        const ids = await lockExpiredEvents(db, before(), 1000)
        made = onSeparateConnection(() => redeliver(row.id))
        await blocked()
        await deleteExpiredEvents(db, ids)
      })
      assert.deepEqual((await read((await made) as string)).payload, (await read(row.id)).payload)
      await sentTwice()
    })

    it('are held by a delivery that is made again while the last of its texts goes', async () => {
      const row = await past()
      await pruneAllEvents()
      await app.pool.query(sql.unsafe`update webhook_deliveries set envelope = ${row.envelope} where id = ${row.id}`)
      let made: Promise<string> | undefined
      await inTransaction(app.servicesOf(project).pool, async db => {
        const ids = await lockOrphanedEnvelopes(db, '', 1000)
        assert.ok(ids.includes(row.event_id))
        made = onSeparateConnection(() => redeliver(row.id))
        await blocked()
        await deleteOrphanedEnvelopes(db, ids)
      })
      await made
      await sentTwice()
    })

    it('stay for a delivery that was made again before the last of its texts goes', async () => {
      const row = await past()
      await pruneAllEvents()
      await app.pool.query(sql.unsafe`update webhook_deliveries set envelope = ${row.envelope} where id = ${row.id}`)
      await inTransaction(app.servicesOf(project).pool, async db => {
        await insertDelivery(db, again(row))
        await onSeparateConnection(() => pruneDeliveries(app.servicesOf(project)))
      })
      assert.equal(await count('retained_envelopes'), 1)
      await app.servicesOf(project).write(async tx => notifyWorkers(tx, { id: row.webhook_id, project_id: project }))
      await sentTwice()
    })
  })
})

describe('limits of webhooks', () => {
  const LIMIT = 3
  const app = forSuite(() => startApp({ env: { WEBHOOK_MAX_PER_PROJECT: String(LIMIT) } }))

  const create = (project_id: string) =>
    app.admin.post('/webhooks', { project_id, name: 'x', url: 'https://x.test/', events: ['*'] })

  it('refuse one more than a project may have, and name their number', async () => {
    const { id } = await app.project()
    for (let n = 0; n < LIMIT; n++) assert.equal((await create(id)).status, 201)
    const { status, body } = await create(id)
    assert.equal(status, 400)
    assert.equal(body.error.code, 'VALIDATION_FAILED')
    assert.match(body.error.message, /maximum of 3 webhooks/)
    const { data, total } = (await app.admin.get(`/webhooks?project_id=${id}`)).body
    assert.equal(total, LIMIT)
    assert.equal((await create((await app.project()).id)).status, 201)
    assert.equal((await app.admin.patch(`/webhooks/${data[0].id}`, { name: 'y' })).status, 200)
    assert.equal((await app.admin.delete(`/webhooks/${data[0].id}`)).status, 204)
    assert.equal((await create(id)).status, 201)
  })

  it('bind webhooks that are created concurrently', async () => {
    const { id } = await app.project()
    const answers = await Promise.all(Array.from({ length: 20 }, () => create(id)))
    assert.deepEqual(answers.map(({ status }) => status).sort(), [
      ...Array(LIMIT).fill(201),
      ...Array(20 - LIMIT).fill(400),
    ])
  })
})

describe('dispatch', () => {
  const app = forSuite(startApp)

  /** A project with webhooks and with events without a dispatch. */
  async function busy(webhooks: number, events: number, neighbour?: string): Promise<string> {
    const { id } = await app.project(undefined, neighbour)
    await app.pool.query(sql.unsafe`
      insert into webhooks (id, project_id, name, url, events, sealed_secret)
      select 'wh_' || ${id} || n, ${id}, 'x', 'https://x.test/', '{agents.*}', '' from generate_series(1, ${webhooks}) n`)
    await app.servicesOf(id).write(async tx => {
      for (let n = 0; n < events; n++) emitNamed(tx, 'agents.updated', id, { id: 'agent_x' })
    })
    return id
  }
  const dispatched = async (id: string) =>
    (await app.pool.oneFirst(sql.unsafe`
      select count(*)::int from events where project_id = ${id} and name = 'agents.updated' and dispatched_at is not null`)) as number

  it('writes at most 5,000 deliveries in one transaction', async () => {
    const id = await busy(100, 150)
    const dispatcher = createDispatcher(app.servicesOf(id), () => {})
    dispatcher.wake()
    await eventually(async () => (await dispatched(id)) === 150)
    await dispatcher.close()
    const sizes = (await app.pool.anyFirst(sql.unsafe`
      select count(*)::int from webhook_deliveries where project_id = ${id} group by xmin::text`)) as number[]
    assert.equal(
      sizes.reduce((sum, size) => sum + size),
      15_000,
    )
    assert.ok(Math.max(...sizes) <= 5000, sizes.join())
  })

  it('takes an event of a quiet project next, whatever waits of others', async () => {
    const noisy = await busy(100, 1000)
    const quiet = await busy(1, 1, noisy)
    const dispatcher = createDispatcher(app.servicesOf(noisy), () => {})
    dispatcher.wake()
    await eventually(async () => (await dispatched(noisy)) === 1000)
    await dispatcher.close()
    const [first] = (await app.pool.anyFirst(sql.unsafe`
      select project_id from events where name = 'agents.updated' and project_id in (${noisy}, ${quiet})
      group by project_id, dispatched_at order by dispatched_at, project_id = ${noisy} limit 1`)) as string[]
    assert.equal(first, quiet)
  })
})
