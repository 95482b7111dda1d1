import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { startDouble } from '#local/double/server.ts'
import { chain } from '../automation/fixtures.ts'
import { startTarget } from '../execution/tool-target.ts'
import { client as doubleOf } from '../local/double/client.ts'
import { ADMIN, client, eventually, type Reply } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { startReceiver } from '../support/receiver.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { unpackPrevious } from './previous.ts'

/** Pause of the caller of each kind of work. */
const PAUSE_MS = 250
/** Work of each kind that is acknowledged in each state of the deployment. */
const PER_STATE = 2

const GRACE_MS = '60000'
const ENV = { SHUTDOWN_GRACE_MS: GRACE_MS, ORCHESTRATION_SHUTDOWN_GRACE_MS: GRACE_MS }

type Release = 'previous' | 'current'
type ProcessKind = 'web' | 'worker'

describe('an upgrade process by process under load, and back', function () {
  this.timeout(300_000)
  const name = `muster_test_upgrade_${process.pid}`
  const previous = forSuite(unpackPrevious)
  const double = forSuite(() => startDouble({}))
  const target = forSuite(() => startTarget())
  const receiver = forSuite(() => startReceiver())
  const running: Record<ProcessKind, TestProcess[]> = { web: [], worker: [] }
  let url: string
  let database: pg.Client
  before(async () => {
    url = await createDatabase(name)
    database = new pg.Client({ connectionString: url })
    await database.connect()
  })
  after(async () => {
    await Promise.all([...running.web, ...running.worker].map(each => each.kill()))
    await database.end()
    await dropDatabase(name)
  })

  const start = async (release: Release, kind: ProcessKind) => {
    const starts = { previous: previous.start, current: startProcess }
    running[kind].push(await starts[release](kind, url, ENV))
  }
  /** Replaces the oldest process of a kind. It gets no more requests when it is stopped, as behind a load balancer. */
  const replace = async (release: Release, kind: ProcessKind) => {
    await start(release, kind)
    const stopped = running[kind].shift() as TestProcess
    assert.deepEqual(await stopped.kill('SIGTERM'), { code: 0, signal: null }, stopped.output.slice(-20).join('\n'))
  }
  const rows = async (text: string, values: unknown[] = []) => (await database.query(text, values)).rows

  /** Makes a project with everything that the work needs; returns its key, and the requests of each kind. */
  async function prepare() {
    const bare = client(running.web[0].url, null)
    const made = await bare.post('/users/bootstrap', ADMIN)
    assert.equal(made.status, 201, JSON.stringify(made.body))
    const { token } = (await bare.post('/users/login', ADMIN)).body
    const admin = client(running.web[0].url, token)
    const create = (path: string, body: object) => createdBy(admin, path, body)
    const project_id = (await create('/projects', { name: 'Upgraded' })).id
    const document = { statement: [{ effect: 'Allow', action: ['*'], resource: [`srn:${project_id}:*:*`] }] }
    const policy = await create('/policies', { document })
    const { secret } = await create('/project-keys', { project_id, policy_ids: [policy.id] })
    const provider = await create('/ai-providers', {
      project_id,
      name: 'double',
      provider: 'custom',
      default_model: 'said/m',
      base_url: `${double.url}/v1`,
    })
    const tool_id = (await create('/tools', { project_id, name: 'lookup', type: 'http', execute: { url: target.url } }))
      .id
    const agent = { project_id, ai_provider_id: provider.id }
    const said = (await create('/agents', { ...agent, name: 'said', model: 'said/m' })).id
    const called = (
      await create('/agents', { ...agent, name: 'called', model: 'called/m', tool_bindings: [{ tool_id }] })
    ).id
    const orchestration_id = (
      await create('/orchestrations', {
        project_id,
        name: 'three calls',
        nodes: ['a', 'b', 'c'].map(id => ({ id, type: 'tool', tool_id })),
        edges: chain('a', 'b', 'c'),
      })
    ).id
    const trigger = await create('/triggers', {
      project_id,
      name: 'manual',
      type: 'manual',
      target_type: 'tool',
      target_id: tool_id,
    })
    await create('/webhooks', { project_id, name: 'all', url: receiver.url, events: ['actors.created'] })
    const requests: Record<string, (n: number) => [path: string, body: object]> = {
      turns: () => [`/agents/${said}/generate`, { prompt: 'x' }],
      toolTurns: () => [`/agents/${called}/generate?wait=true`, { prompt: 'x' }],
      runs: () => ['/orchestration-runs', { orchestration_id, wait: false }],
      firings: () => [`/triggers/${trigger.id}/fire`, { wait: false }],
      documents: (n: number) => ['/documents', { content: `the text of document ${n}` }],
      actors: (n: number) => ['/actors', { name: `actor ${n}` }],
    }
    return { secret, requests }
  }

  it('loses, doubles and refuses nothing', async () => {
    const lanes = doubleOf(double)
    await lanes.put('said', { rules: [{ reply: { text: 'said' } }] })
    await lanes.put('called', {
      rules: [
        { when: { last_role: 'tool' }, reply: { text: 'done' } },
        { reply: { tool_calls: [{ name: 'lookup', args: {} }] } },
      ],
    })
    previous.migrate(url)
    for (const kind of ['web', 'web', 'worker', 'worker'] as const) await start('previous', kind)
    const { secret, requests } = await prepare()

    const acknowledged: Record<string, string[]> = Object.fromEntries(Object.keys(requests).map(each => [each, []]))
    const unexpected: string[] = []
    let over = false
    let number = 0
    /** Sends a request until it is answered: to another process if it is stopping and its connection was reset. */
    const send = async (path: string, body: object): Promise<Reply['body']> => {
      const headers = { 'idempotency-key': `key-${++number}` }
      for (;;) {
        const { url: base } = running.web[number % running.web.length]
        const reply = await client(base, secret)
          .post(path, body, headers)
          .catch((error: unknown) => error as Error)
        if (reply instanceof Error) {
          if (running.web.some(each => each.url === base)) unexpected.push(`${path}: ${reply}`)
        } else if (reply.status < 300) return reply.body
        else if (reply.body?.error?.code !== 'IDEMPOTENCY_IN_PROGRESS')
          unexpected.push(`${path}: ${reply.status} ${JSON.stringify(reply.body)}`)
        if (unexpected.length > 20) return null
        await sleep(20)
      }
    }
    const work = Object.entries(requests).map(async ([kind, request]) => {
      while (!over && unexpected.length <= 20) {
        const body = await send(...request(number))
        if (body) acknowledged[kind].push('generation_id' in body ? body.generation_id : body.id)
        await sleep(PAUSE_MS)
      }
    })
    /** Waits until each kind of work has been acknowledged by the processes that run. */
    const answered = async () => {
      const before = Object.values(acknowledged).map(({ length }) => length)
      await eventually(
        () =>
          unexpected.length > 20 ||
          Object.values(acknowledged).every(({ length }, index) => length >= before[index] + PER_STATE),
        { within: 120_000, what: 'work of each kind' },
      )
    }
    try {
      await answered()
      const migrated = await muster(['migrate'], testEnvironment(url))
      assert.equal(migrated.code, 0, migrated.stderr)
      await answered()
      for (const release of ['current', 'previous'] as const)
        for (const kind of ['worker', 'web', 'worker', 'web'] as const) {
          await replace(release, kind)
          await answered()
        }
    } finally {
      over = true
      await Promise.all(work)
    }
    assert.deepEqual(unexpected.slice(0, 5), [], `${unexpected.length} answers`)
    await reconcile(acknowledged)
  })

  /** Waits for the end of all work, and compares it with the acknowledged requests, the calls, the usage and the deliveries. */
  async function reconcile(acknowledged: Record<string, string[]>) {
    const open = `
      select (select count(*) from generations where status in ('pending', 'in_progress'))
        + (select count(*) from orchestration_runs where status not in ('succeeded', 'failed', 'cancelled', 'expired'))
        + (select count(*) from trigger_firings where completed_at is null)
        + (select count(*) from webhook_deliveries where status = 'queued')
        + (select count(*) from events where dispatched_at is null) as open`
    await eventually(async () => Number((await rows(open))[0].open) === 0, {
      within: 120_000,
      what: 'the end of all work',
    })
    const { turns, toolTurns, runs, firings, documents, actors } = acknowledged
    const ended = async (table: string, ids: string[], status: string, column = 'status') =>
      assert.deepEqual(
        await rows(`select id, ${column} from ${table} where id <> all ($1) or ${column} <> $2`, [ids, status]),
        [],
        table,
      )
    await ended('generations', [...turns, ...toolTurns], 'completed')
    await ended('orchestration_runs', runs, 'succeeded')
    await ended('trigger_firings', firings, 'succeeded', 'state')
    await ended('documents', documents, 'ready')
    for (const [table, ids] of Object.entries({
      generations: [...turns, ...toolTurns],
      orchestration_runs: runs,
      trigger_firings: firings,
      documents,
      actors,
    }))
      assert.equal((await rows(`select count(*)::int as n from ${table}`))[0].n, ids.length, table)
    assert.deepEqual(await rows(`select name, data from pgboss.job where name like '%.dead'`), [])
    const calls = toolTurns.length + 3 * runs.length + firings.length
    assert.equal(target.requests.length, calls, 'calls of the tool')
    const models = (await Promise.all(['said', 'called'].map(each => doubleOf(double).requests(each)))).flat().length
    assert.equal(models, turns.length + 2 * toolTurns.length, 'calls of the model')
    const usage = await rows(
      `select meter_type, sum(event_count)::int as n from usage_events
       where meter_type in ('llm_tokens', 'tool_execution') and source is distinct from 'embedding' group by 1 order by 1`,
    )
    // Model calls of a turn are one event.
    assert.deepEqual(usage, [
      { meter_type: 'llm_tokens', n: turns.length + toolTurns.length },
      { meter_type: 'tool_execution', n: calls },
    ])
    const delivered = receiver.requests.map(({ event }) => event.data.id)
    assert.deepEqual(delivered.toSorted(), actors.toSorted(), 'deliveries')
  }
})
