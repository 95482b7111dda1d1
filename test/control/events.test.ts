import { strict as assert } from 'node:assert'
import { pruneEvents } from '#control/events/retention.ts'
import { dispatchEvents } from '#control/webhooks/dispatch.ts'
import { pruneDeliveries } from '#control/webhooks/retention.ts'
import { manualClock } from '#core/base/clock.ts'
import { sql } from '#core/db/sql.ts'
import { eventNames, eventTypes, isEventPattern, patternMatches } from '#core/writes/events.ts'
import { eventDispatchQueue } from '#core/writes/writer.ts'
import { eventually, startApp } from '../support/app.ts'
import { emitNamed, storedEvents } from '../support/events.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'

const PAUSE_MS = 300
const pause = () => new Promise(resolve => setTimeout(resolve, PAUSE_MS))

describe('event patterns', () => {
  it('are *, prefix.* or a name', () => {
    for (const good of ['*', 'a', 'a.b', 'a.*', 'a_1.b.*', 'files.created']) assert.ok(isEventPattern(good), good)
    for (const bad of [
      '',
      '.',
      'a.',
      '.a',
      '**',
      'a.**',
      'a*',
      '*.a',
      'A.b',
      'a.*.b',
      'a b',
      'a.b ',
      'a-b',
      'x'.repeat(129),
    ])
      assert.ok(!isEventPattern(bad), bad)
  })

  it('match the whole name, a prefix, or everything', () => {
    assert.ok(patternMatches('sessions.*', 'sessions.generation_failed'))
    assert.ok(patternMatches('*', 'orders.shipped'))
    assert.ok(!patternMatches('files', 'files.created'))
    assert.ok(!patternMatches('files.created', 'files.created_too'))
    assert.ok(!patternMatches('file.*', 'files.created'))
  })

  it('match by an older spelling', () => {
    assert.ok(patternMatches('agents.generation.completed', 'generations.completed'))
    assert.ok(patternMatches('quotas.exceeded', 'quota.exceeded'))
    assert.ok(patternMatches('conversations.*', 'conversation_messages.created'))
    assert.ok(!patternMatches('agents.generation.completed', 'generations.failed'))
  })
})

describe('events', () => {
  const app = forSuite(() => startApp({ workers: ['delivery'] }))
  let receiver: Receiver
  let project: string
  beforeEach(async () => {
    receiver = await startReceiver()
    project = (await app.project()).id
  })
  afterEach(async () => await receiver.close())

  const hook = async (events: string[], more: object = {}) =>
    (await app.admin.post('/webhooks', { project_id: project, name: 'hook', url: receiver.url, events, ...more })).body
      .id
  const makeSecret = async () =>
    (await app.admin.post('/secrets', { project_id: project, name: `s${Math.random()}`, value: 'a value' })).body
  const events = async (query: string) => (await app.admin.get(`/events?project_id=${project}${query}`)).body
  const allDeliveries = async (webhook: string) =>
    (await app.admin.get(`/webhook-deliveries?webhook_id=${webhook}`)).body.data
  const emit = (name: 'generations.completed' | 'agents.updated', record: { id: string; [key: string]: unknown }) =>
    app.servicesOf(project).write(async tx => emitNamed(tx, name, project, record))

  it('are emitted once by a committed write and not at all by a refused one', async () => {
    const made = await makeSecret()
    assert.equal((await events(`&resource_id=${made.id}`)).total, 1)
    const before = (await events('&event=secrets.created')).total
    assert.equal((await app.admin.post('/secrets', { project_id: project, name: '' })).status, 400)
    const nobody = await app.user()
    assert.equal((await nobody.post('/secrets', { project_id: project, name: 'x', value: 'y' })).status, 403)
    assert.equal((await events('&event=secrets.created')).total, before)
  })

  it('of a delete carry the last record', async () => {
    await hook(['secrets.deleted'])
    const made = await makeSecret()
    await app.admin.delete(`/secrets/${made.id}`)
    const request = await eventually(() => receiver.requests[0])
    assert.equal(request.event.event, 'secrets.deleted')
    assert.deepEqual(request.event.data, made)
    assert.equal((await app.admin.get(`/secrets/${made.id}`)).status, 404)
  })

  it('reach a webhook under their own name when its pattern is an older spelling', async () => {
    await hook(['agents.generation.completed'])
    await emit('generations.completed', { id: 'gen_00000000000000000000000001' })
    const request = await eventually(() => receiver.requests[0])
    assert.equal(request.event.event, 'generations.completed')
    assert.equal(request.headers['x-svc-event'], 'generations.completed')
  })

  it('reach no webhook whose pattern names nothing', async () => {
    const wrong = await hook(['secrets.creatd', 'secret.*'])
    await hook(['secrets.created'])
    await makeSecret()
    await eventually(() => receiver.requests.length === 1)
    assert.deepEqual(await allDeliveries(wrong), [])
  })

  it('reach no webhook of another project, none that is off, none that came later', async () => {
    const off = await hook(['*'], { active: false })
    await makeSecret()
    const late = await hook(['secrets.*'])
    const foreign = (await app.project(undefined, project)).id
    const [mine, other] = [project, foreign]
    project = other
    const elsewhere = await hook(['secrets.*'])
    project = mine
    await pause()
    for (const id of [off, late, elsewhere]) assert.deepEqual(await allDeliveries(id), [])
  })

  it('list their outcome at each webhook', async () => {
    const deny = { statement: [{ effect: 'Deny', action: ['*'], resource: ['*'] }] }
    const policy_id = (await app.admin.post('/policies', { name: `deny-${Math.random()}`, document: deny })).body.id
    const ids = {
      completed: await hook(['secrets.*']),
      inactive: await hook(['secrets.*'], { active: false }),
      not_subscribed: await hook(['agents.*'], { active: false }),
      policy_denied: await hook(['*'], { policy_id }),
    }
    const made = await makeSecret()
    const [event] = (await events(`&resource_id=${made.id}`)).data
    const created_later = await hook(['*'])
    const outcomes = async (query = '') => (await app.admin.get(`/events/${event.id}/webhooks${query}`)).body
    const { data, total } = await eventually(async () => {
      const page = await outcomes()
      return page.data.some(({ outcome }: { outcome: string }) => outcome === 'queued') ? null : page
    })
    assert.deepEqual(
      data.map(({ webhook_id, outcome }: { webhook_id: string; outcome: string }) => [outcome, webhook_id]),
      [['created_later', created_later], ...Object.entries(ids).reverse()],
    )
    assert.equal(total, 5)
    for (const { outcome, delivery_id, judged_at } of data) {
      assert.equal(delivery_id !== null, outcome === 'completed')
      assert.equal(judged_at === null, outcome === 'completed')
    }
    assert.equal((await outcomes('?limit=1&offset=1')).data[0].webhook_id, ids.policy_denied)
    const reader = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['events:GetEvent'], resource: [`srn:${project}:*:*`] }] },
    ])
    const refused = await reader.get(`/events/${event.id}/webhooks`)
    assert.deepEqual([refused.status, refused.body.error.code], [403, 'FORBIDDEN'])
    const hidden = `srn:${project}:webhook:${ids.inactive}`
    const partial = await app.user(undefined, [
      {
        statement: [
          { effect: 'Allow', action: ['events:GetEvent', 'webhooks:ListWebhooks'], resource: [`srn:${project}:*:*`] },
          { effect: 'Deny', action: ['webhooks:ListWebhooks'], resource: [hidden] },
        ],
      },
    ])
    const seen = await partial.get(`/events/${event.id}/webhooks`)
    assert.equal(seen.body.total, 4, JSON.stringify(seen.body))
    assert.ok(!JSON.stringify(seen.body).includes(ids.inactive))
    const narrow = await app.user(undefined, [
      {
        statement: [
          { effect: 'Allow', action: ['events:GetEvent'], resource: [`srn:${project}:*:*`] },
          { effect: 'Allow', action: ['webhooks:ListWebhooks'], resource: [hidden] },
        ],
      },
    ])
    const own = (await narrow.get(`/events/${event.id}/webhooks`)).body.data
    assert.deepEqual(
      own.map(({ webhook_id }: { webhook_id: string }) => webhook_id),
      [ids.inactive],
    )
  })

  it('can be listed by patterns', async () => {
    await makeSecret()
    await emit('generations.completed', { id: 'gen_00000000000000000000000009' })
    const names = async (query: string) =>
      (await events(query)).data.map(({ event }: { event: string }) => event).sort()
    assert.deepEqual(await names('&pattern=secrets.*'), ['secrets.created'])
    assert.deepEqual(await names('&pattern=agents.generation.completed'), ['generations.completed'])
    assert.deepEqual(await names('&pattern=secrets.*&pattern=generations.completed'), [
      'generations.completed',
      'secrets.created',
    ])
    assert.deepEqual(await names('&pattern=secret.*'), [])
    assert.deepEqual(await names(`${'&pattern=actors.*'.repeat(99)}&pattern=secrets.*`), ['secrets.created'])
    for (const wrong of ['&pattern=*'.repeat(101), '&pattern=', '&pattern=A.*', '&pattern=a%00b', '&pattern=%25'])
      assert.equal((await events(wrong)).error?.code, 'VALIDATION_FAILED', wrong.slice(0, 20))
    assert.equal((await events('&pattern=*')).total, (await events('')).total)
    assert.equal((await app.admin.get(`/events?project_id=${project}&pattern=Secrets.*`)).status, 400)
  })

  it('whose webhook was created after them are not sent to it, dispatched late or not', async () => {
    const made = await makeSecret()
    const id = await hook(['secrets.*'])
    await pause()
    const [event] = (await events(`&resource_id=${made.id}`)).data
    await app.pool.query(sql.unsafe`update events set dispatched_at = null where id = ${event.id}`)
    await dispatchEvents(app.servicesOf(project), { ids: [event.id] })
    assert.deepEqual(await allDeliveries(id), [])
  })

  it('are dispatched twice without a second delivery', async () => {
    const id = await hook(['secrets.*'])
    const made = await makeSecret()
    await eventually(() => receiver.requests.length === 1)
    const [event] = (await events(`&resource_id=${made.id}`)).data
    assert.deepEqual(await dispatchEvents(app.servicesOf(project), { ids: [event.id] }), { events: 0, targets: [] })
    await app.pool.query(sql.unsafe`update events set dispatched_at = null where id = ${event.id}`)
    assert.deepEqual(await dispatchEvents(app.servicesOf(project), { ids: [event.id] }), { events: 1, targets: [] })
    await app.servicesOf(project).queues.send([{ queue: eventDispatchQueue, data: { event_id: event.id } }])
    await pause()
    assert.equal((await allDeliveries(id)).length, 1)
    assert.equal(receiver.requests.length, 1)
  })

  it('that were put aside are dispatched by their message', async () => {
    const id = await hook(['agents.*'])
    await emit('agents.updated', { id: 'agent_00000000000000000000000001' })
    await eventually(() => receiver.requests.length === 1)
    const [event] = (await events('&event=agents.updated')).data
    await app.pool.query(sql.unsafe`
      with gone as (delete from webhook_deliveries where webhook_id = ${id})
      update events set dispatched_at = null, dispatch_deferred = true where id = ${event.id}`)
    await pause()
    assert.equal(receiver.requests.length, 1)
    await app.servicesOf(project).queues.send([{ queue: eventDispatchQueue, data: { event_id: event.id } }])
    await eventually(() => receiver.requests.length === 2)
    assert.equal(receiver.requests[1].body, receiver.requests[0].body)
  })

  it('that cannot be dispatched are retried alone, and delay no other', async () => {
    await hook(['agents.*', 'generations.*'])
    const { pool } = app
    await pool.query(sql.unsafe`
      create function refuse_delivery() returns trigger language plpgsql as 'begin raise exception ''refused''; end'`)
    await pool.query(sql.unsafe`
      create trigger refuse_delivery before insert on webhook_deliveries for each row
      when (new.event_type = 'agents.updated') execute function refuse_delivery()`)
    await app.servicesOf(project).write(async tx => {
      emitNamed(tx, 'agents.updated', project, { id: 'agent_00000000000000000000000006' })
      emitNamed(tx, 'generations.completed', project, { id: 'gen_00000000000000000000000006' })
    })
    await eventually(() => receiver.requests.length === 1)
    assert.equal(receiver.requests[0].event.event, 'generations.completed')
    assert.equal((await events('&event=agents.updated')).data[0].dispatched_at, null)
    await pool.query(sql.unsafe`drop trigger refuse_delivery on webhook_deliveries`)
    await pool.query(sql.unsafe`drop function refuse_delivery`)
    await eventually(() => receiver.requests.length === 2)
    assert.equal(receiver.requests[1].event.event, 'agents.updated')
    await eventually(async () => (await events('&event=agents.updated')).data[0].dispatched_at !== null)
  })

  it('of a project without webhooks are dispatched as they are written; others wait for a worker', async () => {
    const alone = await startApp()
    try {
      const [quiet, off, heard] = await Promise.all([alone.project(), alone.project(), alone.project()])
      for (const [project, active] of [
        [off, false],
        [heard, true],
      ] as const)
        await alone.admin.post('/webhooks', {
          project_id: project.id,
          name: 'hook',
          url: receiver.url,
          events: ['nothing.*'],
          active,
        })
      for (const [project, dispatched] of [
        [quiet, true],
        [off, false],
        [heard, false],
      ] as const) {
        await alone.admin.post('/actors', { project_id: project.id, name: 'a' })
        const { body } = await alone.admin.get(`/events?project_id=${project.id}&event=actors.created`)
        assert.equal(body.data[0].dispatched_at !== null, dispatched)
      }
    } finally {
      await alone.close()
    }
  })

  it('carry any text unchanged', async () => {
    await hook(['agents.*'])
    const name = 'Ünï \u2028 "quoted" \\ 💧 𝒳 \u0001 </script>'
    await emit('agents.updated', { id: 'agent_00000000000000000000000002', name })
    const request = await eventually(() => receiver.requests[0])
    assert.equal(request.event.data.name, name)
    const stored = await app.pool.oneFirst(sql.unsafe`select envelope from events where id = ${request.event.id}`)
    assert.equal(request.body, stored)
  })

  describe('and the policy of a webhook', () => {
    const gated = async (statement: object[], patterns = ['*']) => {
      const answer = await app.admin.post('/policies', { document: { statement } })
      assert.equal(answer.status, 201, JSON.stringify(answer.body))
      return hook(patterns, { policy_id: answer.body.id })
    }

    it('are not delivered without an explicit allow, nor against a deny', async () => {
      const denied = await gated([
        { effect: 'Allow', action: ['*'] },
        { effect: 'Deny', action: ['*'], resource: ['srn:*:secret:*'] },
      ])
      const narrow = await gated([{ effect: 'Allow', action: ['actors.created'] }])
      const actions = await gated([{ effect: 'Allow', action: ['secrets:*'] }])
      await makeSecret()
      await app.admin.post('/actors', { project_id: project, name: 'someone' })
      const names = async (id: string) =>
        (await allDeliveries(id))
          .map((row: { event_type: string }) => row.event_type)
          .filter((name: string) => !name.startsWith('audit'))
      await eventually(async () => (await names(narrow)).length > 0 && (await names(denied)).includes('actors.created'))
      await pause()
      assert.ok(!(await names(denied)).includes('secrets.created'))
      assert.deepEqual(await names(narrow), ['actors.created'])
      assert.deepEqual(await names(actions), [])
    })

    it('are judged by the tags in their data', async () => {
      const id = await gated(
        [{ effect: 'Allow', action: ['agents.*'], condition: { StringEquals: { 'svc:ResourceTag/team': 'blue' } } }],
        ['agents.*'],
      )
      await emit('agents.updated', { id: 'agent_00000000000000000000000003', tags: { team: 'red' } })
      await emit('agents.updated', { id: 'agent_00000000000000000000000004', tags: { team: 'blue' } })
      await emit('agents.updated', { id: 'agent_00000000000000000000000005', tags: null })
      await eventually(() => receiver.requests.length > 0)
      await pause()
      assert.deepEqual(
        (await allDeliveries(id)).map((row: any) => row.payload.data.tags),
        [{ team: 'blue' }],
      )
    })

    it('are denied to one webhook by a document that does not parse, and delivered to the others', async () => {
      const broken = await gated([{ effect: 'Allow', action: ['*'] }], ['secrets.*'])
      const well = await hook(['secrets.*'])
      await app.pool.query(sql.unsafe`
        update policies set document = '{"statement": "everything"}' where id = (select policy_id from webhooks where id = ${broken})`)
      await makeSecret()
      await eventually(async () => (await allDeliveries(well)).length === 1)
      assert.deepEqual(await allDeliveries(broken), [])
      assert.ok(app.logs.some(line => line.includes('webhook policy invalid') && line.includes(broken)))
    })
  })

  describe('over HTTP', () => {
    it('are listed and read as they are sent', async () => {
      await hook(['secrets.*'])
      const made = await makeSecret()
      const request = await eventually(() => receiver.requests[0])
      const { data, total } = await events(`&event=secrets.created&resource_type=secret&resource_id=${made.id}`)
      assert.equal(total, 1)
      const { dispatched_at, ...envelope } = data[0]
      assert.deepEqual(envelope, request.event)
      assert.ok(dispatched_at)
      assert.deepEqual((await app.admin.get(`/events/${envelope.id}`)).body, data[0])
      assert.equal((await events('&event=no.such')).total, 0)
      assert.equal((await events('&custom=true')).total, 0)
      assert.equal((await events(`&resource_id=${made.id}&custom=false`)).total, 1)
      assert.equal((await events(`&resource_id=${made.id}&to=2020-01-01`)).total, 0)
      assert.equal((await app.admin.get('/events/evt_00000000000000000000000000')).status, 404)
    })

    it('are shown to those who may read them, in their projects', async () => {
      const made = await makeSecret()
      const [event] = (await events(`&resource_id=${made.id}`)).data
      const user = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['events:ListEvents'], resource: [`srn:${project}:event:*`] }] },
      ])
      assert.equal((await user.get(`/events?resource_id=${made.id}`)).body.total, 1)
      assert.equal((await user.get(`/events/${event.id}`)).status, 403)
      const elsewhere = await app.project()
      assert.equal((await elsewhere.key.get(`/events?resource_id=${made.id}`)).body.total, 0)
      assert.equal((await elsewhere.key.get(`/events/${event.id}`)).status, 404)
    })

    it('are sent once more to a webhook that never had them, whatever its patterns', async () => {
      const made = await makeSecret()
      const [event] = (await events(`&resource_id=${made.id}`)).data
      const id = await hook(['none.such'])
      const answer = await app.admin.post(`/events/${event.id}/redispatch`, { webhook_id: id })
      assert.equal(answer.status, 202)
      assert.equal(answer.body.status, 'queued')
      assert.equal(answer.body.redelivery_of, null)
      const request = await eventually(() => receiver.requests[0])
      assert.equal(request.event.id, event.id)
      const again = await app.admin.post(`/events/${event.id}/redispatch`, { webhook_id: id })
      assert.equal(again.status, 400)
      assert.equal(again.body.error.meta.problems[0].path, 'webhook_id')
      const foreign = (await app.project(undefined, project)).id
      const other = (
        await app.admin.post('/webhooks', { project_id: foreign, name: 'x', url: receiver.url, events: ['a.b'] })
      ).body.id
      assert.equal((await app.admin.post(`/events/${event.id}/redispatch`, { webhook_id: other })).status, 400)
      const missing = 'wh_00000000000000000000000000'
      assert.equal((await app.admin.post(`/events/${event.id}/redispatch`, { webhook_id: missing })).status, 404)
    })

    it('are stored compressed where no webhook subscribes, and sent with their original bytes', async () => {
      const names = ['short', `Ünï \u2028 "quoted" \\ 💧 𝒳 \u0001 ${'text '.repeat(100)}`, 'x'.repeat(70_000)]
      const made: string[] = []
      for (const name of names) {
        const id = `agent_${made.length}`
        await app
          .servicesOf(project)
          .write(async tx => emitNamed(tx, 'agents.updated', project, { id, name } as { id: string }))
        made.push(id)
      }
      const stored = await app.pool.any(sql.unsafe`
        select envelope is null as compressed, octet_length(packed) as bytes from events
        where project_id = ${project} and name = 'agents.updated' order by id`)
      assert.deepEqual(
        stored.map(row => (row as { compressed: boolean }).compressed),
        [false, true, false],
      )
      assert.ok((stored[1] as { bytes: number }).bytes < 250)
      const { data } = await events('&event=agents.updated')
      assert.deepEqual(
        data.map((event: any) => event.data.name),
        names.toReversed(),
      )
      const texts = (await storedEvents(app.pool, { project, name: 'agents.updated' })).map(({ text }) => text)
      const id = await hook(['none.such'])
      for (const event of data.toReversed())
        assert.equal((await app.admin.post(`/events/${event.id}/redispatch`, { webhook_id: id })).status, 202)
      await eventually(() => receiver.requests.length === names.length)
      assert.deepEqual(receiver.requests.map(({ body }) => body).sort(), texts.toSorted())
    })

    it('that were compressed by an earlier release are read', async () => {
      const [id, resource] = ['evt_01m85swvtre5btxzvvzbq03prv', 'actor_01m85swghy1sb478071wet8xt9']
      const maker = 'proj_01m85swewza0cs7wc3vxhh3gd6'
      const packed = 'Aqsm0m54jwB9fIBER5EynIDb1RgdB8LqSXQndEggOTEnB1zL03g0AzWhYk8pBlHoCRinOmJTXi0A'
      // The dictionary takes the id of the project from the row: the project for which it was packed.
      await app.home.pool.query(sql.unsafe`insert into projects (id, name) values (${maker}, 'project')`)
      await app.home.pool.query(sql.unsafe`
        insert into events (id, project_id, name, resource_type, resource_id, packed, created_at, dispatched_at)
        values (${id}, ${maker}, 'actors.created', 'actor', ${resource}, decode(${packed}, 'base64'), '2026-11-24T03:34:10.756Z', now())`)
      const { data } = (await app.admin.get(`/events?project_id=${maker}&event=actors.created`)).body
      assert.equal(data.length, 1)
      assert.deepEqual(
        [data[0].id, data[0].resource_id, data[0].data.name, data[0].data.created_at],
        [id, resource, 'caller', '2026-11-24T03:34:10.750Z'],
      )
    })

    it('of all projects are listed newest first, within times', async () => {
      const other = await app.project()
      const start = new Date()
      await pause()
      const first = await makeSecret()
      const second = (await app.admin.post('/secrets', { project_id: other.id, name: 'elsewhere', value: 'v' })).body
      await pause()
      const middle = new Date()
      await pause()
      const third = await makeSecret()
      const listed = async (query: string) =>
        (await app.admin.get(`/events?event=secrets.created${query}`)).body.data.map((event: any) => event.resource_id)
      const from = start.toISOString()
      const to = middle.toISOString()
      assert.deepEqual(await listed(`&from=${from}`), [third.id, second.id, first.id])
      assert.deepEqual(await listed(`&from=${from}&to=${to}`), [second.id, first.id])
      assert.deepEqual(await listed(`&from=${to}`), [third.id])
      assert.deepEqual(await listed(`&from=${from}&limit=1&offset=1`), [second.id])
    })

    it('have a registry for every caller', async () => {
      const nobody = await app.user()
      const answer = await nobody.get('/events/registry')
      assert.equal(answer.status, 200)
      assert.equal(answer.body.total, new Set(eventTypes.all().map(({ name }) => name.split('.')[0])).size)
      const names = answer.body.data.flatMap((family: any) =>
        family.events.flatMap((event: any) => [event.name, ...event.aliases]),
      )
      assert.deepEqual(names.toSorted(), eventNames().toSorted())
      assert.equal((await nobody.get('/events/registry?limit=2&offset=1')).body.data.length, 2)
      assert.equal((await app.anonymous.get('/events/registry')).status, 401)
    })
  })
})

describe('large events', () => {
  const app = forSuite(() =>
    startApp({ env: { EVENT_DATA_MAX_BYTES: '400', HEADER_PREFIX: 'X-House-' }, workers: ['delivery'] }),
  )

  it('are cut to their scalar fields where the deployment says so, and headers take its prefix', async () => {
    const receiver = await startReceiver()
    const { id } = await app.project()
    await app.admin.post('/webhooks', { project_id: id, name: 'x', url: receiver.url, events: ['agents.*'] })
    const record = { id: 'agent_00000000000000000000000001', name: 'n', tags: { a: 'b' }, note: null }
    await app.servicesOf(id).write(async tx => emitNamed(tx, 'agents.updated', id, record))
    const large = { ...record, tags: { a: 'x'.repeat(400) } }
    await app.servicesOf(id).write(async tx => emitNamed(tx, 'agents.updated', id, large))
    await eventually(() => receiver.requests.length === 2)
    const data = receiver.requests.map(request => request.event.data)
    assert.deepEqual(
      data.find(each => !each.truncated),
      record,
    )
    assert.deepEqual(
      data.find(each => each.truncated),
      { id: record.id, name: 'n', note: null, truncated: true },
    )
    assert.equal(receiver.requests[0].headers['x-house-event'], 'agents.updated')
    assert.ok(receiver.requests[0].headers['x-house-signature'])
    assert.equal(receiver.requests[0].headers['x-svc-event'], undefined)
    await receiver.close()
  })
})

describe('retention', () => {
  const app = forSuite(() =>
    startApp({
      clock,
      env: { EVENT_RETENTION_DAYS: '10', WEBHOOK_DELIVERY_RETENTION_DAYS: '20' },
      workers: ['delivery'],
    }),
  )
  const clock = manualClock()

  it('deletes old events that are dispatched and old deliveries that are finished', async () => {
    const receiver = await startReceiver()
    const { id } = await app.project()
    const hook = (
      await app.admin.post('/webhooks', { project_id: id, name: 'x', url: receiver.url, events: ['secrets.*'] })
    ).body.id
    await app.admin.post('/secrets', { project_id: id, name: 'a', value: 'b' })
    const list = async () => (await app.admin.get(`/webhook-deliveries?webhook_id=${hook}`)).body.data
    const [done] = await eventually(async () => {
      const data = await list()
      return data[0]?.status === 'completed' ? data : null
    })
    const queued = (await app.admin.post(`/webhook-deliveries/${done.id}/redeliver`)).body.id
    await eventually(() => receiver.requests.length === 2)
    await eventually(async () => (await list()).every((row: any) => row.status === 'completed'))
    await app.pool.query(sql.unsafe`
      update webhook_deliveries set status = 'queued', next_attempt_at = now() + interval '1 day' where id = ${queued}`)
    const undispatched = (await app.pool.oneFirst(
      sql.unsafe`update events set dispatched_at = null, dispatch_deferred = true
        where id = (select id from events where project_id = ${id} order by id limit 1) returning id`,
    )) as string

    clock.advance(9 * 86_400_000)
    assert.equal(await pruneEvents(app.servicesOf(id)), 0)
    clock.advance(2 * 86_400_000)
    assert.equal(await pruneDeliveries(app.servicesOf(id)), 0)
    assert.ok((await pruneEvents(app.servicesOf(id))) > 0)
    const ids = (table: 'events' | 'webhook_deliveries') =>
      app.pool.anyFirst(sql.unsafe`select id from ${sql.identifier([table])} where project_id = ${id}`)
    assert.deepEqual(await ids('events'), [undispatched])
    clock.advance(10 * 86_400_000)
    assert.equal(await pruneDeliveries(app.servicesOf(id)), 1)
    assert.deepEqual(await ids('webhook_deliveries'), [queued])
    await receiver.close()
  })
})
