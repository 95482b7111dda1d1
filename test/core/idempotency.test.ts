import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type Client, eventually, type Reply, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const withKey = (key: string) => ({ 'idempotency-key': key })
const replayed = (reply: Reply) => reply.headers.get('idempotency-replayed')
const assertRefused = (reply: Reply, status: number, code: string) =>
  assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], JSON.stringify(reply.body))

describe('a POST with an Idempotency-Key', () => {
  const app = forSuite(() => startApp({ together: true, env: { SYNC_WAIT_SECONDS: '3' } }))
  let project: { id: string; key: Client }
  beforeEach(async () => {
    project = await app.project()
  })

  const stored = async (key: string) =>
    (await app.services.pool.any(
      sql.unsafe`select *, body::text as body_text from idempotency_keys where key = ${key}`,
    )) as any[]
  const actors = async () => (await project.key.get('/actors')).body.total

  /** Holds every insert of an actor until `release` is called. */
  async function hold(): Promise<{ release: () => Promise<void> }> {
    let release = () => {}
    let held = () => {}
    const holding = new Promise<void>(resolve => {
      held = resolve
    })
    const ended = app.services.pool.transaction(async transaction => {
      await transaction.query(sql.unsafe`lock table actors in share mode`)
      held()
      await new Promise<void>(resolve => {
        release = resolve
      })
    })
    await holding
    return {
      release: async () => {
        release()
        await ended
      },
    }
  }

  it('is carried out once: a repeat gets the first answer, marked', async () => {
    const first = await project.key.post('/actors', { name: 'once' }, withKey('k1'))
    assert.equal(first.status, 201)
    assert.equal(replayed(first), null)
    const again = await project.key.post('/actors', { name: 'once' }, withKey('k1'))
    assert.equal(again.status, 201)
    assert.deepEqual(again.body, first.body)
    assert.equal(replayed(again), 'true')
    assert.equal(await actors(), 1)
  })

  it('answers without a body are repeated without one', async () => {
    const user = await app.user()
    const path = `/users/${user.id}/revoke-tokens`
    assert.equal((await app.admin.post(path, undefined, withKey('no-body'))).status, 204)
    const again = await app.admin.post(path, undefined, withKey('no-body'))
    assert.deepEqual([again.status, again.body, replayed(again)], [204, null, 'true'])
  })

  it('keeps a refusal of the state as the first answer', async () => {
    const resume = () => app.admin.post(`/projects/${project.id}/resume`, undefined, withKey('resume'))
    assertRefused(await resume(), 409, 'PROJECT_NOT_PAUSED')
    await app.admin.post(`/projects/${project.id}/pause`)
    const again = await resume()
    assertRefused(again, 409, 'PROJECT_NOT_PAUSED')
    assert.equal(replayed(again), 'true')
    const other = await app.admin.post(`/projects/${project.id}/resume`, undefined, withKey('another-resume'))
    assert.equal(other.status, 200)
  })

  it('with another body or another query is IDEMPOTENCY_KEY_REUSED', async () => {
    await project.key.post('/actors', { name: 'one' }, withKey('reused'))
    assertRefused(await project.key.post('/actors', { name: 'two' }, withKey('reused')), 409, 'IDEMPOTENCY_KEY_REUSED')
    assertRefused(
      await project.key.post('/actors?x=1', { name: 'one' }, withKey('reused')),
      409,
      'IDEMPOTENCY_KEY_REUSED',
    )
    assert.equal(await actors(), 1)
  })

  it('is IDEMPOTENCY_IN_PROGRESS while the first one runs, and its answer afterwards', async () => {
    const held = await hold()
    const first = project.key.post('/actors', { name: 'slow' }, withKey('slow'))
    await eventually(async () => (await stored('slow')).length > 0)
    const early = await project.key.post('/actors', { name: 'slow' }, withKey('slow'))
    assertRefused(early, 409, 'IDEMPOTENCY_IN_PROGRESS')
    assert.match(early.headers.get('retry-after') as string, /^[1-5]$/)
    assertRefused(await project.key.post('/actors', { name: 'x' }, withKey('slow')), 409, 'IDEMPOTENCY_KEY_REUSED')
    await held.release()
    assert.equal((await first).status, 201)
    const again = await project.key.post('/actors', { name: 'slow' }, withKey('slow'))
    assert.deepEqual([again.status, again.body], [201, (await first).body])
  })

  it('sent many times concurrently is carried out once', async () => {
    const replies = await Promise.all(
      Array.from({ length: 20 }, () => project.key.post('/actors', { name: 'herd' }, withKey('herd'))),
    )
    const made = replies.filter(({ status }) => status === 201)
    assert.ok(made.length >= 1)
    assert.equal(made.filter(reply => replayed(reply) === null).length, 1)
    assert.equal(new Set(made.map(({ body }) => body.id)).size, 1)
    for (const reply of replies.filter(({ status }) => status !== 201))
      assertRefused(reply, 409, 'IDEMPOTENCY_IN_PROGRESS')
    assert.equal(await actors(), 1)
  })

  it('is distinguished by credential and by path', async () => {
    const other = await app.project()
    const [one, two] = [
      await project.key.post('/actors', { name: 'a' }, withKey('same')),
      await other.key.post('/actors', { name: 'a' }, withKey('same')),
    ]
    assert.deepEqual([one.status, two.status, replayed(two)], [201, 201, null])
    assert.notEqual(one.body.id, two.body.id)
    const elsewhere = await project.key.post('/conversations', { name: 'a' }, withKey('same'))
    assert.deepEqual([elsewhere.status, replayed(elsewhere)], [201, null])
    const second = await app.admin.post('/project-keys', { project_id: project.id })
    const third = await app.as(second.body.secret).post('/actors', { name: 'a' }, withKey('same'))
    assert.deepEqual([third.status, replayed(third)], [201, null])
  })

  it('that failed in the server is carried out again', async () => {
    await app.services.pool.query(sql.unsafe`alter table actors rename to actors_elsewhere`)
    try {
      assertRefused(await project.key.post('/actors', { name: 'a' }, withKey('broken')), 500, 'INTERNAL_ERROR')
    } finally {
      await app.services.pool.query(sql.unsafe`alter table actors_elsewhere rename to actors`)
    }
    assert.equal((await stored('broken')).length, 0)
    const again = await project.key.post('/actors', { name: 'a' }, withKey('broken'))
    assert.deepEqual([again.status, replayed(again)], [201, null])
  })

  it('that was refused before it began is evaluated again', async () => {
    assertRefused(await project.key.post('/actors', {}, withKey('unmade')), 400, 'VALIDATION_FAILED')
    const policy = await app.admin.post('/policies', {
      document: { statement: [{ effect: 'Allow', action: ['actors:CreateActor'], resource: ['*'] }] },
    })
    const user = await app.user()
    const body = { name: 'a', project_id: project.id }
    assertRefused(await user.post('/actors', body, withKey('unmade')), 403, 'FORBIDDEN')
    await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [policy.body.id] })
    assert.equal((await user.post('/actors', body, withKey('unmade'))).status, 201)
    await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [] })
    assertRefused(await user.post('/actors', body, withKey('unmade')), 403, 'FORBIDDEN')
  })

  it('is forgotten after 24 hours', async () => {
    const first = await project.key.post('/actors', { name: 'a' }, withKey('old'))
    const age = (hours: number) =>
      app.services.pool.query(
        sql.unsafe`update idempotency_keys set created_at = now() - make_interval(hours => ${hours}) where key = 'old'`,
      )
    await age(23)
    assert.deepEqual((await project.key.post('/actors', { name: 'a' }, withKey('old'))).body, first.body)
    await age(25)
    const second = await project.key.post('/actors', { name: 'b' }, withKey('old'))
    assert.deepEqual([second.status, replayed(second)], [201, null])
    assert.notEqual(second.body.id, first.body.id)
    assert.deepEqual((await project.key.post('/actors', { name: 'b' }, withKey('old'))).body, second.body)
  })

  /** Ends the lease of a key as if its process had not renewed it; returns a moment of its claim. */
  async function endLease(key: string): Promise<string> {
    await app.services.pool.query(
      sql.unsafe`update idempotency_keys set leased_until = now() - interval '1 second' where key = ${key}`,
    )
    return (await stored(key))[0].claim
  }

  it('whose process was lost can be sent again when its lease is over; a slow process creates nothing then', async () => {
    const held = await hold()
    const first = project.key.post('/actors', { name: 'lost' }, withKey('lost'))
    await eventually(async () => (await stored('lost')).length > 0)
    const lost = await endLease('lost')
    const second = project.key.post('/actors', { name: 'lost' }, withKey('lost'))
    await eventually(async () => (await stored('lost'))[0].claim !== lost)
    await held.release()
    const [one, two] = await Promise.all([first, second])
    assertRefused(one, 409, 'IDEMPOTENCY_IN_PROGRESS')
    assert.equal(two.status, 201)
    assert.equal(await actors(), 1)
    const again = await project.key.post('/actors', { name: 'lost' }, withKey('lost'))
    assert.deepEqual([again.body.id, replayed(again)], [two.body.id, 'true'])
  })

  it('creates nothing in a separate transaction either once another request has claimed the key', async () => {
    const { services } = app
    const release = await new Promise<() => void>(resolve => {
      void services.pool.transaction(async transaction => {
        await transaction.query(sql.unsafe`lock table documents in share mode`)
        await new Promise<void>(go => resolve(go))
      })
    })
    const send = () => project.key.post('/documents', { content: 'x' }, withKey('slow-document'))
    const first = send()
    await eventually(async () => (await stored('slow-document')).length > 0)
    const lost = await endLease('slow-document')
    const second = send()
    await eventually(async () => (await stored('slow-document'))[0].claim !== lost)
    release()
    const replies = await Promise.all([first, second])
    assert.deepEqual(
      replies.map(({ status }) => status),
      [409, 201],
    )
    assertRefused(replies[0], 409, 'IDEMPOTENCY_IN_PROGRESS')
    assert.equal((await project.key.get('/documents')).body.total, 1)
  })

  it('keeps its lease as long as its request is carried out', async () => {
    const held = await hold()
    const first = project.key.post('/actors', { name: 'long' }, withKey('long'))
    await eventually(async () => (await stored('long')).length > 0)
    await app.services.pool.query(
      sql.unsafe`update idempotency_keys set leased_until = now() + interval '15 seconds' where key = 'long'`,
    )
    const [{ leased_until }] = await stored('long')
    await eventually(async () => (await stored('long'))[0].leased_until > leased_until)
    await held.release()
    assert.equal((await first).status, 201)
  })

  it('takes keys of 1 to 255 visible ASCII characters only', async () => {
    for (const key of ['', 'two words', 'x'.repeat(256), 'é', 'tab\there']) {
      const reply = await project.key.post('/actors', { name: 'a' }, withKey(key))
      assertRefused(reply, 400, 'VALIDATION_FAILED')
      assert.equal(reply.body.error.meta.problems[0].path, 'Idempotency-Key')
    }
    for (const key of ['!', '~'.repeat(255)]) {
      assert.equal((await project.key.post('/actors', { name: 'a' }, withKey(key))).status, 201)
      assert.equal(replayed(await project.key.post('/actors', { name: 'a' }, withKey(key))), 'true')
    }
  })

  it('the key means nothing to other methods', async () => {
    const { body } = await project.key.post('/actors', { name: 'a' })
    for (const name of ['b', 'c']) {
      const reply = await project.key.patch(`/actors/${body.id}`, { name }, withKey('patch'))
      assert.deepEqual([reply.status, reply.body.name, replayed(reply)], [200, name, null])
    }
    assert.equal((await stored('patch')).length, 0)
  })

  it('keeps an answer with a secret sealed, and serves it to the same credential', async () => {
    const key = `with-secret-${project.id}`
    const input = { name: 'hook', url: 'http://127.0.0.1:9/', events: ['*'] }
    const first = await project.key.post('/webhooks', input, withKey(key))
    assert.equal(first.status, 201)
    const [row] = await stored(key)
    assert.equal(row.body, null)
    assert.match(row.sealed_body, /^v1\./)
    assert.ok(!JSON.stringify(row).includes(first.body.secret))
    const again = await project.key.post('/webhooks', input, withKey(key))
    assert.deepEqual([again.body, replayed(again)], [first.body, 'true'])
  })

  it('keeps a keyed hash of the request and nothing else of it', async () => {
    await project.key.post('/secrets', { name: 's', value: 'the-value-of-a-secret' }, withKey('hashed'))
    const [row] = await stored('hashed')
    assert.ok(!JSON.stringify(row).includes('the-value-of-a-secret'))
    assert.match(row.request_hash, /^[\w-]+\.[\w+/=-]+$/)
  })

  it('leaves an audit entry for the repeat, too', async () => {
    const first = await project.key.post('/actors', { name: 'a' }, withKey('audited'))
    await project.key.post('/actors', { name: 'a' }, { ...withKey('audited'), 'x-request-id': 'the-repeat' })
    const { body } = await app.admin.get(`/audit-log?project_id=${project.id}&action=actors:CreateActor`)
    assert.equal(body.total, 2)
    const [entry] = body.data
    assert.deepEqual(
      [entry.request_id, entry.status, entry.resource_public_id, entry.detail],
      ['the-repeat', 201, first.body.id, { idempotency_replayed: true }],
    )
  })

  it('is repeated to its credential also when the first one deleted its resource', async () => {
    const [from, into] = [
      (await project.key.post('/actors', { name: 'from' })).body.id,
      (await project.key.post('/actors', { name: 'into' })).body.id,
    ]
    const merge = (client: Client, key: string) =>
      client.post(`/actors/${from}/merge`, { into_actor_id: into }, withKey(key))
    const first = await merge(project.key, 'merge')
    assert.equal(first.status, 200)
    const again = await merge(project.key, 'merge')
    assert.deepEqual([again.status, again.body, replayed(again)], [200, first.body, 'true'])
    assertRefused(await merge(project.key, 'another'), 404, 'RESOURCE_NOT_FOUND')
    assertRefused(await merge(app.admin, 'merge'), 404, 'RESOURCE_NOT_FOUND')
    assertRefused(
      await project.key.post(`/actors/${from}/merge`, { into_actor_id: from }, withKey('merge')),
      409,
      'IDEMPOTENCY_KEY_REUSED',
    )
  })

  it('finds nothing of a resource that is not there, whatever comes with it', async () => {
    const deep = (levels: number) => `${'{"a":'.repeat(levels)}1${'}'.repeat(levels)}`
    const path = '/conversations/conv_00000000000000000000000000/messages'
    assertRefused(await project.key.post(path, deep(64), withKey('deep')), 404, 'RESOURCE_NOT_FOUND')
    assertRefused(await project.key.post(path, deep(100_000), withKey('deeper')), 400, 'VALIDATION_FAILED')
  })

  const agent = async (): Promise<string> => {
    const provider = await project.key.post('/ai-providers', {
      name: 'p',
      provider: 'custom',
      default_model: 'm',
      base_url: 'http://127.0.0.1:9/v1',
    })
    return (await project.key.post('/agents', { name: 'a', ai_provider_id: provider.body.id })).body.id
  }

  it('that was streamed is repeated by a stream of the same turn', async () => {
    const id = await agent()
    const open = () =>
      fetch(`${app.url}/api/v1/agents/${id}/generate`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${project.key.token}`,
          'content-type': 'application/json',
          ...withKey('streamed'),
        },
        body: JSON.stringify({ prompt: 'hello', stream: true }),
      })
    for (const marked of [null, 'true']) {
      const response = await eventually(async () => {
        const opened = await open()
        return opened.status === 409 ? null : opened
      })
      assert.match(response.headers.get('content-type') as string, /text\/event-stream/)
      assert.equal(response.headers.get('idempotency-replayed'), marked)
      await response.body?.cancel()
    }
    assert.equal((await project.key.get('/generations')).body.total, 1)
  })

  it('whose answer failed after the commit is answered by the repeat', async () => {
    const id = await agent()
    const { pool } = app.services
    const send = () => project.key.post(`/agents/${id}/generate?wait=true`, { prompt: 'hello' }, withKey('unread'))
    // Read when the end of the turn is waited for, and not before.
    await pool.query(sql.unsafe`alter table stream_frames rename to stream_frames_elsewhere`)
    try {
      assertRefused(await send(), 500, 'INTERNAL_ERROR')
    } finally {
      await pool.query(sql.unsafe`alter table stream_frames_elsewhere rename to stream_frames`)
    }
    const again = await send()
    const [turn] = (await project.key.get('/generations')).body.data
    assert.deepEqual([again.status, again.body.generation_id, replayed(again)], [202, turn.id, 'true'])
    assert.equal((await project.key.get('/generations')).body.total, 1)
  })
})
