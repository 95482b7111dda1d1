import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from '#core/db/sql.ts'
import { chain, type RunApp, startRunApp } from '../automation/fixtures.ts'
import { madeTrigger } from '../automation/triggers-support.ts'
import { madeDecider, TOOL_ANSWERS } from '../execution/decider-support.ts'
import { json } from '../execution/tool-target.ts'
import { client as doubleOf } from '../local/double/client.ts'
import { client, eventually, type Reply } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { type SilentProxy, startSilentProxy } from '../support/silent-proxy.ts'

/** Seconds of silence. A long run, with a table of its times: `SILENCE_SECONDS=0.1,4,40,90 npm test -- test/jobs/silent-connections.test.ts` */
const SECONDS = (process.env.SILENCE_SECONDS ?? '0.1,4').split(',').map(Number)
/**
 * Time for everything to continue once new connections pass. Ten seconds are promised; the rest is the machine's. Without
 * the end of silent connections, work waits for its lease, a minute or longer, or endlessly.
 */
const WITHIN_MS = 30_000
/** Longest request that does not wait for work. 8.4 s are promised; the rest is the machine's. */
const REQUEST_MS = 13_000

/** Statements that claim work for some time, by the tables of their leases, whose answers are lost below. */
const CLAIMS: Record<string, RegExp> = {
  webhook_deliveries: /update webhook_deliveries d set claim = d\.claim \+ 1/,
  orchestration_node_executions: /update orchestration_node_executions t\s+set deliveries/,
  idempotency_keys: /insert into idempotency_keys/,
  audit_verifications: /insert into audit_verifications/,
}
/** Tables whose leases are claimed otherwise. */
const OTHERS: Record<string, string> = {
  'pgboss.job': 'messages of all queues: test/jobs/lost-claims.test.ts',
  webhook_slots: 'with the deliveries, by the same statement',
  worker_heartbeats: 'processes, not work',
  generation_work: 'turns that a web process executes: test/execution/local-turns.test.ts',
  open_streams: 'streams of a process, under its advisory lock',
  generation_interruptions: 'records of attempts that have ended',
  node_interruptions: 'records of attempts that have ended',
}

/** An acknowledged piece of work: its row, and the state in which it must end. */
type Piece = { kind: string; table: string; column: string; end: string; id: string }

/** A network that forgets connections: no FIN, no RST, and nothing passes any more. */
describe('processes whose connections to the database go silent', function () {
  this.timeout(process.env.SILENCE_SECONDS ? 600_000 : 120_000)
  let app: RunApp
  let proxy: SilentProxy
  let receiver: Receiver
  let scheduled: string
  const processes: TestProcess[] = []
  const times: string[] = []
  before(async () => {
    app = await startRunApp({ workers: [], actions: ['*'] })
    proxy = await startSilentProxy(app.databaseUrl)
    receiver = await startReceiver()
    // Near its limit the nodes of a project have messages: otherwise a worker executes all that it has made ready.
    const env = { EGRESS_ALLOW_HOSTS: '127.0.0.1', ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES: '8' }
    const concerns = ['orchestration', 'generation', 'trigger', 'delivery', 'ingestion', 'evaluation', 'snapshot']
    processes.push(
      ...(await Promise.all([
        startProcess('web', proxy.url, env),
        startProcess('worker', proxy.url, env, concerns),
        startProcess('worker', proxy.url, env, concerns),
      ])),
    )
    await prepare()
  })
  after(async () => {
    await Promise.all(processes.map(each => each.kill()))
    await proxy?.close()
    await receiver?.close()
    await app?.close()
    if (process.env.SILENCE_SECONDS) console.log(times.join('\n'))
  })

  const pieces: Piece[] = []
  const actors: string[] = []
  const unexpected: string[] = []
  let longestMs = 0
  let number = 0
  /** Time when work of each kind was last unfinished. */
  const unfinished = new Map<string, number>()
  let kinds: (() => Promise<void>)[]

  async function prepare(): Promise<void> {
    const double = doubleOf(app.double)
    await double.put('said', { rules: [] })
    await double.put('called', {
      rules: [
        { when: { last_role: 'tool' }, reply: { text: 'done' } },
        { reply: { tool_calls: [{ name: 'lookup', args: {} }] } },
      ],
    })
    app.target.answer = json(TOOL_ANSWERS)
    const made = async (path: string, body: object) => {
      const reply = await app.key.post(path, body)
      assert.equal(reply.status, 201, JSON.stringify(reply.body))
      return reply.body
    }
    // Otherwise a task fails whose tool may have been called.
    const tool_id = await app.tool({ name: 'lookup', idempotent: true })
    const agent_id = await app.agent({ model: 'said/m' })
    const calling = await app.agent({ model: 'called/m', tool_bindings: [{ tool_id }] })
    const orchestration_id = await app.orchestration(
      ['a', 'b', 'c'].map(id => ({ id, type: 'tool', tool_id })),
      chain('a', 'b'),
    )
    const asking = await app.orchestration([{ id: 'ask', type: 'approval', tool_id }])
    const target = { target_type: 'tool', target_id: tool_id }
    const manual = await madeTrigger(app.key, target)
    await madeTrigger(app.key, { ...target, type: 'event', event_pattern: 'actors.created' })
    scheduled = (await madeTrigger(app.key, { ...target, type: 'schedule', cron: '0 0 1 1 *' })).id
    await made('/webhooks', { name: 'hook', url: receiver.url, events: ['actors.created'] })
    const decider = await madeDecider(app.key, { tool_id })
    const dataset_id = (await made('/datasets', { name: 'set' })).id
    await made(`/datasets/${dataset_id}/items`, { input: [{ role: 'user', content: 'x' }], expected_output: 'x' })
    const scorers = [{ type: 'exact_match' }]
    const { id: evalId } = await made('/evals', { name: 'eval', agent_id, dataset_id, scorers, pass_threshold: 1 })
    const work = {
      dispatch: { kind: 'tool', tool_id },
      on_complete: [{ when: true, transition: 'pass' }],
      on_failure: 'fall',
    }
    const { id: workflow_id } = await made('/workflows', {
      name: 'flow',
      states: [
        { name: 'work', initial: true, on_enter: work },
        { name: 'good', terminal: true },
        { name: 'bad', terminal: true },
      ],
      transitions: [
        { name: 'pass', from: ['work'], to: 'good' },
        { name: 'fall', from: ['work'], to: 'bad' },
      ],
    })

    const key = client(processes[0].url, app.key.token)
    /** Sends a request again under its key, as a client does, until it is acknowledged. */
    const post = async (path: string, body: object, waits = false): Promise<any> => {
      const headers = { 'idempotency-key': `k${++number}` }
      for (;;) {
        const sentAt = performance.now()
        const { status, body: answer, headers: received }: Reply = await key.post(path, body, headers)
        if (!waits) longestMs = Math.max(longestMs, performance.now() - sentAt)
        if (status >= 200 && status < 300) return answer
        const isBusy = status === 409 && answer.error.code === 'IDEMPOTENCY_IN_PROGRESS'
        if (!(status === 503 && received.has('retry-after')) && !isBusy)
          return void unexpected.push(`${path} ${status} ${JSON.stringify(answer)}`)
        await sleep(100)
      }
    }
    const piece = (kind: string, table: string, column: string, end: string, send: () => Promise<any>) => async () => {
      const answer = await send()
      if (answer) pieces.push({ kind, table, column, end, id: 'id' in answer ? answer.id : answer.generation_id })
    }
    kinds = [
      piece('turn', 'generations', 'status', 'completed', () => post(`/agents/${agent_id}/generate`, { prompt: 'x' })),
      piece('turn with a tool', 'generations', 'status', 'completed', () =>
        post(`/agents/${calling}/generate?wait=true`, { prompt: 'x' }, true),
      ),
      piece('run', 'orchestration_runs', 'status', 'succeeded', () =>
        post('/orchestration-runs', { orchestration_id, wait: false }),
      ),
      piece('approval', 'orchestration_runs', 'status', 'succeeded', async () => {
        const run = await post('/orchestration-runs', { orchestration_id: asking, wait: true }, true)
        const { approval_id } =
          run?.required_action ?? (await app.until(run.id, each => each.required_action)).required_action
        await post(`/approvals/${approval_id}/approve`, {})
        return run
      }),
      piece('firing', 'trigger_firings', 'state', 'succeeded', () =>
        post(`/triggers/${manual.id}/fire`, { wait: false }),
      ),
      piece('decision', 'decisions', 'status', 'completed', () =>
        post(`/deciders/${decider.id}/decisions`, { input: 'x' }),
      ),
      piece('task', 'tasks', 'state', 'good', () => post('/tasks', { workflow_id, title: 'a card' })),
      piece('eval run', 'eval_runs', 'status', 'completed', () => post(`/evals/${evalId}/runs`, {})),
      piece('ingestion', 'documents', 'status', 'ready', async () => {
        const content = Buffer.from(`text ${++number}`).toString('base64')
        const fields = { content, filename: `file ${number}.txt`, content_type: 'text/plain' }
        const file = await post('/files/upload/base64', fields)
        return file && post('/documents/ingest', { file_id: file.id })
      }),
      // Fires the event trigger, and is delivered to the webhook.
      async () => {
        const actor = await post('/actors', { name: `actor ${++number}` })
        if (actor) actors.push(actor.id)
      },
    ]
    await Promise.all(kinds.map(send => send()))
    await settled(WITHIN_MS)
  }

  const read = (text: ReturnType<typeof sql.unsafe>) => app.pool.any(text) as Promise<readonly any[]>

  /** Waits until all acknowledged work is done, once. Fails with the remaining work when the time is over. */
  async function settled(within: number): Promise<void> {
    let left: [string, unknown][] = [['not read', null]]
    await eventually(
      async () => {
        left = []
        for (const [table, group] of Map.groupBy(pieces, each => each.table)) {
          const ids = sql.array(
            group.map(({ id }) => id),
            'text',
          )
          const rows = await read(sql.unsafe`
            select id, ${sql.identifier([group[0].column])} as state from ${sql.identifier([table])} where id = any(${ids})`)
          const states = new Map(rows.map(({ id, state }) => [id, state]))
          for (const each of group) if (states.get(each.id) !== each.end) left.push([each.kind, states.get(each.id)])
        }
        const delivered = receiver.requests.map(({ event }) => event.data?.id ?? event.resource_id)
        for (const id of actors) if (!delivered.includes(id)) left.push(['delivery', id])
        const [{ fired }] = await read(sql.unsafe`
          select count(*)::int as fired from trigger_firings where source = 'event' and state = 'succeeded'`)
        if (fired < actors.length) left.push(['firing by event', fired])
        for (const [kind] of left) unfinished.set(kind, performance.now())
        return left.length === 0
      },
      { within, every: 100, what: 'the end of all work' },
    ).catch(error => assert.fail(`${error.message}: ${JSON.stringify(left.slice(0, 20))}`))
  }

  let cases = 0
  for (const seconds of SECONDS)
    for (const which of ['all', 'half', 'one'] as const)
      for (const load of ['idle', 'under load'] as const) {
        const variants = process.env.SILENCE_SECONDS ? [false, true] : [cases++ % 2 === 1]
        for (const newToo of variants)
          it(`continue after ${seconds} s, ${which}, ${load}, new connections ${newToo ? 'silent too' : 'pass'}`, async () => {
            longestMs = 0
            unfinished.clear()
            let over = load === 'idle'
            const sending = kinds.map(async send => {
              while (!over) await send()
            })
            await sleep(500)
            proxy.silence(which, newToo)
            await sleep(seconds * 1000)
            proxy.restore()
            const restoredAt = performance.now()
            over = true
            await read(sql.unsafe`update triggers set next_fire_at = now() where id = ${scheduled}`)
            await Promise.all([...sending, ...kinds.map(send => send())])
            const acknowledgedMs = performance.now() - restoredAt
            await settled(WITHIN_MS)
            await eventually(
              async () =>
                (await read(sql.unsafe`select from triggers where id = ${scheduled} and next_fire_at > now()`))
                  .length === 1,
              { within: WITHIN_MS, what: 'the schedule' },
            )
            const ms = performance.now() - restoredAt
            const rounded = [longestMs, acknowledgedMs, ms].map(each => (each / 1000).toFixed(1))
            const byKind = [...unfinished].map(([kind, at]) => `${kind} ${((at - restoredAt) / 1000).toFixed(1)}`)
            const row = [seconds, which, load, newToo ? 'silent' : 'pass', ...rounded, byKind.join(', ')]
            times.push(`| ${row.join(' | ')} |`)
            assert.ok(ms < WITHIN_MS, `${Math.round(ms)} ms`)
            assert.ok(longestMs < REQUEST_MS, `a request took ${Math.round(longestMs)} ms`)
            assert.deepEqual(unexpected.splice(0), [])
          })
      }

  it('answer requests in time while only the listening connections pass', async () => {
    longestMs = 0
    let over = false
    const sending = kinds.map(async send => {
      while (!over) await send()
    })
    proxy.silence('all but listening', true)
    await sleep(15_000)
    proxy.restore()
    over = true
    await Promise.all(sending)
    await settled(WITHIN_MS)
    times.push(`| only listening | ${(longestMs / 1000).toFixed(1)} |`)
    assert.ok(longestMs < REQUEST_MS, `a request took ${Math.round(longestMs)} ms`)
  })

  it('take work again whose claims lost their answer', async () => {
    const tables = await read(sql.unsafe`
      select distinct case when c.relnamespace = 'public'::regnamespace then c.relname
        else c.relnamespace::regnamespace || '.' || regexp_replace(c.relname, '_.*', '') end as name
      from pg_attribute a join pg_class c on c.oid = a.attrelid and c.relkind in ('r', 'p')
      where c.relnamespace::regnamespace::text in ('public', 'pgboss')
        and (a.attname ~ '(^|_)(holder|lease|leased|held)(_|$)' or a.attname = 'heartbeat_on')`)
    assert.deepEqual(
      [...new Set(tables.map(({ name }) => name))].sort(),
      [...Object.keys(CLAIMS), ...Object.keys(OTHERS)].sort(),
      'tables with leases that no case covers, or cases without a table',
    )
    const all = new Map<string, Promise<number>>()
    for (const [table, pattern] of Object.entries(CLAIMS))
      all.set(
        table,
        proxy.loseAnswer(sent => pattern.test(sent)).then(() => performance.now()),
      )
    const verify = async () => {
      const { status } = await client(processes[0].url, app.key.token).get('/audit-log/verify')
      return status
    }
    void verify()
    await Promise.all(kinds.map(send => send()))
    const lostAt = await Promise.all(all.values())
    await eventually(async () => (await verify()) === 200, { within: WITHIN_MS, what: 'verification' })
    await settled(WITHIN_MS)
    const took = (performance.now() - Math.max(...lostAt)) / 1000
    times.push(`| lost claims of ${[...all.keys()].join(', ')} | ${took.toFixed(1)} |`)

    // Deliveries that were claimed by a worker that was lost are claimed alone.
    await app.pool.query(sql.unsafe`alter table webhook_deliveries alter column worker_losses set default 1`)
    const lost = proxy.loseAnswer(sent => /set claim = d\.claim \+ 1[\s\S]*ran_alone/.test(sent))
    await kinds.at(-1)?.()
    await lost
    const suspectLostAt = performance.now()
    await app.pool.query(sql.unsafe`alter table webhook_deliveries alter column worker_losses set default 0`)
    await settled(WITHIN_MS)
    times.push(`| lost claim of a suspect delivery | ${((performance.now() - suspectLostAt) / 1000).toFixed(1)} |`)
  })

  it('have lost and doubled nothing', async () => {
    const twice = (column: string, table: string) => sql.unsafe`
      select ${sql.identifier([column])}, count(*) from ${sql.identifier([table])}
      group by 1 having count(*) > 1`
    assert.deepEqual(await read(twice('name', 'actors')), [])
    const delivered = receiver.requests.map(({ event }) => event.id)
    assert.equal(new Set(delivered).size, actors.length)
    assert.deepEqual(await read(sql.unsafe`select name, data::text from pgboss.job where name like '%.dead'`), [])
    for (const [table, column] of [
      ['generations', 'status'],
      ['orchestration_runs', 'status'],
      ['trigger_firings', 'state'],
      ['decisions', 'status'],
      ['eval_runs', 'status'],
      ['documents', 'status'],
    ])
      assert.deepEqual(
        await read(sql.unsafe`
          select id, error::text from ${sql.identifier([table])} where ${sql.identifier([column])} = 'failed'`),
        [],
        table,
      )
    const [{ fired }] = await read(
      sql.unsafe`select count(*)::int as fired from trigger_firings where source = 'event'`,
    )
    assert.equal(fired, actors.length)
    for (const { output } of processes)
      assert.deepEqual(
        output.filter(line => line.includes('already executing')),
        [],
      )
  })
})
