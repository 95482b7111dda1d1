import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { HOLDER, hasProcessEnded, ownIdentity } from '#core/base/holder.ts'
import { sql } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { retentionSweepQueue } from '#core/work/sweeps.ts'
import { Heartbeat } from '#core/work/takeover.ts'
import { eventually, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

describe('leases of lost workers', () => {
  const app = forSuite(() => startApp({ env: { WORKER_HEARTBEAT_INTERVAL_MS: '1000' } }))
  const identity = ownIdentity() ?? { host: 'here', pid: process.pid, started: '0' }
  const worker = {
    instance: 'mine',
    kinds: ['retention'],
    holder: HOLDER,
    startedAt: new Date().toISOString(),
    identity,
  }
  beforeEach(() => app.services.pool.query(sql.unsafe`delete from worker_heartbeats`))

  type Other = { host?: string; pid?: number; started?: string; ageMs?: number }
  const addWorker = (holder: string, { host, pid, started, ageMs = 0 }: Other) =>
    app.services.pool.query(sql.unsafe`
      insert into worker_heartbeats (instance_id, kinds, started_at, beat_at, holder, host, pid, pid_started)
      values (${holder}, '{}', now(), now() - ${ageMs} * interval '1 ms', ${holder}, ${host ?? null}, ${pid ?? null}, ${started ?? null})`)
  const gone = async (): Promise<string[]> =>
    (await app.services.pool.anyFirst(sql.unsafe`
      select instance_id from worker_heartbeats where holder is null order by instance_id`)) as string[]

  it('distinguishes processes with the same PID by their start time', async function () {
    if (!ownIdentity()) this.skip()
    const child = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)'])
    const pid = child.pid as number
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const started = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
    assert.equal(hasProcessEnded({ pid, started }), false)
    assert.equal(hasProcessEnded({ pid, started: '1' }), true)
    child.kill('SIGKILL')
    await once(child, 'exit')
    assert.equal(hasProcessEnded({ pid, started }), true)
  })

  it('are ended immediately for an ended process of this host, and after two missed heartbeats for another host', async () => {
    const { host, pid, started } = identity
    await addWorker('here and alive', { host, pid, started, ageMs: -600_000 })
    await addWorker('here with a reused number', { host, pid, started: '1' })
    await addWorker('elsewhere with the number', { host: 'elsewhere', pid, started: '1', ageMs: -600_000 })
    await addWorker('elsewhere and silent', { host: 'elsewhere', pid: 1, started: '1', ageMs: 11_000 })
    await addWorker('elsewhere and alive', { host: 'elsewhere', pid: 1, started: '1', ageMs: -600_000 })
    const heartbeat = new Heartbeat(app.services, worker)
    await heartbeat.beat()
    // The first heartbeat is like a heartbeat after an outage of the database: all of them were silent.
    assert.deepEqual(await gone(), ['here with a reused number'])
    await eventually(async () => {
      await heartbeat.beat()
      return (await gone()).length > 1
    })
    assert.deepEqual(await gone(), ['elsewhere and silent', 'here with a reused number'])
  })

  it('are ended once for messages', async () => {
    const { pool, queues } = app.services
    await queues.send([queueMessage(retentionSweepQueue, { sweep: 'none' })])
    const hold = (holder: string) =>
      pool.query(sql.unsafe`
        update pgboss.job_common set state = 'active', heartbeat_on = now(), group_tier = ${holder}
        where name = ${retentionSweepQueue.name}`)
    const isOver = () =>
      pool.oneFirst(sql.unsafe`
        select heartbeat_on < now() - interval '1 day' from pgboss.job_common where name = ${retentionSweepQueue.name}`)
    await hold('alive')
    await addWorker('dead', { host: identity.host, pid: identity.pid, started: '1' })
    await new Heartbeat(app.services, worker).beat()
    assert.equal(await isOver(), false)
    await addWorker('dead too', { host: identity.host, pid: identity.pid, started: '1' })
    await hold('dead too')
    await Promise.all([1, 2].map(() => new Heartbeat(app.services, worker).beat()))
    assert.equal(await isOver(), true)
    await hold('dead too')
    await new Heartbeat(app.services, worker).beat()
    assert.equal(await isOver(), false)
  })
})
