import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { startDouble } from '#local/double/server.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { client } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase } from '../support/postgres.ts'
import { costRows, dbosProgram, floorProgram, postTo } from './costs.ts'
import { amount, progress } from './fast.ts'
import { countStatements, memory, start } from './http.ts'
import { percentile, postmaster, processorTime, rounded, tableBytes, walBytes } from './measure.ts'
import type { Row } from './rows.ts'
import { alone, CALLERS, post, type Target, together } from './turn-load.ts'

/**
 * Waited and streamed turns with web and worker in two processes and a double that answers immediately, next to Express with
 * two writes and one request to the double. Usage: node test/bench/turns.ts [seconds, default 8, with --fast 2]
 */
const WARM_UP = amount(200, 50)
const TURNS = amount(300, 60)
const STREAMS = amount(60, 20)

/** Settings of telemetry in this environment, to compare its cost. */
const telemetry = (): Record<string, string> =>
  Object.fromEntries(Object.entries(process.env).filter(([name]) => name.startsWith('OTEL_'))) as Record<string, string>

export async function run(seconds = amount(8, 2)): Promise<Row[]> {
  progress('statements of a turn and a message')
  const rows = await statements()
  const app = await startAgentApp({ workers: [] })
  const double = await startDouble({})
  const db = new pg.Client({ connectionString: app.databaseUrl })
  await db.connect()
  const env = {
    ...testEnvironment(app.databaseUrl),
    LOG_LEVEL: 'info',
    WORKER_CONCURRENCY: '32',
    DATABASE_POOL_MAX: '20',
    MODEL_URL: `${double.url}/v1`,
    ...telemetry(),
  }
  const rowsOfCosts = await costRows(
    'waited turn',
    {
      processes: { web: { script: 'src/web.ts' }, worker: { script: 'jobs/worker.ts', args: ['generation'] } },
      env,
      call: url =>
        postTo(`${url}/api/v1/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' }, app.key.token as string),
    },
    {
      floor: floorProgram(env, url => postTo(`${url}/turns`, { project_id: app.projectId, prompt: 'hello' })),
      DBOS: dbosProgram({ DATABASE_URL: await createDatabase(), MODEL_URL: env.MODEL_URL }, '/turn'),
    },
  )
  const web = await start('src/web.ts', env)
  const worker = await start('jobs/worker.ts', env, ['generation'])
  const floor = await start('test/bench/floor.ts', env)
  for (const { child } of [web, worker, floor]) child.stdout?.resume()
  const agent: Target = {
    url: web.url,
    path: `/api/v1/agents/${app.agentId}/generate`,
    token: app.key.token as string,
    body: { prompt: 'hello' },
  }
  const least: Target = {
    url: floor.url,
    path: '/turns',
    token: '',
    body: { project_id: app.projectId, prompt: 'hello' },
  }
  try {
    rows.push(...rowsOfCosts)
    progress('turns and requests of the floor')
    for (const target of [agent, least]) await alone(target, WARM_UP)

    const pids = { PostgreSQL: await postmaster(db), worker: worker.child.pid as number, web: web.child.pid as number }
    const budgets = { PostgreSQL: 3, worker: 3.5, web: 2 }
    rows.push(...(await compared('waited turn', agent, { least, db, pids, budgets, seconds })))
    progress('turns that web executes')
    rows.push(...(await executedByWeb(env, agent, { least, db, pids, seconds })))

    progress('WAL of turns and messages')
    rows.push(...(await written(db, app, agent)))
    rows.push({ what: 'memory of web under turns', value: await memory(web.child), unit: 'MiB', target: '<= 190' })
    rows.push({
      what: 'memory of worker under turns',
      value: await memory(worker.child),
      unit: 'MiB',
      target: '<= 180',
    })
  } finally {
    for (const { child } of [web, worker, floor]) child.kill('SIGKILL')
    await db.end()
    await double.close()
    await app.close()
  }
  return rows
}

type Compared = {
  least: Target
  db: pg.Client
  /** Processes whose time is measured, and the target of each in ms. */
  pids: Record<string, number>
  budgets: Record<string, number>
  seconds: number
}

/** Latency, throughput, first delta, processor time and WAL of a turn; the first three compared with the floor. */
async function compared(what: string, agent: Target, { least, db, pids, budgets, seconds }: Compared): Promise<Row[]> {
  const [p50, floorP50] = [percentile(await alone(agent, TURNS), 0.5), percentile(await alone(least, TURNS), 0.5)]
  const [before, walBefore] = [costs(pids), await walBytes(db)]
  const load = await together(agent, seconds)
  const [after, walAfter] = [costs(pids), await walBytes(db)]
  const floorLoad = await together(least, seconds)
  const delta = percentile(await firstDeltas(agent, '?stream=true'), 0.5)
  const floorDelta = percentile(await firstDeltas(least), 0.5)
  return [
    {
      what: `${what}, one caller, p50, of the floor`,
      value: rounded(p50 / floorP50),
      unit: 'x',
      target: '<= 4',
      note: `${rounded(p50)} ms against ${rounded(floorP50)} ms`,
    },
    {
      what: `${what}, ${CALLERS} callers, of the floor`,
      value: rounded(load.requests.average / floorLoad.requests.average, 3),
      unit: 'x',
      target: '>= 0.3',
      note: `${Math.round(load.requests.average)}/s against ${Math.round(floorLoad.requests.average)}/s; p50 ${load.latency.p50} ms, p99 ${load.latency.p99} ms`,
    },
    ...Object.entries(budgets).map(
      ([name, target]): Row => ({
        what: `processor time of a ${what}, ${name}`,
        value: rounded((after[name] - before[name]) / load.requests.total, 2),
        unit: 'ms',
        target: `<= ${target}`,
      }),
    ),
    {
      what: `WAL of a ${what}, ${CALLERS} callers`,
      value: rounded((walAfter - walBefore) / load.requests.total / 1024),
      unit: 'KiB',
      target: '<= 12',
    },
    {
      what: `request to first streamed delta of a ${what}, p50, of the floor`,
      value: rounded(delta / floorDelta),
      unit: 'x',
      target: '<= 5',
      note: `${rounded(delta)} ms against ${rounded(floorDelta)} ms`,
    },
  ]
}

/** The same turns with a web process that executes them (WEB_EXECUTES). */
async function executedByWeb(
  env: Record<string, string>,
  agent: Target,
  { pids, ...others }: Omit<Compared, 'budgets'>,
): Promise<Row[]> {
  const web = await start('src/web.ts', { ...env, WEB_EXECUTES: 'true' })
  web.child.stdout?.resume()
  try {
    const target = { ...agent, url: web.url }
    await alone(target, WARM_UP)
    return await compared('waited turn that web executes', target, {
      ...others,
      pids: { ...pids, web: web.child.pid as number },
      budgets: { PostgreSQL: 2.5, worker: 0.5, web: 3.5 },
    })
  } finally {
    web.child.kill('SIGKILL')
  }
}

/** Milliseconds until the first text of the model, on either wire. */
async function firstDeltas(target: Target, query = ''): Promise<number[]> {
  const taken: number[] = []
  for (let n = 0; n < STREAMS; n++) {
    const started = performance.now()
    const answer = await post(target, query, { prompt: 'one two three', stream: true })
    const decoder = new TextDecoder()
    let text = ''
    for await (const chunk of answer.body as ReadableStream<Uint8Array>) {
      text += decoder.decode(chunk, { stream: true })
      if (/event: delta|"content":"[^"]/.test(text)) break
    }
    taken.push(performance.now() - started)
    await sleep(20)
  }
  return taken
}

const costs = (pids: Record<string, number>): Record<string, number> =>
  Object.fromEntries(
    Object.entries(pids).map(([name, pid]) => [name, processorTime(pid, { children: name === 'PostgreSQL' })]),
  )

/** What a turn and a message of a session write, and what a turn leaves. */
async function written(db: pg.Client, app: AgentApp, agent: Target): Promise<Row[]> {
  const settle = () => sleep(1500)
  const key = client(agent.url, agent.token)
  const session = await openSession(key, app.agentId)
  await settle()
  const bytes = await tableBytes(db)
  const start = await walBytes(db)
  await alone(agent, TURNS)
  await settle()
  const between = await walBytes(db)
  const left = (await tableBytes(db)) - bytes
  const from = await walBytes(db)
  for (let n = 0; n < TURNS; n++) await session.say()
  await settle()
  const messages = (await walBytes(db)) - from
  const each = (total: number) => rounded(total / TURNS / 1024)
  return [
    { what: 'WAL of a waited turn', value: each(between - start), unit: 'KiB', target: '<= 12' },
    {
      what: 'WAL of a waited session message',
      value: each(messages),
      unit: 'KiB',
      target: '<= 25',
      note: `a conversation that grows to ${2 * TURNS} messages`,
    },
    { what: 'left in tables and indexes by a turn', value: each(left), unit: 'KiB', target: '<= 8' },
  ]
}

type Key = ReturnType<typeof client>

/** A session that answers every message. */
async function openSession(key: Key, agentId: string): Promise<{ say(): Promise<void> }> {
  const actor = await key.post('/actors', { name: 'caller' })
  const made = await key.post('/sessions', { agent_id: agentId, actor_id: actor.body.id, auto_generate: true })
  if (made.status !== 201) throw new Error(`a session answered ${made.status}: ${JSON.stringify(made.body)}`)
  return {
    async say() {
      const { status, body } = await key.post(`/sessions/${made.body.id}/messages?wait=true`, { message: 'hello' })
      if (status !== 201 || !body.reply) throw new Error(`a message answered ${status}: ${JSON.stringify(body)}`)
    },
  }
}

/**
 * Statements of one waited turn and one waited message, web and worker together. Idle polls are left out by counting
 * while the worker is woken.
 */
async function statements(): Promise<Row[]> {
  const app = await startAgentApp({ inProcess: true })
  const session = await openSession(app.key, app.agentId)
  const count = async (ask: () => Promise<unknown>): Promise<number> => {
    for (let n = 0; n < 5; n++) await ask()
    const counts: number[] = []
    for (let n = 0; n < 9; n++) {
      await sleep(137)
      const counter = countStatements()
      await ask()
      await sleep(15)
      counter.stop()
      counts.push(counter.value)
    }
    return percentile(counts, 0.5)
  }
  try {
    const turn = await count(() => app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' }))
    const message = await count(() => session.say())
    return [
      { what: 'statements of a waited turn', value: turn, unit: '', target: '<= 4' },
      { what: 'statements of a waited session message', value: message, unit: '', target: '<= 14' },
    ]
  } finally {
    await app.close()
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run(process.argv[2] ? Number(process.argv[2]) : undefined))
  process.exit(0)
}
