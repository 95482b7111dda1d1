import type { ChildProcess } from 'node:child_process'
import { client, startApp, type TestApp, type TestProject } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { start } from './http.ts'
import { percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/** Stacks, with web and worker in two processes. Usage: node test/bench/run.ts formations */
const EACH = 50
const ROUNDS = 5
const LARGE = 500

const provider = { name: 'Bench', provider: 'ollama', default_model: 'demo' }
const tool = (n: number) => ({
  name: `tool_${n}`,
  type: 'http',
  description: 'Looks an order up',
  parameters: { type: 'object', properties: { order: { type: 'string' } } },
  execute: { url: 'https://orders.example.com/lookup', method: 'POST' },
})
const agent = (n: number, ai_provider_id: unknown, tool_id: unknown) => ({
  name: `agent ${n}`,
  ai_provider_id,
  instructions: 'Answer questions about orders.',
  tool_bindings: [{ tool_id }],
})

/** A provider, and as many agents as tools. */
function stack(count: number) {
  const numbers = Array.from({ length: count }, (_, n) => n)
  return {
    resources: Object.fromEntries([
      ['Provider', { type: 'ai_provider', properties: provider }],
      ...numbers.map(n => [`Tool${n}`, { type: 'tool', properties: tool(n) }]),
      ...numbers.map(n => [
        `Agent${n}`,
        { type: 'agent', properties: agent(n, { ref: 'Provider' }, { ref: `Tool${n}` }) },
      ]),
    ]),
  }
}

async function taken(work: () => Promise<unknown>): Promise<number> {
  const started = performance.now()
  await work()
  return performance.now() - started
}

export async function run(): Promise<Row[]> {
  const app = await startApp()
  const env = testEnvironment(app.databaseUrl)
  const processes: ChildProcess[] = []
  const begin = async (...at: Parameters<typeof start>) => {
    const started = await start(...at)
    started.child.stdout?.resume()
    processes.push(started.child)
    return started
  }
  try {
    const web = await begin('src/web.ts', env)
    await begin('jobs/worker.ts', env, ['orchestration'])
    return [await deploys(app, web.url), ...(await large(app, web.url))]
  } finally {
    for (const child of processes) child.kill('SIGKILL')
    await app.close()
  }
}

async function made(project: TestProject, url: string, path: string, body: object): Promise<any> {
  const answer = await client(url, project.key.token).post(path, body)
  if (answer.status > 201) throw new Error(`${path} answered ${answer.status}: ${JSON.stringify(answer.body)}`)
  return answer.body
}

/** A deploy and the creates of the same resources by one caller, in turn. */
async function deploys(app: TestApp, url: string): Promise<Row> {
  const times: { deploy: number[]; rest: number[] } = { deploy: [], rest: [] }
  for (let round = 0; round < ROUNDS; round++) {
    const one = await app.project()
    times.rest.push(
      await taken(async () => {
        const { id } = await made(one, url, '/ai-providers', provider)
        for (let n = 0; n < EACH; n++) {
          const { id: toolId } = await made(one, url, '/tools', tool(n))
          await made(one, url, '/agents', agent(n, id, toolId))
        }
      }),
    )
    const other = await app.project()
    times.deploy.push(
      await taken(async () => {
        const { status, error } = await made(other, url, '/formations', { name: 'bench', template: stack(EACH) })
        if (status !== 'active') throw new Error(`the deploy failed: ${JSON.stringify(error)}`)
      }),
    )
  }
  const [deploy, rest] = [percentile(times.deploy, 0.5), percentile(times.rest, 0.5)]
  return {
    what: `deploy of ${EACH} agents and ${EACH} tools, of the time of their creates by REST from one caller`,
    value: rounded(deploy / rest, 2),
    unit: 'x',
    target: '<= 1.3',
    note: `${Math.round(deploy)} ms against ${Math.round(rest)} ms`,
  }
}

/** A stack as large as templates may be: its plan without a change, the statements of that, and what validating it costs. */
async function large(app: TestApp, url: string): Promise<Row[]> {
  const project = await app.project()
  const template = stack((LARGE - 2) / 2)
  const { id, status, error } = await made(project, url, '/formations', { name: 'large', template })
  if (status !== 'active') throw new Error(`the deploy failed: ${JSON.stringify(error)}`)
  const plan = () => made(project, url, '/formations/plan', { formation_id: id })
  const plans: number[] = []
  for (let round = 0; round < ROUNDS; round++) plans.push(await taken(plan))
  const before = app.statements.length
  const { changes } = (await project.key.post('/formations/plan', { formation_id: id })).body
  const statements = app.statements.length - before
  if (changes.some(({ action }: any) => action !== 'no-op')) throw new Error('the plan has changes')
  const costs: number[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const usage = process.cpuUsage()
    await project.key.post('/formations/validate', { template })
    const { user, system } = process.cpuUsage(usage)
    costs.push((user + system) / 1000)
  }
  const removing = await taken(() => client(url, project.key.token).delete(`/formations/${id}`))
  const types = 3
  return [
    {
      what: `plan of ${LARGE - 1} resources without a change`,
      value: Math.round(percentile(plans, 0.5)),
      unit: 'ms',
      target: '< 1000',
    },
    { what: 'statements of it, a type', value: rounded(statements / types, 1), unit: '', target: '<= 3' },
    {
      what: `validate ${LARGE - 1} resources, with sending the request`,
      value: Math.round(percentile(costs, 0.5)),
      unit: 'ms of processor',
      target: '< 150',
    },
    { what: `teardown of ${LARGE - 1} resources`, value: Math.round(removing), unit: 'ms' },
  ]
}
