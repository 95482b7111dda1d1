import fs from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { Muster } from '../../client/dist/index.js'
import { User } from '../cli/support.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { startServer } from '../support/postgres.ts'

/**
 * Records what the command line and the client of this checkout exchange with its service, for
 * test/surfaces/earlier-clients.test.ts: `npm run build && node test/surfaces/record-exchanges.ts <file>`.
 */

/** A request and its answer, as they were sent; long texts and lists are shortened. */
export type Exchange = {
  /** Credential of the request. */
  as: 'key' | 'admin' | null
  method: string
  path: string
  headers: Record<string, string>
  body?: string
  status: number
  /** JSON, the events of a stream, or text. */
  answer: unknown
}

/** `known` has the ids of the application of the recording, by their place. */
export type Recording = { version: string; known: Record<string, string>; exchanges: Exchange[] }

/** The options of the application for a recording and its replay. */
export const EXCHANGE_APP = { workers: ['generation', 'orchestration', 'trigger', 'evaluation'] as const }

export const knownOf = (app: AgentApp): Record<string, string> => ({
  project: app.projectId,
  provider: app.providerId,
  agent: app.agentId,
  double: app.double.url,
})

const HEADERS = ['accept', 'content-type', 'idempotency-key', 'if-match', 'last-event-id']
const TEXT_MAX = 80

/** Returns the content of an answer: JSON, `[{ event, data }]` of a stream, otherwise text. */
export function contentOf(type: string, text: string): unknown {
  if (/^application\/json/.test(type)) return JSON.parse(text)
  if (!/^text\/event-stream/.test(type)) return text
  return text
    .split('\n\n')
    .filter(each => /^data: /m.test(each))
    .map(each => ({ event: /^event: (.*)$/m.exec(each)?.[1], data: JSON.parse(/^data: (.*)$/m.exec(each)![1]) }))
}

const shortened = (value: unknown): unknown => {
  if (typeof value === 'string') return value.length > TEXT_MAX ? `${value.slice(0, TEXT_MAX)}…` : value
  if (Array.isArray(value)) return value.slice(0, 2).map(shortened)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, shortened(each)]))
}

/** Passes requests on and remembers them. */
async function startRecorder(app: AgentApp, exchanges: Exchange[]) {
  const server = http.createServer(async (req, res) => {
    const chunks: Buffer[] = []
    for await (const chunk of req) chunks.push(chunk)
    const body = Buffer.concat(chunks)
    const { host: _, connection: __, ...headers } = req.headers as Record<string, string>
    const { method = '', url = '' } = req
    const response = await fetch(`${app.url}${url}`, { method, headers, ...(body.length > 0 ? { body } : {}) })
    const text = await response.text()
    const type = response.headers.get('content-type') ?? ''
    const token = headers.authorization?.slice('Bearer '.length)
    exchanges.push({
      as: token === app.key.token ? 'key' : token === undefined ? null : 'admin',
      method,
      path: url,
      headers: Object.fromEntries(HEADERS.flatMap(name => (headers[name] ? [[name, headers[name]]] : []))),
      ...(body.length > 0 ? { body: body.toString('utf8') } : {}),
      status: response.status,
      answer: /event-stream/.test(type) ? contentOf(type, text) : shortened(contentOf(type, text)),
    })
    res.writeHead(response.status, { 'content-type': type, etag: response.headers.get('etag') ?? '' }).end(text)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
}

/** Commands and calls that together use the parts of the service that applications depend on. */
async function use(app: AgentApp, url: string): Promise<void> {
  const user = new User(url, app.key.token)
  const admin = new User(url, app.admin.token)
  const of =
    (who: User) =>
    async (command: string, fields: object = {}, code = 0) => {
      const given = Object.keys(fields).length > 0 ? ['--body', JSON.stringify(fields)] : []
      const result = await who.run([...command.split(' '), ...given])
      if (result.code !== code) throw new Error(`muster ${command}: ${result.code} ${result.stderr}`)
      return code === 0 && /^\{.*\}\s*$/.test(result.stdout) ? JSON.parse(result.stdout) : null
    }
  const run = of(user)
  const manage = of(admin)

  await run('whoami')
  await run(`projects get ${app.projectId}`)
  const agent = await run('agents create', { name: 'desk', ai_provider_id: app.providerId, instructions: 'Be brief' })
  await run(`agents get ${agent.id}`)
  await run(`agents update ${agent.id}`, { instructions: 'Be polite' })
  await run(`agents versions list ${agent.id}`)
  await run(`agents versions get ${agent.id} 1`)
  await run('agents get agent_none', {}, 5)
  await run('agents create', { name: '', ai_provider_id: app.providerId }, 7)
  const { id: generation_id } = await run(`agents generate ${agent.id} --prompt hello`)
  await run(`agents generate ${agent.id} --prompt hello --events`)
  await run(`generations get ${generation_id}`)
  await run(`generations transcript ${generation_id}`)

  const actor = await run('actors create', { name: 'Ann', external_id: 'ann' })
  await run(`actors update ${actor.id}`, { name: 'Ann Lee' })
  const session = await run('sessions create', { agent_id: agent.id, actor_id: actor.id, auto_generate: true })
  await run(`sessions send ${session.id} --wait --message hello`)
  await run(`sessions messages list ${session.id}`)
  await run(`conversations messages list ${session.conversation_id}`)

  const path = user.file('note.txt', 'A note about returns.')
  const file = await run(`files upload --file ${path} --content-type text/plain`)
  await run(`files get ${file.id}`)
  await run(`files download ${file.id}`)
  const document = await run('documents create', { content: 'Returns are free for 30 days.', title: 'Returns' })
  await run(`documents get ${document.id}`)
  await run('knowledge search', { query: 'returns' })
  const store = await run('memory-stores create', { name: 'facts' })
  await run('memory-entries create', { memory_store_id: store.id, content: 'Ann prefers mail.' })
  for (const list of ['memories', 'memory-entries']) await run(`${list} list --memory-store-id ${store.id}`)

  const guardrail = await run('guardrails create', { name: 'rule', document: { class: 'C' } })
  await run(`guardrails get ${guardrail.id}`)
  const execute = { url: 'https://orders.example/search' }
  const tool = await run('tools create', {
    name: 'search_orders',
    type: 'http',
    execute,
    guardrail_ids: [guardrail.id],
  })
  await run(`tools update ${tool.id}`, { description: 'Finds orders' })
  const nodes = [{ id: 'sum', type: 'transform', expression: '1 + 1' }]
  const graph = await run('orchestrations create', { name: 'sum', nodes, edges: [] })
  await run('orchestrations validate', { nodes, edges: [] })
  const started = await run(`orchestration-runs create --orchestration-id ${graph.id} --wait`)
  await run(`orchestration-runs get ${started.id}`)
  const trigger = await run('triggers create', {
    name: 'hook',
    type: 'manual',
    target_type: 'orchestration',
    target_id: graph.id,
  })
  await run(`triggers fire ${trigger.id}`, { wait: true })
  await run(`trigger-firings list --trigger-id ${trigger.id}`)
  const webhook = await run('webhooks create', { name: 'desk', url: 'https://hook.example/x', events: ['agents.*'] })
  await run(`webhooks get ${webhook.id}`)
  await run(`webhook-deliveries list --webhook-id ${webhook.id}`)
  const dataset = await run('datasets create', { name: 'questions' })
  await run(`datasets items create ${dataset.id}`, {
    input: [{ role: 'user', content: 'hello' }],
    expected_output: 'echo: hello',
  })
  const exam = await run('evals create', {
    name: 'greeting',
    agent_id: agent.id,
    dataset_id: dataset.id,
    scorers: [{ type: 'exact_match' }],
    pass_threshold: 1,
  })
  const marked = await run(`evals runs create ${exam.id} --wait`)
  await run(`evals runs results list ${exam.id} ${marked.id}`)
  await run('formations validate', { template: { resources: {} } })
  await manage('quotas create', {
    project_id: app.projectId,
    scope: 'project',
    metric: 'tokens',
    window: 'calendar_month',
    limit: 1_000_000,
    mode: 'monitor',
  })
  await manage('users me')
  await run(`usage aggregate --group-by agent`)
  for (const [who, list] of [
    ...['agents', 'ai-providers', 'actors', 'sessions', 'conversations', 'generations', 'traces', 'files', 'documents'],
    ...['memory-stores', 'guardrails', 'tools', 'orchestrations', 'orchestration-runs'],
    ...['triggers', 'webhooks', 'datasets', 'evals', 'approvals', 'exceptions', 'events', 'activity', 'usage events'],
  ].map(list => [run, list] as const))
    await who(`${list} list --limit 2`)
  for (const list of ['projects', 'users', 'policies', 'project-keys', 'quotas', 'audit-log'])
    await manage(`${list} list --limit 2`)

  const muster = new Muster({ baseUrl: url, token: app.key.token as string, project: app.projectId })
  for await (const _ of muster.agents.generateStream({ agent_id: agent.id, prompt: 'hello' }));
  await muster.orchestrationRuns.create({ orchestration_id: graph.id }).settled()
  for await (const _ of muster.orchestrationRuns.stream({ orchestration_run_id: started.id }));
  await muster.sessions.update({ session_id: session.id, tags: { seen: 'yes' } })
  await muster.agents.delete({ agent_id: agent.id, force: true })
  for (const each of [user, admin]) each.close()
}

if (import.meta.main) {
  const database = await startServer()
  process.env.TEST_DATABASE_URL = database.url
  const app = await startAgentApp({ workers: [...EXCHANGE_APP.workers] })
  const exchanges: Exchange[] = []
  const { server, url } = await startRecorder(app, exchanges)
  await use(app, url)
  const { version } = JSON.parse(fs.readFileSync(new URL('../../package.json', import.meta.url), 'utf8'))
  const recording: Recording = { version, known: knownOf(app), exchanges }
  const lines = exchanges.map(each => JSON.stringify(each)).join(',\n')
  fs.writeFileSync(
    process.argv[2],
    `{"version":"${version}","known":${JSON.stringify(recording.known)},"exchanges":[\n${lines}\n]}\n`,
  )
  console.log(`${exchanges.length} exchanges`)
  server.close()
  server.closeAllConnections()
  await app.close()
  await database.stop()
  process.exit(0)
}
