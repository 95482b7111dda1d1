import { startDouble } from '#local/double/server.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { testEnvironment } from '../support/environment.ts'
import { start } from './http.ts'
import { percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'
import { alone, CALLERS, type Target, together } from './turn-load.ts'

/**
 * Turns that call a tool next to turns that do not, and direct calls of a tool next to a bare request through the egress
 * client; web and worker in two processes, model and tool answer immediately. Usage: node test/bench/run.ts tools
 */
const WARM_UP = 150
const TURNS = 300
const CALLS = 1000

export async function run(seconds = 8): Promise<Row[]> {
  const rows: Row[] = []
  const app = await startAgentApp({ workers: [] })
  const double = await startDouble({})
  const env = {
    ...testEnvironment(app.databaseUrl),
    LOG_LEVEL: 'info',
    WORKER_CONCURRENCY: '32',
    DATABASE_POOL_MAX: '20',
    EGRESS_ALLOW_HOSTS: '127.0.0.1',
    TOOL_URL: `${double.url}/healthz`,
  }
  const web = await start('src/web.ts', env)
  const worker = await start('jobs/worker.ts', env, ['generation'])
  const floor = await start('test/bench/floor.ts', env)
  for (const { child } of [web, worker, floor]) child.stdout?.resume()
  const token = app.key.token as string
  const admin = (path: string, body: object) => app.admin.post(path, { project_id: app.projectId, ...body })
  try {
    const execute = { method: 'GET', url: env.TOOL_URL }
    const tool = (await admin('/tools', { name: 'probe', execute })).body.id
    const agent = await app.agent({ tool_bindings: [{ tool_id: tool }] })
    const turn = (id: string, prompt: string): Target => ({
      url: web.url,
      path: `/api/v1/agents/${id}/generate`,
      token,
      body: { prompt },
    })
    const plain = turn(app.agentId, 'hello')
    const calling = turn(agent, '@double [{"tool_calls":[{"name":"probe","args":{}}]},{"text":"done"}]')
    for (const target of [plain, calling]) await alone(target, WARM_UP)
    const p50 = async (target: Target, count: number) => percentile(await alone(target, count), 0.5)
    const [without, one] = [await p50(plain, TURNS), await p50(calling, TURNS)]
    rows.push({
      what: 'waited turn with one tool call, p50, of one without tools',
      value: rounded(one / without, 2),
      unit: 'x',
      target: '<= 2.2',
      note: `${rounded(one)} ms against ${rounded(without)} ms`,
    })
    const [many, called] = [await together(plain, seconds), await together(calling, seconds)]
    rows.push({
      what: `turns with one tool call, ${CALLERS} callers, of those without`,
      value: rounded(called.requests.average / many.requests.average, 2),
      unit: 'x',
      target: '>= 0.45',
      note: `${Math.round(called.requests.average)}/s against ${Math.round(many.requests.average)}/s`,
    })

    const direct: Target = { url: web.url, path: `/api/v1/tools/${tool}/call`, token, body: {} }
    const bare: Target = { url: floor.url, path: '/called', token: '', body: {} }
    for (const target of [direct, bare]) await together(target, 2)
    const [calls, floorCalls] = [await together(direct, seconds), await together(bare, seconds)]
    rows.push({
      what: 'direct tool call, of a request through the egress client',
      value: rounded(calls.requests.average / floorCalls.requests.average, 2),
      unit: 'x',
      target: '>= 0.35',
      note: `${Math.round(calls.requests.average)}/s against ${Math.round(floorCalls.requests.average)}/s, ${CALLERS} callers`,
    })

    const rules = await Promise.all(
      Array.from({ length: 20 }, async (_, n) => {
        const document = { class: { if: [{ '<': [{ var: 'args.amount' }, n] }, 'B', 'A'] }, guard: true }
        return (await admin('/guardrails', { name: `rule ${n}`, document })).body.id as string
      }),
    )
    const held = (await admin('/tools', { name: 'held', execute, guardrail_ids: rules })).body.id
    const guarded = { ...direct, path: `/api/v1/tools/${held}/call` }
    for (const target of [direct, guarded]) await p50(target, CALLS / 4)
    const [free, ruled] = [await p50(direct, CALLS), await p50(guarded, CALLS)]
    rows.push({
      what: 'added to a call by 20 guardrails, p50',
      value: rounded(ruled - free, 2),
      unit: 'ms',
      target: '<= 1',
      note: `${rounded(ruled, 2)} ms against ${rounded(free, 2)} ms`,
    })
  } finally {
    for (const { child } of [web, worker, floor]) child.kill('SIGKILL')
    await double.close()
    await app.close()
  }
  return rows
}
