import type { ChildProcess } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import autocannon from 'autocannon'
import pg from 'pg'
import { startDouble } from '#local/double/server.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { testEnvironment } from '../support/environment.ts'
import { startCountingProxy } from './counting-proxy.ts'
import { start } from './http.ts'
import { percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'
import { CALLERS } from './turn-load.ts'

/**
 * Tasks of workflows, web and worker in two processes with a tool that answers immediately, next to bare Express writing the same
 * rows and direct calls of the tool. Usage: node test/bench/run.ts work
 */
const SECONDS = 6
const WARM_UP = 60
const HOPS = 200
const BOARD_TASKS = 100_000
const BOARDS = 50
const OPEN_TASKS = 10_000
/** Work of every minute is counted as often in one window as in the other. */
const IDLE_SECONDS = 60
/** Remaining writes of the traffic complete meanwhile. */
const SETTLE_SECONDS = 15

const looping = {
  states: [{ name: 'one', initial: true }, { name: 'two' }],
  transitions: [{ name: 'turn', from: ['one', 'two'], to: 'two' }],
}

async function made(app: AgentApp, path: string, body: object): Promise<string> {
  const answer = await app.key.post(path, body)
  if (answer.status !== 201) throw new Error(`${path} answered ${answer.status}: ${JSON.stringify(answer.body)}`)
  return answer.body.id
}

export async function run(): Promise<Row[]> {
  const app = await startAgentApp({ workers: [] })
  const double = await startDouble({})
  const db = new pg.Client({ connectionString: app.databaseUrl })
  await db.connect()
  const env = {
    ...testEnvironment(app.databaseUrl),
    DATABASE_POOL_MAX: '20',
    EGRESS_ALLOW_HOSTS: '127.0.0.1',
    TASK_AUTOMATION_CHAIN_LIMIT: '1000000',
  }
  const processes: ChildProcess[] = []
  const begin = async (...at: Parameters<typeof start>) => {
    const started = await start(...at)
    started.child.stdout?.resume()
    processes.push(started.child)
    return started
  }
  try {
    const web = await begin('src/web.ts', env)
    const floor = await begin('test/bench/floor.ts', env)
    return [
      await transitions(app, web.url, floor.url),
      await board(app, db, web.url),
      await hops(app, db, web.url, `${double.url}/healthz`, () => begin('jobs/worker.ts', env, ['orchestration'])),
      ...(await idle(app, db, begin)),
    ]
  } finally {
    for (const child of processes) child.kill('SIGKILL')
    await db.end()
    await double.close()
    await app.close()
  }
}

const post = (token: string | null, body: object) => ({
  method: 'POST' as const,
  headers: { 'content-type': 'application/json', ...(token ? { authorization: `Bearer ${token}` } : {}) },
  body: JSON.stringify(body),
})

/** Moves a second, each of a separate task, against the same rows written by bare Express. */
async function transitions(app: AgentApp, url: string, floor: string): Promise<Row> {
  const workflow_id = await made(app, '/workflows', { name: 'loop', ...looping })
  const ids: string[] = []
  for (let n = 0; n < 4 * CALLERS; n++) ids.push(await made(app, '/tasks', { workflow_id, title: 'bench' }))
  const moved = async (pathOf: (id: string) => string, token: string | null): Promise<number> => {
    let next = 0
    const result = await autocannon({
      url: pathOf(ids[0]),
      connections: CALLERS,
      duration: SECONDS,
      requests: [
        {
          ...post(token, { transition: 'turn' }),
          setupRequest: request => ({ ...request, path: new URL(pathOf(ids[next++ % ids.length])).pathname }),
        },
      ],
    })
    if (Object.keys(result.statusCodeStats ?? {}).join() !== '200')
      throw new Error(`moves answered ${JSON.stringify(result.statusCodeStats)}`)
    return result.requests.average
  }
  const rates: { ours: number[]; theirs: number[] } = { ours: [], theirs: [] }
  for (let round = 0; round < 3; round++) {
    rates.theirs.push(await moved(id => `${floor}/tasks/${id}/transitions`, null))
    rates.ours.push(await moved(id => `${url}/api/v1/tasks/${id}/transitions`, app.key.token))
  }
  const [ours, theirs] = [percentile(rates.ours, 0.5), percentile(rates.theirs, 0.5)]
  return {
    what: `transitions of tasks a second, ${CALLERS} callers, of the bare transaction of the same rows`,
    value: rounded(ours / theirs, 2),
    unit: 'x',
    target: '>= 0.4',
    note: `${Math.round(ours)}/s against ${Math.round(theirs)}/s`,
  }
}

/** From the commit that enters a state to the commit that leaves it, by the answer of the tool, against a direct call of the tool. */
async function hops(
  app: AgentApp,
  db: pg.Client,
  url: string,
  toolUrl: string,
  worker: () => Promise<{ child: ChildProcess }>,
): Promise<Row> {
  const tool_id = await made(app, '/tools', { name: 'probe', execute: { method: 'GET', url: toolUrl } })
  const on_enter = { dispatch: { kind: 'tool', tool_id }, on_complete: [{ when: true, transition: 'done' }] }
  const workflow_id = await made(app, '/workflows', {
    name: 'hop',
    states: [
      { name: 'rest', initial: true },
      { name: 'work', on_enter },
    ],
    transitions: [
      { name: 'go', from: ['rest'], to: 'work' },
      { name: 'done', from: ['work'], to: 'rest' },
    ],
  })
  const { child } = await worker()
  const call = async () => {
    const answer = await fetch(`${url}/api/v1/tools/${tool_id}/call`, post(app.key.token, {}))
    if (answer.status !== 200) throw new Error(`a call answered ${answer.status}`)
    await answer.arrayBuffer()
  }
  const task = await made(app, '/tasks', { workflow_id, title: 'bench' })
  const hop = async () => {
    const answer = await fetch(`${url}/api/v1/tasks/${task}/transitions`, post(app.key.token, { transition: 'go' }))
    if (answer.status !== 200) throw new Error(`a move answered ${answer.status}: ${await answer.text()}`)
    await answer.arrayBuffer()
    for (;;) {
      const { rows } = await db.query('select state from tasks where id = $1', [task])
      if (rows[0].state === 'rest') return
      await sleep(1)
    }
  }
  for (let n = 0; n < WARM_UP; n++) {
    await call()
    await hop()
  }
  const calls: number[] = []
  for (let n = 0; n < HOPS; n++) {
    const started = performance.now()
    await call()
    calls.push(performance.now() - started)
    await hop()
  }
  // Others would share the polls of an idle worker.
  child.kill('SIGKILL')
  // By the clock of the process that writes both.
  const { rows } = await db.query(
    `select extract(epoch from created_at - before) * 1000 as ms from (
       select created_at, transition, lag(created_at) over (order by created_at, id) as before
       from task_transitions where task_id = $1 order by created_at desc limit $2) t
     where transition = 'done' and before is not null`,
    [task, 2 * HOPS],
  )
  const taken = rows.map(({ ms }) => Number(ms))
  const [ours, theirs] = [percentile(taken, 0.5), percentile(calls, 0.5)]
  return {
    what: 'hop of a task from a commit to the next state, local tool, p50, of a direct call of the tool',
    value: rounded(ours / theirs, 2),
    unit: 'x',
    target: '<= 4',
    note: `${rounded(ours)} ms against ${rounded(theirs)} ms`,
  }
}

/** Fills a workflow with tasks, by SQL: only their reads are measured. */
async function filled(db: pg.Client, workflow_id: string, project_id: string, count: number): Promise<void> {
  await db.query(
    `insert into tasks (id, project_id, workflow_id, workflow_version, title, state, status, payload, automation_chain_depth,
       entered_state_at, revision, entry_seq, authority, created_at, updated_at)
     select 'task_' || lpad(n::text, 26, '0'), $1, $2, 1, 'task ' || n, case n % 3 when 0 then 'one' else 'two' end, 'open',
       '{"text":"some payload of a task"}', 0, now(), 1, 1, '{"type":"user","id":"user_1","via":null}',
       now() - n * interval '1 s', now()
     from generate_series(1, $3::int) n`,
    [project_id, workflow_id, count],
  )
}

async function board(app: AgentApp, db: pg.Client, url: string): Promise<Row> {
  const workflow_id = await made(app, '/workflows', { name: 'board', ...looping })
  await filled(db, workflow_id, app.projectId, BOARD_TASKS)
  const taken: number[] = []
  for (let n = 0; n < BOARDS; n++) {
    const started = performance.now()
    const answer = await fetch(`${url}/api/v1/workflows/${workflow_id}/board`, {
      headers: { authorization: `Bearer ${app.key.token}` },
    })
    const { total } = (await answer.json()) as { total: number }
    taken.push(performance.now() - started)
    if (total !== BOARD_TASKS) throw new Error(`a board of ${BOARD_TASKS} tasks shows ${total}`)
  }
  await db.query('delete from workflows where id = $1', [workflow_id])
  return {
    what: `board of a workflow with ${BOARD_TASKS.toLocaleString('en')} tasks, p95`,
    value: rounded(percentile(taken, 0.95), 1),
    unit: 'ms',
    target: '< 50',
    note: `p50 ${rounded(percentile(taken, 0.5), 1)} ms`,
  }
}

/** Statements of a worker that has nothing to do, without tasks and next to many open ones, none due. */
async function idle(
  app: AgentApp,
  db: pg.Client,
  begin: (...at: Parameters<typeof start>) => Promise<{ child: ChildProcess }>,
): Promise<Row[]> {
  const proxy = await startCountingProxy(app.databaseUrl)
  // Before both windows: work that follows a request continues for a while.
  const workflow_id = await made(app, '/workflows', { name: 'idle', ...looping })
  try {
    const { child } = await begin('jobs/worker.ts', testEnvironment(proxy.url))
    const counted = async () => {
      await sleep(SETTLE_SECONDS * 1000)
      proxy.take()
      await sleep(IDLE_SECONDS * 1000)
      const statements = proxy.take()
      const all = statements.reduce((sum, { count }) => sum + count, 0)
      return { rate: all / IDLE_SECONDS, statements }
    }
    const without = await counted()
    await filled(db, workflow_id, app.projectId, OPEN_TASKS)
    await db.query(`update tasks set stalls_at = now() + interval '1 hour' where workflow_id = $1`, [workflow_id])
    const beside = await counted()
    const before = new Map(without.statements.map(({ statement, count }) => [statement, count]))
    const more = beside.statements
      .map(({ statement, count }) => ({ statement, more: count - (before.get(statement) ?? 0) }))
      .filter(each => each.more > IDLE_SECONDS / 10)
      .map(({ statement, more: count }) => `${count} ${statement.slice(0, 60)}`)
      .join('; ')
    child.kill('SIGKILL')
    return [
      {
        what: `statements a second of an idle worker with ${OPEN_TASKS.toLocaleString('en')} open tasks, none due, of a worker without`,
        value: rounded(beside.rate / without.rate, 2),
        unit: 'x',
        target: '<= 1.1',
        note: `${rounded(beside.rate, 2)}/s against ${rounded(without.rate, 2)}/s${more ? `; more often ${more}` : ''}`,
      },
    ]
  } finally {
    proxy.close()
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run())
  process.exit(0)
}
