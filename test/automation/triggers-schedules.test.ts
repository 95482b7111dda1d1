import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { allEnded, FAST, firingsOf, madeTrigger, startTriggerApp } from './triggers-support.ts'

const MINUTELY = { type: 'schedule', cron: '* * * * *' }

/** A schedule that no test reaches: it fires when it is made due, never by itself while a test counts firings. */
const YEARLY = { type: 'schedule', cron: '0 0 1 1 *' }

/** For missed occurrences: another one within a test is rare. */
const HOURLY = { type: 'schedule', cron: '0 * * * *' }

/** Sets the clock of a process 30 s ahead. */
const AHEAD = `--import=data:text/javascript,${encodeURIComponent(`
  const Real = Date
  globalThis.Date = class extends Real {
    constructor(...given) { given.length > 0 ? super(...given) : super(Real.now() + 30000) }
    static now() { return Real.now() + 30000 }
  }`)}`

describe('trigger schedules', function () {
  this.timeout(60_000)
  const app = forSuite(() => startTriggerApp({ workers: [] }))
  const key = forSuite(() => app.key)
  let tool: { target_type: string; target_id: string }
  const processes: TestProcess[] = []
  const worker = async (env: Record<string, string> = {}, flags: string[] = []) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['trigger'], flags)
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** Starts a worker without faults. */
  const steadyWorker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['trigger'])
  /** Makes schedules due by moving their next time into the past by some seconds. */
  const dueSince = (id: string, seconds: number) =>
    app.pool.query(
      sql.unsafe`update triggers set next_fire_at = date_trunc('second', now()) - ${seconds} * interval '1 s' where id = ${id}`,
    )
  const read = async (id: string) => (await key.get(`/triggers/${id}`)).body
  const secondsUntil = (time: string) => (new Date(time).getTime() - Date.now()) / 1000

  before(async () => {
    tool = { target_type: 'tool', target_id: app.toolId }
  })
  beforeEach(() => {
    app.target.requests.length = 0
  })
  afterEach(async () => {
    app.target.answer = (_request, response) =>
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}')
    await steady.stop()
    await Promise.all(processes.splice(0).map(each => each.kill()))
  })

  it('has a next fire time while it is active', async () => {
    const trigger = await madeTrigger(key, { ...tool, ...MINUTELY })
    assert.deepEqual([trigger.timezone, trigger.overlap_policy, trigger.misfire_policy], ['UTC', 'allow', 'fire_once'])
    assert.ok(secondsUntil(trigger.next_fire_at) <= 60 && trigger.next_fire_at.endsWith(':00.000Z'))
    const path = `/triggers/${trigger.id}`
    assert.equal((await key.patch(path, { active: false })).body.next_fire_at, null)
    await key.patch(path, { cron: '0 9 1 1 *', timezone: 'Europe/Berlin' })
    const { next_fire_at } = (await key.patch(path, { active: true })).body
    assert.match(next_fire_at, /^\d{4}-01-01T08:00:00.000Z$/)
    assert.match((await key.patch(path, { timezone: 'UTC' })).body.next_fire_at, /-01-01T09:00:00.000Z$/)
    assert.equal((await key.patch(path, { description: 'x' })).body.next_fire_at.slice(11), '09:00:00.000Z')
    await key.delete(path)
  })

  it('fires once per occurrence with several workers and skewed clocks', async () => {
    await Promise.all([...Array.from({ length: 4 }, () => steadyWorker()), worker({}, [AHEAD])])
    const triggers: any[] = []
    for (let n = 0; n < 5; n++) triggers.push(await madeTrigger(key, { ...tool, ...YEARLY }))
    const ids = triggers.map(({ id }) => id)
    // In twenty seconds: a clock that is ahead has already passed it.
    await app.pool.query(sql.unsafe`
      update triggers set next_fire_at = now() + interval '20 s' where id = any(${sql.array(ids.slice(0, 1), 'text')})`)
    for (let round = 1; round <= 5; round++) {
      for (const id of ids.slice(1)) await dueSince(id, 10 - round)
      for (const id of ids.slice(1)) assert.equal((await allEnded(key, id, round)).length, round)
    }
    for (const id of ids.slice(1)) {
      const all = await firingsOf(key, id)
      assert.equal(new Set(all.map(({ scheduled_for }) => scheduled_for)).size, all.length)
      assert.equal(all[0].idempotency_key, `${id}:${all[0].scheduled_for}`)
      assert.ok(all.every(({ status, source }) => status === 'succeeded' && source === 'schedule'))
    }
    const [{ id, next_fire_at }] = [await read(ids[0])]
    const waited = secondsUntil(next_fire_at)
    if (waited > 0 && waited < 3600) assert.deepEqual(await firingsOf(key, id), [])
    const calls = new Map<string, number>()
    for (const { headers } of app.target.requests) {
      const called = headers['idempotency-key'] as string
      calls.set(called, (calls.get(called) ?? 0) + 1)
    }
    assert.ok([...calls.values()].every(count => count === 1))
    const feed = (await key.get('/activity?kind=schedule_fired&limit=100')).body.data
    assert.ok(feed.some(({ ref_id, detail }: any) => ref_id === ids[1] && detail.trigger_firing_id))
    for (const each of ids) await key.delete(`/triggers/${each}`)
  })

  it('fires once or not at all for missed occurrences, by misfire_policy', async () => {
    const once = await madeTrigger(key, { ...tool, ...HOURLY })
    const skipping = await madeTrigger(key, { ...tool, ...HOURLY, misfire_policy: 'skip' })
    for (const { id } of [once, skipping]) await dueSince(id, 36_000)
    await steadyWorker()
    const [firing] = await allEnded(key, once.id, 1)
    assert.ok(secondsUntil(firing.scheduled_for) < -35_000)
    await eventually(async () => secondsUntil((await read(skipping.id)).next_fire_at) > 0)
    for (const { id } of [once, skipping]) assert.ok(secondsUntil((await read(id)).next_fire_at) <= 3600)
    assert.deepEqual([(await firingsOf(key, once.id)).length, (await firingsOf(key, skipping.id)).length], [1, 0])
    for (const { id } of [once, skipping]) await key.delete(`/triggers/${id}`)
  })

  it('fires with inputs that take long to map, and others meanwhile', async () => {
    const keys = Object.fromEntries(Array.from({ length: 3000 }, (_, index) => [`k${index}`, 0]))
    const mapping = { n: { length: [{ map: [{ var: 'input.list' }, keys] }] } }
    const withItems = (count: number, input_mapping: object | null) =>
      madeTrigger(key, { ...tool, ...YEARLY, input: { list: Array(count).fill(0) }, input_mapping })
    // The first one uses nearly the whole budget, the second one more than that.
    const triggers = [await withItems(80, mapping), await withItems(90, mapping), await withItems(1, null)]
    for (const { id } of triggers) await dueSince(id, 1)
    await steadyWorker()
    const [[slow], [failed], [plain]] = await Promise.all(triggers.map(({ id }) => allEnded(key, id, 1)))
    assert.deepEqual([slow.status, slow.input], ['succeeded', { n: 80 }])
    assert.equal(slow.idempotency_key, `${triggers[0].id}:${slow.scheduled_for}`)
    assert.equal(failed.error.message, 'input_mapping: takes too long to evaluate')
    assert.equal(plain.status, 'succeeded')
    const feed = (await key.get('/activity?kind=schedule_fired&limit=100')).body.data
    assert.equal(feed.filter(({ ref_id }: any) => ref_id === triggers[0].id).length, 1)
    for (const { id } of triggers) {
      assert.ok(secondsUntil((await read(id)).next_fire_at) > 0)
      await key.delete(`/triggers/${id}`)
    }
  })

  it('skips an occurrence while a firing is active with overlap_policy skip', async () => {
    let free = () => {}
    app.target.answer = (_request, response) => {
      free = () => response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
    }
    const skipping = await madeTrigger(key, { ...tool, ...YEARLY, overlap_policy: 'skip' })
    await steadyWorker()
    await dueSince(skipping.id, 2)
    await eventually(() => app.target.requests.length === 1)
    await dueSince(skipping.id, 1)
    await eventually(async () => secondsUntil((await read(skipping.id)).next_fire_at) > 0)
    free()
    await allEnded(key, skipping.id, 1)
    await dueSince(skipping.id, 1)
    await eventually(() => app.target.requests.length === 2)
    free()
    assert.equal((await allEnded(key, skipping.id, 2)).length, 2)
    await key.delete(`/triggers/${skipping.id}`)
  })

  it('does not fire in a paused project and skips its missed occurrences', async () => {
    const trigger = await madeTrigger(key, { ...tool, ...HOURLY })
    await app.admin.post(`/projects/${app.projectId}/pause`)
    await dueSince(trigger.id, 36_000)
    await app.admin.post(`/projects/${app.projectId}/resume`)
    assert.ok(secondsUntil((await read(trigger.id)).next_fire_at) > 0)
    await app.admin.post(`/projects/${app.projectId}/pause`)
    await dueSince(trigger.id, 36_000)
    await steadyWorker()
    await eventually(async () => secondsUntil((await read(trigger.id)).next_fire_at) > 0)
    await app.admin.post(`/projects/${app.projectId}/resume`)
    assert.deepEqual(await firingsOf(key, trigger.id), [])
    await key.delete(`/triggers/${trigger.id}`)
  })

  it('is not fired by a worker with a disabled scheduler', async () => {
    await steadyWorker({ TRIGGER_SCHEDULER_DISABLED: 'true' })
    const trigger = await madeTrigger(key, { ...tool, ...YEARLY })
    await dueSince(trigger.id, 1)
    const manual = await madeTrigger(key, tool)
    assert.equal((await key.post(`/triggers/${manual.id}/fire`)).body.status, 'succeeded')
    assert.ok(secondsUntil((await read(trigger.id)).next_fire_at) < 0)
    await steadyWorker()
    assert.equal((await allEnded(key, trigger.id, 1)).length, 1)
  })

  it('fires many schedules in batches', async () => {
    const first = await madeTrigger(key, { ...tool, ...YEARLY })
    await app.pool.query(sql.unsafe`
      insert into triggers (id, project_id, name, type, target_type, target_id, cron, timezone, authority, created_by,
        next_fire_at)
      select 'trg_' || translate(lpad(n::text, 26, '0'), 'ilou', '0000'), project_id, 'many ' || n, type, target_type, target_id, cron, timezone, authority,
        created_by, now() - interval '1 s'
      from triggers, generate_series(1, 450) n where id = ${first.id}`)
    await steadyWorker({ TRIGGER_WORKER_CONCURRENCY: '50' })
    await eventually(
      async () =>
        (await app.pool.oneFirst(
          sql.unsafe`select count(*)::int from trigger_firings where source = 'schedule' and state = 'succeeded'
            and trigger_id in (select id from triggers where name like 'many %')`,
        )) === 450,
      { within: 90_000, what: 'the end of all firings' },
    )
  })
})
