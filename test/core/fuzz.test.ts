import assert from 'node:assert/strict'
import { Agent, request as httpRequest } from 'node:http'
import net from 'node:net'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { sql } from '#core/db/sql.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import {
  badAuthorizations,
  codesOf,
  type Described,
  describedOperations,
  type FuzzRequest,
  type Ids,
  randomOf,
  rawGarbage,
  requestFor,
  withoutSharing,
} from '../support/fuzz.ts'

const SEED = Number(process.env.FUZZ_SEED ?? 20_261_121)
const REQUESTS = Number(process.env.FUZZ_REQUESTS ?? 10_000)
const FINDINGS = Number(process.env.FUZZ_FINDINGS ?? 30)
const AT_ONCE = 16
/** Far above what an answer takes on a busy machine, far below a hang. */
const BOUND_MS = 60_000

type Json = Record<string, any>
type Answered = { status: number; headers: Record<string, any>; text: string; ms: number }
type Finding = { what: string; seed: number; as: string; request: string; answer: string }

describe('ten thousand malformed requests', function () {
  this.timeout(600_000)
  let app: TestApp
  let document: Json
  let operations: Described[]
  let ids: Ids
  let homes: string[]
  let callers: { name: string; token: string | null; check: () => Promise<string | null> }[]
  const agent = new Agent({ keepAlive: true, maxSockets: AT_ONCE })

  before(async () => {
    // Files are one chunk: a download breaks off when a request takes its later chunks away, as it must.
    app = await startApp({
      together: true,
      env: {
        SYNC_WAIT_SECONDS: '1',
        ORCHESTRATION_WAIT_MAX_MS: '1000',
        TRIGGER_FIRE_WAIT_MAX_MS: '1000',
        FORMATION_DEPLOY_TIMEOUT_MS: '1000',
        TRUST_PROXY: '1',
        FILE_BLOB_CHUNK_BYTES: '524288',
      },
    })
    document = withoutSharing((await app.anonymous.get('//openapi.json')).body)
    operations = describedOperations(document)
    const own = await populated(app, 'own')
    const foreign = await populated(app, 'foreign')
    ids = { own: own.ids, foreign: foreign.ids, messages: own.messages }
    homes = [own.projectId, foreign.projectId]
    callers = await callersOf(app, own.projectId)
  })
  after(async () => {
    agent.destroy()
    await app?.close()
  })

  it('yield no 500, no hang, and nothing but the error shape', async () => {
    const findings: Finding[] = []
    const seen = new Map<string, number>()
    const done = new Set<string>()
    const validators = answerValidators(document)
    let next = 0
    const one = async (index: number) => {
      const random = randomOf(SEED * 1_000_003 + index)
      const described = operations[index % operations.length]
      const caller = callers[callerIndex(random.next())]
      const request = requestFor(described, random, within(described, ids, homes), document)
      const token = random.chance(0.04) ? random.pick(badAuthorizations) : caller.token && `Bearer ${caller.token}`
      if (token) request.headers.authorization = token
      if (endsASession(request) && caller.name !== 'throwaway') return
      const report = (what: string, answer: string) =>
        findings.push({ what, seed: index, as: caller.name, request: shown(request), answer: answer.slice(0, 600) })
      try {
        const answered = await send(app.url, request, agent)
        seen.set(String(answered.status), (seen.get(String(answered.status)) ?? 0) + 1)
        if (answered.status < 300) done.add(described.id)
        const wrong = judge(answered, request, described, validators)
        if (wrong) report(wrong, `${answered.status} ${answered.text}`)
        learn(described, request, answered, ids)
      } catch (error) {
        report('no answer', String(error))
      }
    }
    const worker = async () => {
      while (next < REQUESTS && findings.length < FINDINGS) {
        const index = next++
        await one(index)
        if (index % 500 === 499) await soothe(app)
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, worker))
    const log = app.logs.filter(line => /"level":"(error|fatal)"/.test(line))
    assert.equal(findings.length, 0, `FUZZ_SEED=${SEED}\n${summary(findings)}\n${log.slice(0, 5).join('')}`)
    assert.deepEqual(log.slice(0, 5), [], `FUZZ_SEED=${SEED}`)
    // The requests reached into the operations: valid ones were done, invalid ones refused at every stage.
    for (const status of ['200', '201', '204', '400', '401', '403', '404', '409'])
      assert.ok((seen.get(status) ?? 0) > 0, `no answer had status ${status}: ${JSON.stringify([...seen])}`)
    const never = operations.map(({ id }) => id).filter(id => !done.has(id))
    assert.ok(never.length < operations.length / 4, `never succeeded: ${never.join(', ')}`)
  })

  it('and bytes that are no requests end in a refusal in the error shape or a closed connection', async () => {
    const random = randomOf(SEED)
    const token = app.admin.token as string
    const one = async () => {
      const bytes = rawGarbage(random, token)
      const text = await exchange(app.url, bytes)
      for (const answer of text.split(/(?=HTTP\/1\.1 \d{3} )/)) {
        if (answer === '') continue
        const status = Number(answer.slice(9, 12))
        assert.ok(status < 500, `${bytes}\n${answer}`)
        if (status >= 400) assertShape(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4)))
        assert.match(answer, /\r\nx-request-id: /i)
      }
    }
    for (let round = 0; round < 8; round++) await Promise.all(Array.from({ length: 50 }, one))
  })

  it('leave the process unchanged', async () => {
    assert.equal((await app.anonymous.get('//readyz')).status, 200)
    for (const caller of callers) assert.equal(await caller.check(), null, caller.name)
    const open = () =>
      app.services.pool.anyFirst(sql.unsafe`
        select query from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null and state <> 'active'`)
    await eventually(async () => (await open()).length === 0, { what: 'the end of all transactions' })
    assert.equal(({} as Json).admin, undefined)
    assert.deepEqual(app.logs.filter(line => /"level":"(error|fatal)"/.test(line)).slice(0, 5), [])
  })
})

/** The first finding of each sort. */
function summary(findings: Finding[]): string {
  const sorts = new Map<string, Finding[]>()
  for (const finding of findings) sorts.set(finding.what, [...(sorts.get(finding.what) ?? []), finding])
  return [...sorts]
    .map(
      ([what, [first, ...more]]) =>
        `${what} (${1 + more.length})\n  ${first.seed} as ${first.as}: ${first.request}\n  ${first.answer}`,
    )
    .join('\n')
}

/** A project with a few of everything; `ids` by prefix. */
async function populated(
  app: TestApp,
  name: string,
): Promise<{ projectId: string; ids: Record<string, string[]>; messages: [string, string][] }> {
  const ids: Record<string, string[]> = {}
  const messages: [string, string][] = []
  const { id: projectId } = await app.project(name)
  const make = async (path: string, body: object) => {
    const made = await app.admin.post(path, body)
    assert.ok(made.status < 300, `${path} ${JSON.stringify(made.body)}`)
    const id = made.body.id as string
    const prefix = id.slice(0, -27)
    ids[prefix] = [...(ids[prefix] ?? []), id]
    return id
  }
  for (let count = 0; count < 6; count++) {
    const label = `${name} ${count}`
    await make('/projects', { name: label })
    await make('/users', { username: `${name}-${count}`, password: 'a fine password' })
    await make('/policies', { document: { statement: [{ effect: 'Allow', action: ['actors:*'], resource: ['*'] }] } })
    await make('/project-keys', { project_id: projectId })
    const secret = await make('/secrets', { project_id: projectId, name: label, value: 'v' })
    const webhook = await make('/webhooks', {
      project_id: projectId,
      name: label,
      url: 'http://127.0.0.1:9/',
      events: ['none.*'],
    })
    const sent = await app.admin.post(`/webhooks/${webhook}/test`)
    ids.whd = [...(ids.whd ?? []), sent.body.id]
    const provider = await make('/ai-providers', {
      project_id: projectId,
      name: label,
      provider: 'custom',
      default_model: 'm',
      base_url: 'http://127.0.0.1:9/v1',
      secret_id: secret,
    })
    const agentId = await make('/agents', { project_id: projectId, name: label, ai_provider_id: provider })
    const trigger = await make('/triggers', {
      project_id: projectId,
      name: label,
      type: count % 2 ? 'webhook' : 'manual',
      target_type: 'agent',
      target_id: agentId,
      input: { message: 'hello' },
    })
    const fired = await app.admin.post(`/triggers/${trigger}/fire?wait=false`)
    ids.trg_fire = [...(ids.trg_fire ?? []), fired.body.id]
    await make('/chats', { project_id: projectId, name: label, ai_provider_id: provider })
    await make('/shares', {
      project_id: projectId,
      resource: `srn:${projectId}:agent:${agentId}`,
      actions: ['agents:CreateAgentGeneration'],
      grantee: ids.proj[count],
    })
    await make('/tools', {
      project_id: projectId,
      name: label,
      execute: { url: 'http://127.0.0.1:9/{id}', headers: { 'X-Key': `{{secret:${secret}}}` } },
      ...(count % 2 ? { type: 'platform', actions: ['list-actors', 'create-actor'] } : {}),
    })
    const orchestration_id = await make('/orchestrations', {
      project_id: projectId,
      name: label,
      nodes: [{ id: 'a', type: 'human' }],
      edges: [],
    })
    await make('/orchestration-runs', { orchestration_id })
    const dataset_id = await make('/datasets', { project_id: projectId, name: label })
    await make(`/datasets/${dataset_id}/items`, { input: [{ role: 'user', content: label }] })
    const scorers = [{ type: 'exact_match' }]
    const measured = { project_id: projectId, name: label, agent_id: agentId, dataset_id, scorers }
    await make(`/evals/${await make('/evals', measured)}/runs`, {})
    const workflow_id = await make('/workflows', {
      project_id: projectId,
      name: label,
      states: [{ name: 'a', initial: true }, { name: 'b' }],
      transitions: [{ name: 'go', from: ['a', 'b'], to: 'b' }],
    })
    await make('/tasks', { workflow_id, project_id: projectId, title: label })
    await make('/guardrails', { project_id: projectId, name: label, document: { class: 'A' } })
    const actor = await make('/actors', { project_id: projectId, name: label, external_id: label })
    const about = await make('/cases', { project_id: projectId, title: label })
    await make(`/cases/${about}/evidence`, { name: label, kind: 'note', content: 'text' })
    const steps = [{ key: 'a', title: 'First', type: 'manual' }]
    const playbook_id = await make('/playbooks', { project_id: projectId, name: label, steps })
    const followed = await make('/cases', { project_id: projectId, title: label })
    await make('/playbook-executions', { case_id: followed, playbook_id })
    await make('/playbook-exports', { subject_type: 'case', subject_id: about })
    const conversation = await make('/conversations', { project_id: projectId, name: label })
    await make(`/cases/${about}/links`, { type: 'conversation', target_id: conversation })
    const message = await app.admin.post(`/conversations/${conversation}/messages`, { role: 'user', message: 'hello' })
    assert.equal(message.status, 201, JSON.stringify(message.body))
    messages.push([conversation, message.body.document_id])
    await make('/sessions', { project_id: projectId, agent_id: agentId, actor_id: actor })
    await make('/documents', { project_id: projectId, content: `${label} text`, path: `/records/${label}.md` })
    await make('/ingestion-rules', { project_id: projectId, agent_id: agentId, content_type_glob: `image/x-${count}` })
    await make('/metadata-schemas', {
      project_id: projectId,
      resource_type: 'document',
      path_prefix: `/judged/${count}`,
      schema: { type: 'object', required: ['team'] },
    })
    const memory_store_id = await make('/memory-stores', { project_id: projectId, name: label })
    await make('/memory-rules', { memory_store_id, on: 'generations.completed' })
    await make('/memories', { memory_store_id, content: `${label} is remembered` })
    await make('/memory-entries', { memory_store_id, content: `${label} is stated` })
    await make('/files', { project_id: projectId, prefix: '/records', filename: label })
    await make('/files/upload/base64', { project_id: projectId, content: 'eA==', filename: label })
    const grant = await app.admin.post('/files/presigned-url', { project_id: projectId })
    ids.upt = [...(ids.upt ?? []), grant.body.upload_token]
    await make('/quotas', {
      project_id: projectId,
      scope: 'project',
      metric: 'tokens',
      window: (['rolling_1m', 'rolling_1h', 'rolling_24h', 'calendar_month'] as const)[count % 4],
      limit: 1e9,
      mode: count < 4 ? 'monitor' : 'enforce',
    }).catch(() => {})
    const queued = await app.admin.post(`/agents/${agentId}/generate?wait=false`, { prompt: 'hello' })
    if (queued.status === 202) {
      ids.gen = [...(ids.gen ?? []), queued.body.generation_id]
      ids.trace = [...(ids.trace ?? []), queued.body.trace_id]
      const filed = await propose(app, queued.body.generation_id, { id: null, name: label }, { count })
      ids.apr = [...(ids.apr ?? []), filed.id]
    }
  }
  // Projects that may be deleted, and the project of all rows.
  ids.proj.push(projectId, projectId, projectId)
  for (const [path, prefix] of [
    ['/audit-log', 'audit'],
    ['/events', 'evt'],
  ]) {
    const { body } = await app.admin.get(`${path}?project_id=${projectId}&limit=10`)
    ids[prefix] = body.data.map((row: Json) => row.id)
  }
  return { projectId, ids, messages }
}

async function callersOf(app: TestApp, projectId: string) {
  const bound = await app.admin.post('/project-keys', { project_id: projectId })
  const policy = await app.admin.post('/policies', {
    document: {
      statement: [
        { effect: 'Allow', action: ['*'], resource: [`srn:${projectId}:*:*`] },
        {
          effect: 'Deny',
          action: ['*'],
          resource: ['*'],
          condition: { StringEquals: { 'svc:ResourceTag/team': 'finance' } },
        },
      ],
    },
  })
  assert.equal(policy.status, 201, JSON.stringify(policy.body))
  const scoped = await app.admin.post('/project-keys', { policy_ids: [policy.body.id] })
  assert.equal(scoped.status, 201, JSON.stringify(scoped.body))
  const throwaway = await app.user('throwaway', [{ statement: [{ effect: 'Allow', action: ['*'], resource: ['*'] }] }])
  const works = (client: Client) => async () => {
    const answered = await client.get('/actors')
    return answered.status === 200 ? null : JSON.stringify(answered.body)
  }
  return [
    { name: 'admin', token: app.admin.token, check: works(app.admin) },
    { name: 'bound key', token: bound.body.secret, check: works(app.as(bound.body.secret)) },
    { name: 'key with policies', token: scoped.body.secret, check: works(app.as(scoped.body.secret)) },
    { name: 'throwaway', token: throwaway.token, check: async () => null },
    { name: 'anonymous', token: null, check: async () => null },
  ]
}

/** Most requests come from callers who may do much: an immediate refusal tests little. */
const callerIndex = (roll: number): number => (roll < 0.4 ? 0 : roll < 0.65 ? 1 : roll < 0.85 ? 2 : roll < 0.95 ? 3 : 4)

/** Requests that end the sessions of the user who sends them. */
const endsASession = ({ path }: FuzzRequest): boolean => /^\/api\/v1\/+users\/me\/+(password|revoke-tokens)/i.test(path)

/**
 * The ids an operation may get. A provider that a request changed could point at a vendor: what calls one gets the
 * first, which nothing changes. The two projects that hold everything are not deleted.
 */
function within({ path, method }: Described, ids: Ids, homes: string[]): Ids {
  const calls = /\/ai-providers\/\{ai_provider_id\}\/(check|models)$/.test(path)
  const removes = method === 'DELETE' && path === '/api/v1/projects/{project_id}'
  const part = (all: Record<string, string[]>) => ({
    ...all,
    aip: calls ? all.aip.slice(0, 1) : all.aip.slice(1),
    proj: removes ? all.proj.filter(id => !homes.includes(id)) : all.proj,
  })
  return { ...ids, own: part(ids.own), foreign: part(ids.foreign) }
}

/** Lifts what the requests did to the project all of them work in. */
async function soothe(app: TestApp): Promise<void> {
  await app.services.pool.query(sql.unsafe`delete from quotas where metric = 'requests'`)
  await app.services.pool.query(sql.unsafe`update projects set paused_at = null where paused_at is not null`)
}

/** Records creations and deletions, so that later requests find something to work on. */
function learn(described: Described, request: FuzzRequest, answered: Answered, ids: Ids): void {
  if (answered.status === 204 && request.method === 'DELETE') {
    const deleted = request.path.split('?')[0].split('/').at(-1)
    for (const all of Object.values(ids.own))
      if (all.length > 3) all.splice(0, all.length, ...all.filter(id => id !== deleted))
    return
  }
  if (answered.status !== 201 || request.method !== 'POST') return
  const body = JSON.parse(answered.text) as Json
  if (described.id === 'createConversationMessage') ids.messages.push([request.path.split('/')[4], body.document_id])
  if (typeof body.upload_token === 'string') ids.own.upt.push(body.upload_token)
  const id = body.id
  if (typeof id !== 'string' || id.startsWith('aip_') || described.path.includes('clone')) return
  const all = ids.own[id.slice(0, -27)]
  if (all && all.length < 60) all.push(id)
}

function send(url: string, request: FuzzRequest, agent: Agent): Promise<Answered> {
  return new Promise((resolve, reject) => {
    const started = performance.now()
    const { hostname, port } = new URL(url)
    const headers: Record<string, string> = { ...request.headers }
    if (request.body) headers['content-length'] = String(request.body.length)
    const timer = setTimeout(() => req.destroy(new Error(`no answer within ${BOUND_MS} ms`)), BOUND_MS)
    const req = httpRequest({ hostname, port, agent, method: request.method, path: request.path, headers }, res => {
      const chunks: Buffer[] = []
      const done = () => {
        clearTimeout(timer)
        resolve({
          status: res.statusCode as number,
          headers: res.headers,
          text: Buffer.concat(chunks).toString(),
          ms: performance.now() - started,
        })
      }
      // A stream of a turn without a worker never ends; that it began is the answer.
      if (res.headers['content-type']?.startsWith('text/event-stream')) {
        done()
        res.destroy()
        return
      }
      res.on('data', chunk => chunks.push(chunk))
      res.on('end', done)
      res.on('error', reject)
    })
    req.on('error', error => {
      clearTimeout(timer)
      reject(error)
    })
    req.end(request.body ?? undefined)
  })
}

const catalogued = (code: unknown, document: Json): boolean =>
  typeof code === 'string' && Object.hasOwn(document['x-error-codes'], code)

function assertShape(body: Json): void {
  for (const name of ['code', 'message', 'hint', 'docs_url'])
    assert.equal(typeof body.error?.[name], 'string', JSON.stringify(body))
}

type Validators = {
  document: Json
  of(described: Described, status: number): ((value: unknown) => string | null) | null
}

/** Checks of answers against the schemas of the document. */
function answerValidators(document: Json): Validators {
  const ajv = new Ajv2020({ strict: false, validateFormats: false, allErrors: false })
  ajv.addSchema({ ...document, $id: 'openapi' })
  const made = new Map<string, ((value: unknown) => string | null) | null>()
  return {
    document,
    of({ method, path }, status) {
      const at = `/paths/${path.replaceAll('~', '~0').replaceAll('/', '~1')}/${method.toLowerCase()}/responses/${status}/content/application~1json/schema`
      if (!made.has(at)) {
        const schema =
          document.paths[path][method.toLowerCase()].responses[status]?.content?.['application/json']?.schema
        const validate = schema && ajv.compile({ $ref: `openapi#${encodeURI(at)}` })
        made.set(at, validate ? value => (validate(value) ? null : ajv.errorsText(validate.errors)) : null)
      }
      return made.get(at) ?? null
    },
  }
}

/** The error in an answer; null without one. */
function judge(answered: Answered, request: FuzzRequest, described: Described, validators: Validators): string | null {
  const { document } = validators
  const { status, text } = answered
  if (answered.ms > BOUND_MS) return `took ${Math.round(answered.ms)} ms`
  if (!answered.headers['x-request-id']) return 'has no X-Request-Id'
  if (request.method === 'OPTIONS') return status === 204 ? null : 'OPTIONS is not answered'
  if (request.method === 'HEAD')
    return text !== ''
      ? 'HEAD has a body'
      : described.operation.responses[status] || status < 500
        ? null
        : 'is an unexpected 5xx'
  const asDescribed = request.method === described.method && meets(request.path.split('?')[0], described.path)
  if (status >= 400) {
    let body: Json
    try {
      body = JSON.parse(text)
    } catch {
      return 'an error is not JSON'
    }
    const { error } = body
    for (const name of ['code', 'message', 'hint', 'docs_url'])
      if (typeof error?.[name] !== 'string' || error[name] === '') return `the error has no ${name}`
    if (!catalogued(error.code, document)) return 'the code is not catalogued'
    if (error.code === 'INTERNAL_ERROR') return 'INTERNAL_ERROR'
    if (error.code === 'REQUEST_REJECTED') return status < 500 ? null : 'REQUEST_REJECTED with a 5xx'
    if (document['x-error-codes'][error.code].status !== status) return 'the status is not that of the code'
    if (error.code === 'VALIDATION_FAILED' && !problemsFine(error.meta?.problems))
      return 'VALIDATION_FAILED without problems'
    if (asDescribed && !codesOf(described, status).includes(error.code))
      return `${error.code} is not in the description of ${described.id}`
    return null
  }
  if (status === 204 || status === 304) return text === '' ? null : `${status} has a body`
  if (!asDescribed) return null
  if (!described.operation.responses[status]) return `${status} is not in the description of ${described.id}`
  if (!String(answered.headers['content-type']).startsWith('application/json')) return null
  const invalid = validators.of(described, status)?.(JSON.parse(text))
  return invalid ? `the answer of ${described.id} is not what the description says: ${invalid}` : null
}

/** Whether a path is one of the template's, and of no other: `me` is a literal where other users have their id. */
const meets = (path: string, template: string): boolean => {
  const parts = template.split('/')
  const segments = path.split('/')
  return (
    segments.length === parts.length &&
    segments.every((segment, index) => (parts[index].startsWith('{') ? segment !== 'me' : segment === parts[index]))
  )
}

const problemsFine = (problems: unknown): boolean =>
  Array.isArray(problems) &&
  problems.length > 0 &&
  problems.every(
    problem =>
      /^[A-Z][A-Z0-9_]*$/.test(problem.code) && typeof problem.path === 'string' && typeof problem.message === 'string',
  )

const shown = ({ method, path, headers, body }: FuzzRequest): string =>
  `${method} ${path.slice(0, 300)} ${JSON.stringify({ ...headers, authorization: headers.authorization?.slice(0, 20) }).slice(0, 400)} ${body?.toString().slice(0, 700) ?? ''}`

/** Sends bytes and returns the response until the other side closes, or half a second of silence. */
function exchange(url: string, bytes: Buffer): Promise<string> {
  const { hostname, port } = new URL(url)
  return new Promise((resolve, reject) => {
    const socket = net.connect(Number(port), hostname)
    let text = ''
    const done = () => {
      socket.destroy()
      resolve(text)
    }
    socket.setTimeout(500, done)
    socket.on('data', chunk => {
      text += chunk
    })
    // A refusal may come, and the connection end, before all bytes are written.
    const ends = ['ECONNRESET', 'EPIPE']
    socket.on('error', error => (ends.includes((error as NodeJS.ErrnoException).code ?? '') ? done() : reject(error)))
    socket.on('close', done)
    socket.write(bytes)
  })
}
