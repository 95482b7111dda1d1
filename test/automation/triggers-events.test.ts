import assert from 'node:assert/strict'
import { FanoutLimiter } from '#automation/triggers/fanout.ts'
import { snapshotProjects } from '#control/storage/snapshot.ts'
import { newestSnapshot } from '#control/storage/store.ts'
import { sql } from '#core/db/sql.ts'
import { json, made } from '../execution/tool-target.ts'
import { type Client, eventually } from '../support/app.ts'
import { emitNamed } from '../support/events.ts'
import { COSTLY_ITEMS, costly, occupyThreads } from '../support/occupied-threads.ts'
import { forSuite } from '../support/suite.ts'
import { ACTIONS, allEnded, firingsOf, madeTrigger, startTriggerApp } from './triggers-support.ts'

/** More firings than one event causes in any other test of this file. */
const FANOUT = 12

describe('event triggers', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startTriggerApp({ together: true, actions: [...ACTIONS, 'projects:*'], env: { EVENT_FANOUT_MAX: String(FANOUT) } }),
  )
  let key: Client
  let tool: { target_type: string; target_id: string }
  const on = (event_pattern: string, fields: object = {}) =>
    madeTrigger(key, { ...tool, type: 'event', event_pattern, ...fields })
  const actor = (name = 'x', more: object = {}) => key.post('/actors', { name, ...more })
  /** Creates a platform tool with one operation, as target. */
  const platform = async (action: string) => {
    const { id } = await made(key, { name: 'platform', type: 'platform', actions: [action] })
    return { target_type: 'tool', target_id: id, action }
  }
  /** Waits for the dispatch of a new event. Dispatch is in order of time, so all earlier events are dispatched too. */
  const dispatched = async () =>
    eventually(
      async () =>
        (await app.pool.oneFirst(sql.unsafe`select count(*)::int from events where dispatched_at is null`)) === 0,
      { what: 'events being dispatched' },
    )

  before(async () => {
    key = app.key
  })
  beforeEach(async () => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
    const project = await app.projectWith(ACTIONS)
    app.projectId = project.id
    key = project.key
    tool = { target_type: 'tool', target_id: (await made(key, { execute: { url: app.target.url } })).id }
  })

  it('evaluates the expressions of all triggers of an event within a common limit', async () => {
    const keys = Object.fromEntries(Array.from({ length: 3000 }, (_, index) => [`k${index}`, 0]))
    // Nearly a whole brief evaluation, without a firing.
    const costly = { '==': [{ length: [{ map: [[0, 0, 0, 0], keys] }] }, 0] }
    const triggers: { id: string }[] = []
    for (let count = 0; count < 8; count++) triggers.push(await on('actors.created', { event_filter: costly }))
    const cheap = await on('actors.updated', { event_filter: { '==': [{ var: 'data.name' }, 'y'] } })
    const { body } = await actor()
    await key.patch(`/actors/${body.id}`, { name: 'y' })
    await allEnded(key, cheap.id, 1)
    const failed = (await Promise.all(triggers.map(({ id }) => firingsOf(key, id)))).flat()
    assert.ok(failed.length >= 2 && failed.length <= 4, `${failed.length} firings`)
    for (const { error } of failed) assert.match(error.message, /together with the other triggers of the event/)
  })

  it('of one project with costly filters do not delay the events of another', async () => {
    const keys = Object.fromEntries(Array.from({ length: 3000 }, (_, index) => [`k${index}`, 0]))
    const costly = { '==': [{ length: [{ map: [[0, 0, 0], keys] }] }, 0] }
    for (let count = 0; count < 5; count++) await on('actors.created', { event_filter: costly })
    const cheap = await on('actors.created')
    const quiet = await app.projectWith(ACTIONS)
    const { id: target_id } = await made(quiet.key, { execute: { url: app.target.url } })
    const fields = { target_type: 'tool', target_id, type: 'event', event_pattern: 'actors.created' }
    const other = await madeTrigger(quiet.key, fields)
    const EVENTS = 30
    await app.services.write(async tx => {
      for (let count = 0; count < EVENTS; count++)
        emitNamed(tx, 'actors.created', app.projectId, { id: `actor_${count}` })
      emitNamed(tx, 'actors.created', quiet.id, { id: 'actor_x' })
    })
    const [firing] = await allEnded(quiet.key, other.id, 1)
    const all = await allEnded(key, cheap.id, EVENTS)
    assert.equal(all.length, EVENTS)
    // What the dispatch did in one transaction was made at the same time.
    const before = all.filter(({ created_at }) => created_at <= firing.created_at)
    assert.ok(before.length <= EVENTS / 2, `${before.length} events before`)
  })

  it('fires once per matching event, with its envelope merged over the input', async () => {
    const trigger = await on('actors.created', { input: { own: 1, event: 'x' } })
    const other = await on('actors.*')
    const { body: made } = await actor('Ada')
    await key.patch(`/actors/${made.id}`, { name: 'Lovelace' })
    const [firing] = await allEnded(key, trigger.id, 1)
    const event = (await key.get(`/events?resource_id=${made.id}&event=actors.created`)).body.data.find(
      (each: any) => each.event === 'actors.created',
    )
    assert.deepEqual(
      [firing.status, firing.source, firing.event_id, firing.idempotency_key],
      ['succeeded', 'event', event.id, `${event.id}:${trigger.id}`],
    )
    assert.deepEqual(Object.keys(firing.input), [
      'own',
      'event',
      'id',
      'project_id',
      'resource_type',
      'resource_id',
      'data',
      'timestamp',
    ])
    assert.deepEqual([firing.input.event, firing.input.data.name, firing.input.own], ['actors.created', 'Ada', 1])
    assert.equal((await allEnded(key, other.id, 2)).length, 2)
    assert.equal((await firingsOf(key, trigger.id)).length, 1)
  })

  it('fires only when active, for events after its creation that pass its filter and policy', async () => {
    await actor('early')
    const off = await on('actors.created', { active: false })
    const filtered = await on('actors.created', { event_filter: { '==': [{ var: 'data.name' }, 'wanted'] } })
    const allow = (action: string[], resource: string, condition?: object) => ({
      statement: [{ effect: 'Allow', action, resource: [resource], ...(condition ? { condition } : {}) }],
    })
    const policyOf = async (document: object) => (await app.admin.post('/policies', { document })).body.id
    const named = `srn:${app.projectId}:*:*`
    const blind = await on('actors.created', { policy_id: await policyOf(allow(['tools:CallTool'], named)) })
    const seeing = await on('actors.created', {
      policy_id: await policyOf(allow(['tools:CallTool', 'actors.*'], named)),
    })
    await actor('unwanted')
    await actor('wanted')
    await allEnded(key, seeing.id, 2)
    await dispatched()
    assert.deepEqual(
      (await firingsOf(key, filtered.id)).map(({ input }) => input.data.name),
      ['wanted'],
    )
    assert.deepEqual([await firingsOf(key, off.id), await firingsOf(key, blind.id)], [[], []])
    await key.patch(`/triggers/${off.id}`, { active: true })
    await actor('later')
    assert.equal((await allEnded(key, off.id, 1)).length, 1)
  })

  it('fails a firing whose filter or mapping exceeds its budget', async () => {
    const list = Array(400).fill(1)
    const dear = { map: [{ preserve: list }, { map: [{ preserve: list }, { '+': [{ var: '' }, 1] }] }] }
    const filtered = await on('actors.created', { event_filter: dear })
    const mapped = await on('actors.created', { input_mapping: { dear } })
    const other = await on('actors.created', { event_filter: { map: [{ preserve: list }, { '+': [{ var: '' }, 1] }] } })
    await actor('any')
    for (const [id, field] of [
      [filtered.id, 'event_filter'],
      [mapped.id, 'input_mapping'],
    ]) {
      const [firing] = await allEnded(key, id, 1)
      assert.deepEqual(
        [firing.status, firing.error.code, firing.error.message],
        ['failed', 'TRIGGER_INPUT_INVALID', `${field}: applies too many operators`],
      )
    }
    assert.equal((await allEnded(key, other.id, 1))[0].status, 'succeeded')
  })

  it('records a failed firing while the project is paused', async () => {
    const trigger = await on('projects.paused')
    await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'night' })
    const [firing] = await allEnded(key, trigger.id, 1)
    assert.deepEqual([firing.status, firing.error.code, firing.attempts], ['failed', 'PROJECT_PAUSED', 0])
    await app.admin.post(`/projects/${app.projectId}/resume`)
    assert.equal(app.target.requests.length, 0)
  })

  it('refuses a trigger that would fire itself, files an exception and keeps the trigger active', async () => {
    const trigger = await on('actors.created', {
      ...(await platform('create-actor')),
      input_mapping: { name: 'by a trigger' },
    })
    await actor()
    const [first, second] = await allEnded(key, trigger.id, 2)
    assert.equal(first.status, 'succeeded', JSON.stringify(first.error))
    assert.deepEqual([second.status, second.error.code, second.attempts], ['failed', 'TRIGGER_CAUSATION_LIMIT', 0])
    assert.deepEqual(second.error.meta, { reason: 'repeat', causation_chain: [trigger.id], max_depth: 5 })
    assert.deepEqual([first.causation_chain, second.causation_chain], [[], [trigger.id]])
    const items = await eventually(async () => {
      const { data } = (await key.get('/exceptions?kind=event_trigger_loop')).body
      return data.length > 0 ? data : null
    })
    assert.deepEqual(
      items.map(({ severity, detail }: any) => [severity, detail.trigger_id, detail.reason, detail.event]),
      [['warning', trigger.id, 'repeat', 'actors.created']],
    )
    await dispatched()
    assert.equal((await firingsOf(key, trigger.id)).length, 2)
    assert.equal((await key.get(`/triggers/${trigger.id}`)).body.active, true)
  })

  it('stops triggers that match every event', async () => {
    const trigger = await on('*', { ...(await platform('create-actor')), input_mapping: { name: 'again' } })
    await actor()
    await eventually(async () => (await key.get('/exceptions?kind=event_trigger_loop')).body.total > 0)
    await dispatched()
    const all = await eventually(async () => {
      await dispatched()
      const first = await firingsOf(key, trigger.id)
      await dispatched()
      const again = await firingsOf(key, trigger.id)
      const settled = again.every(({ status }) => status === 'succeeded' || status === 'failed')
      return settled && first.length === again.length ? again : null
    })
    // The creation of the trigger, the actor, and the audit entries of both; the effects of their firings are refused.
    assert.equal(all.filter(({ status }) => status === 'succeeded').length, 4)
    for (const { causation_chain, status } of all)
      assert.deepEqual(causation_chain, status === 'succeeded' ? [] : [trigger.id])
  })

  it('limits the depth of trigger chains', async () => {
    const target = await platform('create-actor')
    const triggers: any[] = []
    for (let n = 0; n < 6; n++)
      triggers.push(
        await on('actors.created', {
          ...target,
          event_filter: { '==': [{ var: 'data.name' }, `step ${n}`] },
          input_mapping: { name: `step ${n + 1}` },
        }),
      )
    await actor('step 0')
    const [last] = await allEnded(key, triggers[5].id, 1)
    assert.deepEqual(
      [last.status, last.error.code, last.error.meta.reason],
      ['failed', 'TRIGGER_CAUSATION_LIMIT', 'depth'],
    )
    assert.deepEqual(
      last.causation_chain,
      triggers.slice(0, 5).map(({ id }) => id),
    )
    for (const { id } of triggers.slice(0, 5)) assert.equal((await allEnded(key, id, 1))[0].status, 'succeeded')
  })

  /** Lists the firings of triggers once none is active. */
  const settledFirings = (triggers: readonly { id: string }[]) =>
    eventually(
      async () => {
        const read = async () => (await Promise.all(triggers.map(({ id }) => firingsOf(key, id)))).flat()
        await dispatched()
        const before = await read()
        await dispatched()
        const all = await read()
        const over = all.every(({ status }) => status !== 'pending' && status !== 'running')
        return over && all.length === before.length ? all : null
      },
      { what: 'the end of all firings' },
    )
  const breaches = async () =>
    (await key.get('/exceptions?kind=event_trigger_loop')).body.data.filter(
      (item: any) => item.detail.reason === 'breadth',
    )

  it('limits the total firings caused by one event and skips the rest', async () => {
    const target = { ...(await platform('create-actor')), input_mapping: { name: 'more' } }
    const triggers = [await on('actors.created', target), await on('actors.*', target), await on('actors.*', target)]
    await actor()
    const all = await settledFirings(triggers)
    const skipped = all.filter(({ status }) => status === 'skipped')
    assert.equal(all.length - skipped.length, FANOUT)
    assert.ok(skipped.length >= 1 && skipped.length <= triggers.length, `${skipped.length}`)
    const root_id = all.find(({ causation_chain }) => causation_chain.length === 0).event_id
    for (const { error, attempts, trigger_id, causation_chain } of skipped) {
      assert.equal(error.code, 'TRIGGER_CAUSATION_LIMIT')
      assert.deepEqual(error.meta, { reason: 'breadth', root_id, causation_chain, max_firings: FANOUT })
      assert.equal(attempts, 0)
      const listed = await key.get(`/trigger-firings?trigger_id=${trigger_id}&status=skipped`)
      assert.equal(listed.body.total, 1)
    }
    for (const { causation_chain } of all)
      assert.ok(causation_chain.every((id: string) => triggers.some(trigger => trigger.id === id)))
    const [item] = await eventually(async () => ((await breaches()).length > 0 ? await breaches() : null))
    assert.deepEqual([item.detail.root_id, item.detail.max_firings], [root_id, FANOUT])
    assert.ok(item.detail.skipped >= skipped.length)
    assert.equal((await breaches()).length, 1)
    assert.equal((await key.get(`/triggers/${triggers[0].id}`)).body.active, true)
    // Another event has a separate count.
    await key.patch(`/triggers/${triggers[1].id}`, { active: false })
    await key.patch(`/triggers/${triggers[2].id}`, { active: false })
    const before = (await firingsOf(key, triggers[0].id)).length
    await actor()
    await eventually(async () => (await firingsOf(key, triggers[0].id)).length > before)
    const [newest] = await settledFirings([triggers[0]])
    assert.notEqual(newest.status, 'skipped')
  })

  it('counts firings caused by a manual firing like firings caused by an event', async () => {
    const target = { ...(await platform('create-actor')), input_mapping: { name: 'more' } }
    const triggers = [await on('actors.created', target), await on('actors.*', target), await on('actors.*', target)]
    const byHand = await madeTrigger(key, { ...target, type: 'manual' })
    const { body: root } = await key.post(`/triggers/${byHand.id}/fire`)
    const all = await settledFirings(triggers)
    assert.equal(all.filter(({ status }) => status !== 'skipped').length, FANOUT - 1)
    assert.deepEqual(
      [...new Set(all.filter(({ status }) => status === 'skipped').map(({ error }) => error.meta.root_id))],
      [root.id],
    )
  })

  it('shares the count of a root among concurrent dispatches', async () => {
    const root = { id: `evt_${app.projectId.slice(5)}`, project_id: app.projectId, chained: true }
    const dispatch = () =>
      app.services.write(async tx => {
        const limiter = new FanoutLimiter(10)
        await limiter.read(tx, [root])
        await limiter.lock(tx, Array(8).fill(root))
        const admitted = Array.from({ length: 8 }, () => limiter.admit(root)).filter(Boolean).length
        await limiter.write(tx)
        return admitted
      })
    // The root firing is the first.
    assert.deepEqual((await Promise.all([dispatch(), dispatch(), dispatch()])).sort(), [0, 1, 8])
    // An event that matches more triggers than the limit is counted before its effects.
    const first = { id: `${root.id}x`, project_id: app.projectId, chained: false }
    const counts = sql.unsafe`select firings, skipped from trigger_fanouts where root_id = ${first.id}`
    const fire = (of: typeof first, wanted: number) =>
      app.services.write(async tx => {
        const limiter = new FanoutLimiter(2)
        await limiter.read(tx, [of])
        const spent = limiter.isExhausted(of)
        await limiter.lock(tx, Array(wanted).fill(of))
        const admitted = Array.from({ length: wanted }, () => limiter.admit(of))
        await limiter.write(tx)
        return [spent, ...admitted]
      })
    assert.deepEqual(await fire(first, 2), [false, true, true])
    assert.deepEqual(await app.pool.any(counts), [])
    assert.deepEqual(await fire(first, 3), [false, true, true, false])
    assert.deepEqual(await fire({ ...first, chained: true }, 1), [true, false])
    assert.deepEqual(await app.pool.any(counts), [{ firings: 2, skipped: 2 }])
  })

  it('counts firings in the storage of the project', async () => {
    const stored = async () => {
      await snapshotProjects(app.services, { all: true })
      return (await newestSnapshot(app.pool, app.projectId))?.bytes as number
    }
    const trigger = await on('actors.created')
    await actor('before')
    await allEnded(key, trigger.id, 1)
    const before = await stored()
    await actor('x'.repeat(200))
    await allEnded(key, trigger.id, 2)
    assert.ok((await stored()) >= before + 500)
  })

  it('is not fired by the effects of a turn that it started', async () => {
    const trigger = await on('generations.completed', { target_type: 'agent', ...(await agentTarget()) })
    await key.post(`/agents/${trigger.target_id}/generate?wait=true`, { prompt: 'hi' })
    const [first, second] = await allEnded(key, trigger.id, 2)
    assert.deepEqual([first.status, first.result.target_type], ['succeeded', 'agent'])
    assert.deepEqual([second.status, second.error.code], ['failed', 'TRIGGER_CAUSATION_LIMIT'])
    await dispatched()
    assert.equal((await firingsOf(key, trigger.id)).length, 2)
  })
  async function agentTarget() {
    const provider = await app.admin.post('/ai-providers', {
      project_id: app.projectId,
      name: 'double',
      provider: 'custom',
      default_model: 'double-1',
      base_url: `${app.double.url}/v1`,
    })
    const agent = await key.post('/agents', { name: 'a', ai_provider_id: provider.body.id })
    assert.equal(agent.status, 201, JSON.stringify(agent.body))
    return { target_id: agent.body.id }
  }

  it('fires other triggers when one cannot be evaluated', async () => {
    await on('actors.created', {
      event_filter: { reduce: [{ var: 'data' }, { cat: [{ var: 'accumulator' }, { var: 'accumulator' }] }, 'x'] },
    })
    const mapped = await on('actors.created', {
      input_mapping: { items: { map: [[1, 2, 3], { cat: [{ var: '' }, 'x'] }] } },
    })
    await actor()
    assert.equal((await allEnded(key, mapped.id, 1))[0].status, 'succeeded')
    await dispatched()
  })

  it('is not fired by custom events in platform namespaces', async () => {
    const any = await on('*')
    await app.services.write(async tx => {
      emitNamed(tx, 'actors.created', app.projectId, { id: 'actor_x' })
    })
    await allEnded(key, any.id, 1)
    await app.pool.query(sql.unsafe`
      insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at)
      select 'evt_' || n, ${app.projectId}, n, 'order', 'o1', json_build_object('id', n, 'event', n, 'data', '{}'::json)::text, now()
      from unnest(array['actors.invented', 'orders.shipped']) n`)
    const all = await eventually(async () => {
      const found = await firingsOf(key, any.id)
      return found.some(({ input }) => input.event === 'orders.shipped') ? found : null
    })
    await dispatched()
    assert.equal(all.filter(({ input }) => input.event === 'actors.invented').length, 0)
  })

  it('marks events as dispatched when they are written in a project without event triggers', async () => {
    const { body } = await actor('quiet')
    const stored = await app.pool.one(
      sql.unsafe`select dispatched_at is not null as done, packed is not null as packed, causation from events where resource_id = ${body.id}`,
    )
    assert.deepEqual(stored, { done: true, packed: true, causation: null })
  })
})

describe('inputs of events and schedules', function () {
  this.timeout(60_000)
  const app = forSuite(() => startTriggerApp({ workers: ['trigger', 'delivery'], inProcess: true }))

  it('are mapped when a thread is free', async () => {
    const { key } = app
    const input_mapping = { n: costly('input.list') }
    const fields = { target_type: 'tool', target_id: app.toolId, input: { list: COSTLY_ITEMS }, input_mapping }
    const byEvent = await madeTrigger(key, { ...fields, type: 'event', event_pattern: 'actors.created' })
    const bySchedule = await madeTrigger(key, { ...fields, type: 'schedule', cron: '0 0 1 1 *' })
    const free = occupyThreads(app.services, app.projectId)
    try {
      assert.equal((await key.post('/actors', { name: 'x' })).status, 201)
      await app.pool.query(
        sql.unsafe`update triggers set next_fire_at = now() - interval '1 s' where id = ${bySchedule.id}`,
      )
      for (const { id } of [byEvent, bySchedule]) {
        const [{ status, input }] = await eventually(async () => {
          const found = await firingsOf(key, id)
          return found.length > 0 ? found : null
        })
        assert.deepEqual([status, input.list], ['pending', COSTLY_ITEMS])
      }
      const waits = sql.unsafe`
        select count(*)::int from pgboss.job_common
        where name = 'trigger.fire' and start_after > now() and data ->> 'project_id' = ${app.projectId}`
      await eventually(async () => (await app.pool.oneFirst(waits)) === 2, { what: 'firings that wait' })
    } finally {
      free()
    }
    for (const { id } of [byEvent, bySchedule]) {
      const [firing] = await allEnded(key, id, 1)
      assert.deepEqual(
        [firing.status, firing.input, firing.attempts],
        ['succeeded', { n: 80 }, 1],
        JSON.stringify(firing),
      )
    }
    assert.equal(app.target.requests.length, 2)
    for (const { body } of app.target.requests) assert.deepEqual(JSON.parse(body), { n: 80 })
  })
})
