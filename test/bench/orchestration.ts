import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import autocannon from 'autocannon'
import pg from 'pg'
import type { GraphDefinition, Node } from '#automation/orchestrations/definition/model.ts'
import { startDouble } from '#local/double/server.ts'
import { signatureOf } from '../automation/triggers-support.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import type { Client } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase } from '../support/postgres.ts'
import { resident } from '../support/processes.ts'
import { costRows, dbosProgram, floorProgram, postTo } from './costs.ts'
import { amount } from './fast.ts'
import { countStatements, start } from './http.ts'
import { percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'
import { CALLERS } from './turn-load.ts'

/**
 * Runs of orchestrations, web and worker in two processes with a tool and a model that answer immediately, next to turns, direct
 * calls of the tool and the same steps as a workflow of DBOS. Usage: node test/bench/run.ts orchestration
 */
const WARM_UP = amount(60, 5)
const RUNS = amount(200, 20)
/** Nodes of a chain. */
const CHAIN = 10
/** Runs that wait for a worker which then does nothing else. */
const QUEUED = amount(600, 64)
const ITEMS = amount(1000, 100)
/** Runs of a fan-out, as many as of DBOS (dbos.ts), and fan-outs. */
const FAN = 50
const FANS = amount(20, 5)
const SECONDS = amount(8, 2)
/** Workflows of DBOS with a queue, each of which waits for a poll. */
const POLLED = amount(7, 1)
/** Waited runs whose statements are counted. */
const COUNTED = amount(9, 3)
const HOOK_ROUNDS = amount(3, 1)

const MIB = 2 ** 20

const transform = (n: number): Node => ({
  id: `t${n}`,
  type: 'transform',
  expression: { '+': [{ var: 'input.n' }, n] },
})

const toolNode =
  (tool_id: string) =>
  (n: number): Node => ({ id: `c${n}`, type: 'tool', tool_id })

/** Nodes one after the other. */
function chain(count: number, ...kinds: ((n: number) => Node)[]): Pick<GraphDefinition, 'nodes' | 'edges'> {
  const nodes = Array.from({ length: count }, (_, n) => kinds[n % kinds.length](n))
  return { nodes, edges: nodes.slice(1).map(({ id }, n) => ({ from: nodes[n].id, to: id })) }
}

async function made(key: Client, path: string, body: object): Promise<string> {
  const answer = await key.post(path, body)
  if (answer.status !== 201) throw new Error(`${path} answered ${answer.status}: ${JSON.stringify(answer.body)}`)
  return answer.body.id
}

type Request = { url: string; token?: string | null; body?: object }

const headersOf = ({ token }: Request) => ({
  'content-type': 'application/json',
  ...(token ? { authorization: `Bearer ${token}` } : {}),
})

/** Milliseconds of each of `count` requests, one after the other. */
async function alone(request: Request, count: number): Promise<number[]> {
  const taken: number[] = []
  for (let n = 0; n < count; n++) {
    const started = performance.now()
    const answer = await fetch(request.url, {
      method: 'POST',
      headers: headersOf(request),
      body: JSON.stringify(request.body ?? {}),
    })
    const body = (await answer.json()) as { status?: string }
    taken.push(performance.now() - started)
    if (answer.status > 201 || !['succeeded', 'completed', undefined].includes(body.status))
      throw new Error(`${request.url} answered ${answer.status}: ${JSON.stringify(body)}`)
  }
  return taken
}

/** Requests a second of many concurrent callers. */
async function together(request: Request): Promise<number> {
  const result = await autocannon({
    url: request.url,
    method: 'POST',
    headers: headersOf(request),
    body: JSON.stringify(request.body ?? {}),
    connections: CALLERS,
    duration: SECONDS,
  })
  if (Object.keys(result.statusCodeStats).join() !== '201')
    throw new Error(`${request.url} answered ${JSON.stringify(result.statusCodeStats)}`)
  return result.requests.average
}

const median = async (request: Request, count: number) => percentile(await alone(request, count), 0.5)

export async function run(): Promise<Row[]> {
  const rows = await statements()
  const app = await startAgentApp({ workers: [] })
  const double = await startDouble({})
  const db = new pg.Client({ connectionString: app.databaseUrl })
  await db.connect()
  const env = {
    ...testEnvironment(app.databaseUrl),
    WORKER_CONCURRENCY: '32',
    ORCHESTRATION_WORKER_CONCURRENCY: '32',
    DATABASE_POOL_MAX: '20',
    EGRESS_ALLOW_HOSTS: '127.0.0.1',
    TOOL_URL: `${double.url}/healthz`,
  }
  const steps = { DATABASE_URL: await createDatabase(), TOOL_URL: env.TOOL_URL }
  rows.push(...(await costsOfRun(app, env, steps)))
  const [web, worker, dbos, dbosWorker, floor] = await Promise.all([
    start('src/web.ts', env),
    start('jobs/worker.ts', env, ['orchestration', 'generation']),
    start('test/bench/dbos.ts', steps),
    start('test/bench/dbos.ts', steps, ['worker']),
    start('test/bench/floor.ts', env),
  ])
  const processes = [web, worker, dbos, dbosWorker, floor]
  for (const { child } of processes) child.stdout?.resume()
  const token = app.key.token
  const orchestration = (body: object) => made(app.key, '/orchestrations', { name: 'bench', ...body })
  const waited = (orchestration_id: string, input: object = { n: 1 }): Request => ({
    url: `${web.url}/api/v1/orchestration-runs`,
    token,
    body: { orchestration_id, input, wait: true },
  })
  try {
    const tool = await made(app.key, '/tools', { name: 'probe', execute: { method: 'GET', url: env.TOOL_URL } })
    const turn: Request = {
      url: `${web.url}/api/v1/agents/${app.agentId}/generate?wait=true`,
      token,
      body: { prompt: 'hello' },
    }
    const inline = await orchestration(chain(1, transform))
    const one = waited(inline)
    for (const each of [turn, one]) await alone(each, WARM_UP)
    const [ours, theirs] = [await median(one, RUNS), await median(turn, RUNS)]
    rows.push({
      what: 'waited run of one transform node, p50, of a waited turn',
      value: rounded(ours / theirs, 2),
      unit: 'x',
      target: '<= 1.2',
      note: `${rounded(ours)} ms against ${rounded(theirs)} ms`,
    })

    const call: Request = { url: `${web.url}/api/v1/tools/${tool}/call`, token, body: {} }
    const ten = waited(await orchestration(chain(CHAIN, toolNode(tool))))
    const steady: Request = { url: `${dbos.url}/run` }
    for (const each of [ten, steady]) await alone(each, WARM_UP)
    await alone(call, WARM_UP * CHAIN)
    const direct = CHAIN * (await median(call, RUNS * 2))
    const [tenOurs, tenTheirs] = [await median(ten, RUNS), await median(steady, RUNS)]
    rows.push({
      what: `waited run of ${CHAIN} tool nodes in a row, p50, of ${CHAIN} direct calls`,
      value: rounded(tenOurs / direct, 2),
      unit: 'x',
      target: '<= 2.5',
      note: `${rounded(tenOurs)} ms against ${rounded(direct)} ms`,
    })
    const step = (ms: number) => `${rounded(ms / CHAIN, 2)} ms a step`
    rows.push({
      what: `${CHAIN} tool nodes, one caller, p50, of DBOS in one process`,
      value: rounded(tenOurs / tenTheirs, 2),
      unit: 'x',
      target: '<= 1',
      note: `${step(tenOurs)} against ${step(tenTheirs)}`,
    })
    const queued = await median({ url: `${dbos.url}/queued` }, POLLED)
    rows.push({
      what: `${CHAIN} tool nodes, one caller, p50, of DBOS with a queue and a worker`,
      value: rounded(tenOurs / queued, 3),
      unit: 'x',
      note: `${rounded(tenOurs)} ms against ${rounded(queued)} ms; its queues are polled every second`,
    })
    const [many, manyTheirs] = [CHAIN * (await together(ten)), CHAIN * (await together(steady))]
    rows.push({
      what: `steps a second, ${CALLERS} callers that wait, of DBOS in one process`,
      value: rounded(many / manyTheirs, 2),
      unit: 'x',
      target: '>= 1',
      note: `${Math.round(many)}/s against ${Math.round(manyTheirs)}/s`,
    })

    rows.push(
      await executed(db, app, { worker, web, graph: await orchestration(chain(CHAIN, transform, toolNode(tool))) }),
    )
    rows.push(await fanOutOfTools(orchestration, waited, { tool, dbos }))
    rows.push(...(await fanOut(app.key, await orchestration(loop(inline)), waited, worker)))
    worker.child.kill('SIGSTOP')
    rows.push(await hooks(app.key, { web, floor, graph: inline }))
  } finally {
    for (const { child } of processes) child.kill('SIGKILL')
    await db.end()
    await double.close()
    await app.close()
  }
  return rows
}

/** What a waited run of tool nodes in a row costs. */
async function costsOfRun(app: AgentApp, env: Record<string, string>, steps: Record<string, string>): Promise<Row[]> {
  const tool = await made(app.key, '/tools', { name: 'step', execute: { method: 'GET', url: env.TOOL_URL } })
  const graph = chain(CHAIN, toolNode(tool))
  const orchestration_id = await made(app.key, '/orchestrations', { name: 'costs', ...graph })
  const token = app.key.token as string
  return costRows(
    `waited run of ${CHAIN} tool nodes`,
    {
      processes: {
        web: { script: 'src/web.ts' },
        worker: { script: 'jobs/worker.ts', args: ['orchestration', 'generation'] },
      },
      env,
      call: url => postTo(`${url}/api/v1/orchestration-runs`, { orchestration_id, input: { n: 1 }, wait: true }, token),
    },
    {
      [`floor, ${CHAIN} calls`]: floorProgram(env, async url => {
        for (let n = 0; n < CHAIN; n++) await postTo(`${url}/called`, {})
      }),
      DBOS: dbosProgram(steps, '/run'),
    },
  )
}

/** Signed calls of a hook a second, while no worker takes its firings. */
async function hooks(
  key: Client,
  { web, floor, graph }: { web: Process; floor: Process; graph: string },
): Promise<Row> {
  const made = await key.post('/triggers', {
    name: 'bench',
    type: 'webhook',
    target_type: 'orchestration',
    target_id: graph,
  })
  if (made.status !== 201) throw new Error(JSON.stringify(made.body))
  const { id, project_id, secret } = made.body
  let calls = 0
  const accepted = async (url: string): Promise<number> => {
    const result = await autocannon({
      url,
      connections: CALLERS,
      duration: SECONDS,
      requests: [
        {
          method: 'POST',
          setupRequest(request) {
            const body = JSON.stringify({ n: ++calls, text: 'hello' })
            const headers = { 'content-type': 'application/json', 'X-Svc-Signature': signatureOf(secret, body) }
            return { ...request, body, headers }
          },
        },
      ],
    })
    if (Object.keys(result.statusCodeStats).join() !== '202')
      throw new Error(`${url} answered ${JSON.stringify(result.statusCodeStats)}`)
    return result.requests.average
  }
  const bare = `${floor.url}/firings?project_id=${project_id}&trigger_id=${id}`
  const ours: number[] = []
  const theirs: number[] = []
  for (let round = 0; round < HOOK_ROUNDS; round++) {
    theirs.push(await accepted(bare))
    ours.push(await accepted(`${web.url}/api/v1/hooks/triggers/${id}`))
  }
  const [rate, floorRate] = [percentile(ours, 0.5), percentile(theirs, 0.5)]
  return {
    what: `inbound hooks accepted a second, ${CALLERS} callers, of bare Express writing the same rows`,
    value: rounded(rate / floorRate, 2),
    unit: 'x',
    target: '>= 0.4',
    note: `${Math.round(rate)}/s against ${Math.round(floorRate)}/s`,
  }
}

type Process = Awaited<ReturnType<typeof start>>

/** Nodes a second of a worker that finds many runs queued. */
async function executed(
  db: pg.Client,
  app: AgentApp,
  { worker, web, graph }: { worker: Process; web: Process; graph: string },
): Promise<Row> {
  const key = { ...app.key }
  const begin = async () => {
    const answer = await fetch(`${web.url}/api/v1/orchestration-runs`, {
      method: 'POST',
      headers: headersOf({ url: '', token: key.token }),
      body: JSON.stringify({ orchestration_id: graph, input: { n: 1 } }),
    })
    if (answer.status !== 201) throw new Error(`a start answered ${answer.status}: ${await answer.text()}`)
    await answer.arrayBuffer()
  }
  worker.child.kill('SIGSTOP')
  for (let n = 0; n < QUEUED; n += CALLERS) await Promise.all(Array.from({ length: CALLERS }, begin))
  worker.child.kill('SIGCONT')
  for (;;) {
    const { rows } = await db.query(
      `select count(*)::int as runs, count(*) filter (where status = 'succeeded')::int as ended,
         extract(epoch from max(completed_at) - min(started_at))::float as seconds
       from orchestration_runs where orchestration_id = $1`,
      [graph],
    )
    const [{ runs, ended, seconds }] = rows
    if (ended < runs) {
      await sleep(250)
      continue
    }
    return {
      what: `nodes a second, one worker, graphs of ${CHAIN} nodes, half inline and half tool`,
      value: Math.round((runs * CHAIN) / seconds),
      unit: '1/s',
      target: '>= 400',
      note: `${runs} runs in ${rounded(seconds)} s`,
    }
  }
}

/** A graph that starts a run for each of its items, up to FAN at a time. */
const loop = (orchestration_id: string): Pick<GraphDefinition, 'nodes' | 'edges'> => ({
  nodes: [
    {
      id: 'each',
      type: 'loop',
      orchestration_id,
      collection: 'state.input.items',
      item_variable: 'n',
      parallelism: FAN,
    },
  ],
  edges: [],
})

/** Runs of one tool node that a run starts concurrently. */
async function fanOutOfTools(
  orchestration: (body: object) => Promise<string>,
  waited: (id: string, input: object) => Request,
  { tool, dbos }: { tool: string; dbos: Process },
): Promise<Row> {
  const single = await orchestration(chain(1, toolNode(tool)))
  const ours = waited(await orchestration(loop(single)), { items: Array(FAN).fill(1) })
  const theirs: Request = { url: `${dbos.url}/fan` }
  for (const request of [ours, theirs]) await alone(request, 2)
  const [ms, theirMs] = [await median(ours, FANS), await median(theirs, FANS)]
  return {
    what: `fan-out of ${FAN} runs of one tool node, one caller, p50, of DBOS in one process`,
    value: rounded(ms / theirMs, 2),
    unit: 'x',
    note: `${rounded(ms)} ms against ${rounded(theirMs)} ms`,
  }
}

/** A loop over many items, and its trace in the memory of the worker. */
async function fanOut(
  key: Client,
  graph: string,
  waited: (id: string, input: object) => Request,
  { child: { pid } }: Process,
): Promise<Row[]> {
  const items = (count: number) => ({ items: Array.from({ length: count }, (_, n) => n) })
  await alone(waited(graph, items(ITEMS / 5)), 1)
  const before = await resident(pid as number)
  const [ms] = await alone(waited(graph, items(ITEMS)), 1)
  const after = await resident(pid as number)
  const { body } = await key.get(`/orchestration-runs?orchestration_id=${graph}&limit=1`)
  const results = body.data[0].output?.each?.results?.length
  if (results !== ITEMS) throw new Error(`a loop over ${ITEMS} items has ${results} results`)
  const mib = (bytes: number) => Math.round(bytes / MIB)
  return [
    { what: `fan-out of ${ITEMS} items through a loop`, value: rounded(ms / 1000, 2), unit: 's', target: '<= 8' },
    {
      what: 'memory of the worker, after of before the fan-out',
      value: rounded(after.now / before.now, 2),
      unit: 'x',
      target: '<= 1.2',
      note: `${mib(after.now)} MiB against ${mib(before.now)} MiB; ${mib(after.most)} MiB at most`,
    },
  ]
}

/** Statements that one more inline node and one more tool node cost a waited run, web and worker together. */
async function statements(): Promise<Row[]> {
  const double = await startDouble({})
  const app = await startAgentApp({
    inProcess: true,
    workers: ['orchestration', 'generation'],
    env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
  })
  const count = async (graph: object): Promise<number> => {
    const orchestration_id = await made(app.key, '/orchestrations', { name: 'counted', ...graph })
    const request = { url: `${app.url}/api/v1/orchestration-runs`, token: app.key.token }
    const body = { orchestration_id, input: { n: 1 }, wait: true }
    await alone({ ...request, body }, 5)
    const counts: number[] = []
    for (let n = 0; n < COUNTED; n++) {
      await sleep(137)
      const counter = countStatements()
      await alone({ ...request, body }, 1)
      await sleep(15)
      counter.stop()
      counts.push(counter.value)
    }
    return percentile(counts, 0.5)
  }
  try {
    const execute = { method: 'GET', url: `${double.url}/healthz` }
    const tool = toolNode(await made(app.key, '/tools', { name: 'probe', execute }))
    const least = await count(chain(1, transform))
    const inline = (await count(chain(1 + CHAIN, transform))) - least
    const one = await count(chain(1, tool))
    const tools = (await count(chain(1 + CHAIN, tool))) - one
    const more = (what: string, total: number, target: string): Row => ({
      what: `statements of one more ${what} node`,
      value: rounded(total / CHAIN, 2),
      unit: '',
      target,
    })
    return [
      { what: 'statements of a waited run of one transform node', value: least, unit: '' },
      { what: 'statements of a waited run of one tool node', value: one, unit: '' },
      more('inline', inline, '<= 2'),
      more('tool', tools, '<= 5'),
    ]
  } finally {
    await app.close()
    await double.close()
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run())
  process.exit(0)
}
