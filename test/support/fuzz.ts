import { deflateSync, gzipSync } from 'node:zlib'
import { type Kind, kinds } from '#core/api/kind.ts'
import { operations } from '#core/api/operation.ts'
import { canary } from './canaries.ts'

type Json = Record<string, any>

/** Numbers from a seed: the same seed gives the same requests. */
export type Random = {
  /** 0 <= n < 1 */
  next(): number
  int(below: number): number
  chance(probability: number): boolean
  pick<T>(items: readonly T[]): T
}

/** mulberry32 */
export function randomOf(seed: number): Random {
  let state = seed >>> 0
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
  const int = (below: number) => Math.floor(next() * below)
  return { next, int, chance: probability => next() < probability, pick: items => items[int(items.length)] }
}

/** An operation of the OpenAPI document. */
export type Described = { id: string; method: string; path: string; operation: Json }

/** The OpenAPI document with the parameters and answers that operations share in their places. */
export function withoutSharing(document: Json): Json {
  const resolved = (value: Json): Json =>
    typeof value.$ref === 'string'
      ? value.$ref
          .split('/')
          .slice(1)
          .reduce((node: Json, key: string) => node[key], document)
      : value
  const statusOf = (code: string): number => document['x-error-codes'][code].status
  /** The refusals of a set, one for each of its statuses. */
  const refusals = ({ 'x-statuses': statuses, 'x-error-codes': codes, ...rest }: Json): [string, Json][] =>
    statuses.map((status: number) => {
      const own = codes.filter((code: string) => statusOf(code) === status)
      return [String(status), { ...rest, 'x-error-codes': own.length > 0 ? own : ['REQUEST_REJECTED'] }]
    })
  const operation = ({ parameters, responses, ...rest }: Json): Json => ({
    ...rest,
    ...(parameters ? { parameters: parameters.map(resolved) } : {}),
    responses: Object.fromEntries(
      Object.entries<Json>(responses).flatMap(([status, each]) =>
        status === 'default' ? refusals(resolved(each)) : [[status, resolved(each)]],
      ),
    ),
  })
  const paths = Object.entries<Json>(document.paths).map(([path, methods]) => [
    path,
    Object.fromEntries(Object.entries<Json>(methods).map(([method, each]) => [method, operation(each)])),
  ])
  return { ...document, paths: Object.fromEntries(paths) }
}

/** Codes that the document gives an operation for a status. */
export const codesOf = ({ operation }: Described, status: number): string[] => [
  ...(operation.responses[status]?.['x-error-codes'] ?? []),
  ...(operation['x-error-codes'] ?? []),
]

export const describedOperations = (document: Json): Described[] =>
  Object.entries(document.paths as Record<string, Json>).flatMap(([path, methods]) =>
    Object.entries(methods as Record<string, Json>).map(([method, operation]) => ({
      id: operation.operationId,
      method: method.toUpperCase(),
      path,
      operation,
    })),
  )

/** Ids that exist, by the prefix of their kind; `foreign` holds ids of a project that bound callers cannot see. */
export type Ids = {
  own: Record<string, string[]>
  foreign: Record<string, string[]>
  /** Conversations with a message each. */
  messages: [string, string][]
}

export type FuzzRequest = { method: string; path: string; headers: Record<string, string>; body: Buffer | null }

const MISSING = '0123456789abcdefghjkmnpqrs'

/** Values that are named like no kind: upload tokens, and the key of a quota. */
const prefixes = new Map<string, string | null>([
  ['token', 'upt'],
  ['scope_ref', 'key'],
])

/** The prefix of the ids that a property or a path parameter of this name holds; null for other values. */
function prefixOf(name: string): string | null {
  let prefix = prefixes.get(name)
  if (prefix === undefined) {
    prefix = kindOf(name)?.prefix ?? null
    prefixes.set(name, prefix)
  }
  return prefix
}

/** `agent_id` and `agent_ids` name agents, so do `into_agent_id` and the short forms that routes use (`rule_id`). */
function kindOf(name: string): Kind | null | undefined {
  const item = operations.all().find(({ param }) => param === name)
  if (item) return item.kind
  const id = name.replace(/_ids$/, '_id')
  const all = kinds.all().map(kind => ({ kind, own: `${kind.name}_id` }))
  const found =
    all.find(({ own }) => own === id) ??
    all.find(({ own }) => id.endsWith('_id') && (id.endsWith(`_${own}`) || own.endsWith(`_${id}`)))
  return found?.kind
}

const longText = 'x'.repeat(20_000)

const nastyTexts = [
  '',
  ' ',
  '0',
  'NaN',
  'Infinity',
  '1e999',
  'null',
  'undefined',
  'true',
  '\0',
  'a\0b',
  '\ud800',
  'x\udfff',
  '\u202edrawkcab',
  '\ufeff',
  '😀'.repeat(60),
  `${'a'.repeat(199)}😀`,
  "'; drop table users; --",
  '%00%2e%2e%2f',
  '../../../../etc/passwd',
  '{{secret:sec_x}}',
  '${jndi}',
  '__proto__',
  'constructor',
  'toString',
  'srn:*:*:*',
  '0000-01-01T00:00:00Z',
  '9999-12-31T23:59:59.999-14:00',
  '2026-02-30T25:61:61Z',
  '+275760-09-13T00:00:00.000Z',
  '1970-01-01',
  '-infinity',
  'http://127.0.0.1:9/',
  'http://user:pass@127.0.0.1:9/',
  'http://[::1]:9/?a=b#c',
  'http://nowhere.invalid/',
  'http://127.0.0.1:99999/',
  'file:///etc/passwd',
  'javascript:alert(1)',
  'http://',
  '^(a+)+$',
  '*',
  '%',
  '\\',
  '_',
  '\r\nX-Injected: yes',
  longText,
]

const nastyNumbers = [0, -1, 1, 0.5, -0.0000001, 2 ** 31, -(2 ** 31) - 1, 2 ** 53, 2 ** 63, 1e21, 1e308, -1e308]

function deep(levels: number, array: boolean): unknown {
  let value: unknown = 1
  for (let level = 0; level < levels; level++) value = array ? [value] : { a: value }
  return value
}

const polluting = () =>
  JSON.parse(
    '{"__proto__":{"admin":true},"constructor":{"prototype":{"admin":true}},"toString":1,"hasOwnProperty":null}',
  )

/** A value of any type, most often one invalid at its place. */
function nasty(random: Random, ids: Ids): unknown {
  switch (random.int(12)) {
    case 0:
      return null
    case 1:
      return random.chance(0.5)
    case 2:
    case 3:
      return random.pick(nastyNumbers)
    case 4:
    case 5:
    case 6:
      return random.pick(nastyTexts)
    case 7:
      return random.pick([[], {}, [[]], [null], [{}], [''], { '': '' }, { a: null }, [0, '0', 0]])
    case 8:
      return random.pick([() => deep(30, true), () => deep(30, false), () => deep(70, false), () => deep(2000, true)])()
    case 9:
      return polluting()
    case 10:
      return random.pick([
        () => Array.from({ length: 1001 }, (_, index) => index),
        () => Object.fromEntries(Array.from({ length: 60 }, (_, index) => [`k${index}`, 'v'])),
        () => ({ ['k'.repeat(300)]: 'v'.repeat(300) }),
      ])()
    default:
      return anyId(random, ids)
  }
}

function anyId(random: Random, ids: Ids): string {
  const side = random.chance(0.6) ? ids.own : ids.foreign
  const all = side[random.pick(Object.keys(side))]
  return all.length > 0 ? random.pick(all) : `proj_${MISSING}`
}

/** An id for a name such as `agent_id`: of its kind and real more often than not. */
function idFor(random: Random, ids: Ids, name: string): string {
  const kind = prefixOf(name) ?? 'proj'
  const roll = random.next()
  if (roll < 0.7 && ids.own[kind]?.length) return random.pick(ids.own[kind])
  if (roll < 0.8 && ids.foreign[kind]?.length) return random.pick(ids.foreign[kind])
  if (roll < 0.9) return `${kind}_${MISSING}`
  return anyId(random, ids)
}

/** Depth from which samples have only required fields. */
const REQUIRED_ONLY = 6

/** A value that the schema accepts as far as a schema can say. */
export function sample(schema: Json, name: string, random: Random, ids: Ids, document: Json, depth = 0): unknown {
  if (schema.$ref) {
    const target = (schema.$ref as string).split('/').slice(1)
    return sample(
      target.reduce((node, key) => node[key], document),
      name,
      random,
      ids,
      document,
      depth,
    )
  }
  if (schema.const !== undefined) return schema.const
  if (schema.enum) return random.pick(schema.enum as unknown[])
  const choices = (schema.anyOf ?? schema.oneOf) as Json[] | undefined
  if (choices) return sample(random.pick(choices), name, random, ids, document, depth + 1)
  if (schema.allOf)
    return Object.assign(
      {},
      ...(schema.allOf as Json[]).map(part => sample(part, name, random, ids, document, depth + 1)),
    )
  const type = Array.isArray(schema.type) ? random.pick(schema.type as string[]) : schema.type
  switch (type) {
    case 'string':
      return sampleText(schema, name, random, ids)
    case 'integer':
    case 'number': {
      const low = Math.max(schema.minimum ?? schema.exclusiveMinimum ?? 0, -1000)
      const high = Math.min(schema.maximum ?? schema.exclusiveMaximum ?? low + 1000, low + 1000)
      return type === 'integer'
        ? Math.floor(low + 1 + random.next() * (high - low - 1))
        : low + random.next() * (high - low)
    }
    case 'boolean':
      return random.chance(0.5)
    case 'null':
      return null
    case 'array': {
      const length = Math.max(schema.minItems ?? 0, random.int(3))
      return Array.from({ length }, () => sample(schema.items ?? {}, name, random, ids, document, depth + 1))
    }
    case 'object': {
      const out: Json = {}
      const required = new Set((schema.required ?? []) as string[])
      for (const [key, property] of Object.entries((schema.properties ?? {}) as Record<string, Json>))
        if (required.has(key) || (depth < REQUIRED_ONLY && random.chance(key === 'project_id' ? 0.85 : 0.3)))
          out[key] = sample(property, key, random, ids, document, depth + 1)
      if (!schema.properties && typeof schema.additionalProperties === 'object' && depth < REQUIRED_ONLY)
        for (let count = random.int(3); count > 0; count--)
          out[`key${count}`] = sample(schema.additionalProperties, 'value', random, ids, document, depth + 1)
      return out
    }
    default:
      return random.pick<unknown>(['text', 1, true, null, { a: 1 }, ['a']])
  }
}

/** Fields of content, which no span contains. */
const CONTENT = new Set([
  'content',
  'description',
  'filename',
  'greeting',
  'instructions',
  'message',
  'prompt',
  'query',
  'text',
  'title',
])

function sampleText(schema: Json, name: string, random: Random, ids: Ids): string {
  if (prefixOf(name)) return idFor(random, ids, name)
  if (name === 'version') return '1'
  if (schema.contentEncoding === 'base64') return fileBytes(random).toString('base64')
  if (name.endsWith('url')) return random.pick(['http://127.0.0.1:9/hook', 'http://nowhere.invalid/x'])
  if (schema.format === 'date-time' || name.endsWith('_at'))
    return random.pick(['2030-01-01T00:00:00.000Z', '2020-01-01T00:00:00Z', '2026-11-21'])
  if (name === 'events') return random.pick(['*', 'actors.*', 'actors.created', 'nothing.here'])
  if (name === 'actions' || name === 'action')
    return random.pick(['*', 'actors:*', 'actors:GetActor', 'secrets:ListSecrets', 'bogus:Action'])
  if (name === 'resources' || name === 'resource')
    return random.pick(['*', 'srn:*:*:*', `srn:${idFor(random, ids, 'project_id')}:*:*`])
  if (name === 'metric' || name === 'scope' || name === 'window') return name
  const low = schema.minLength ?? 0
  const high = Math.min(schema.maxLength ?? 40, 40)
  const picked = random.pick(['text', 'Grüße 😀', 'a-b_c.d', 'x', `n${random.int(1e6)}`, 'two words'])
  const text = CONTENT.has(name) ? `${canary(name)} ${picked}` : picked
  return text.padEnd(low, 'x').slice(0, Math.max(low, high))
}

/** Puts something else at one or more places of a value. */
function spoil(value: unknown, random: Random, ids: Ids): unknown {
  const places: { holder: any; key: string | number }[] = []
  const walk = (node: unknown) => {
    if (typeof node !== 'object' || node === null || places.length > 200) return
    for (const key of Object.keys(node)) {
      places.push({ holder: node, key })
      walk((node as Json)[key])
    }
  }
  walk(value)
  for (let count = random.chance(0.7) ? 1 : 3; count > 0; count--) {
    const roll = random.next()
    if (places.length === 0 || roll < 0.1) {
      if (typeof value === 'object' && value !== null && !Array.isArray(value))
        (value as Json)[random.pick(['extra', 'id', 'created_at', '', 'a.b', 'projectId'])] = nasty(random, ids)
      continue
    }
    const { holder, key } = random.pick(places)
    if (roll < 0.2) delete holder[key]
    else if (roll < 0.3) holder[key] = [holder[key]]
    else if (roll < 0.35) holder[key] = JSON.stringify(holder[key])
    else holder[key] = nasty(random, ids)
  }
  return value
}

const statement = (random: Random, ids: Ids) => ({
  effect: random.pick(['Allow', 'Deny']),
  action: [random.pick(['actors:*', 'secrets:GetSecret', '*', 'quotas:ListQuotas'])],
  resource: [random.pick(['*', `srn:${random.pick(ids.own.proj)}:*:*`])],
  ...(random.chance(0.3) ? { condition: { StringEquals: { 'svc:ResourceTag/team': 'finance' } } } : {}),
})

const guardrailDocument = (random: Random) =>
  random.pick([
    { class: random.pick(['A', 'B', 'C', 'D']) },
    {
      class: { if: [{ var: 'args.amount' }, 'B', 'A'] },
      guard: { '<': [{ var: 'context.spent' }, 5] },
      escalate: true,
    },
  ])

const questions = (random: Random) => [
  { type: 'predicate', name: `q${random.int(9)}`, instructions: 'Is it?' },
  ...(random.chance(0.5)
    ? [
        {
          type: 'score',
          name: 's',
          instructions: 'How?',
          levels: ['a', 'b'].map(label => ({ label, description: 'x' })),
        },
      ]
    : []),
]

/** Bodies whose parts must fit each other, which a schema does not say. */
const playbookSteps = (random: Random): unknown[] => [
  { key: 'a', title: 'First', type: 'manual', skippable: true },
  random.pick([
    { key: 'b', title: 'Second', type: 'manual' },
    { key: 'b', title: 'Second', type: 'wait', duration_seconds: 5 },
  ]),
]

const examples: Partial<Record<string, (random: Random, ids: Ids) => unknown>> = {
  loginUser: () => ({ username: 'nobody', password: 'wrong password' }),
  createUser: random => ({ username: `u${random.int(1e9)}`, password: 'a fine password', role: 'user' }),
  resetUserPassword: () => ({ password: 'another password' }),
  createPolicy: (random, ids) => ({ document: { statement: [statement(random, ids)] } }),
  replacePolicy: (random, ids) => ({ document: { statement: [statement(random, ids)] } }),
  updatePolicy: (random, ids) => ({ document: { statement: [statement(random, ids)] } }),
  simulatePolicies: (random, ids) => ({
    user_id: random.pick(ids.own.user),
    action: 'actors:GetActor',
    resource: `srn:${random.pick(ids.own.proj)}:actor:*`,
  }),
  setUserPolicies: (random, ids) => ({ policy_ids: [random.pick(ids.own.pol)] }),
  cloneProject: random => ({ name: `copy ${random.int(1e6)}` }),
  createProjectKey: (random, ids) => ({ project_id: random.pick(ids.own.proj), name: 'key' }),
  createApiKey: (random, ids) => ({ projectId: random.pick(ids.own.proj) }),
  updateProjectKey: () => ({ name: 'renamed' }),
  rotateProjectKey: random => ({ grace_seconds: random.int(100) }),
  createSecret: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: 'secret',
    value: `${canary('secret')} ${random.int(9)}`,
  }),
  updateSecret: random => ({ value: `value ${random.int(9)}` }),
  createQuota: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    scope: 'project',
    metric: random.pick(['tokens', 'requests', 'cost_usd']),
    window: random.pick(['rolling_1m', 'rolling_1h', 'rolling_24h', 'calendar_month']),
    limit: 1 + random.int(1e6),
    mode: 'monitor',
  }),
  createGuardrail: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: `g${random.int(1e6)}`,
    document: guardrailDocument(random),
  }),
  updateGuardrail: random => ({ document: guardrailDocument(random) }),
  evaluateGuardrail: random => ({ args: { amount: random.int(10) }, document: guardrailDocument(random) }),
  createOrchestration: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: `graph ${random.int(1e6)}`,
    nodes: graphNodes(random),
    edges: [{ from: 'a', to: 'b' }],
  }),
  updateOrchestration: random => ({ nodes: graphNodes(random), edges: [{ from: 'a', to: 'b' }] }),
  startRun: (random, ids) => ({
    orchestration_id: random.pick(ids.own.orch),
    input: { n: random.int(9) },
  }),
  createEval: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: `eval ${random.int(1e9)}`,
    agent_id: random.pick(ids.own.agent),
    dataset_id: random.pick(ids.own.dset),
    scorers: [random.pick([{ type: 'exact_match' }, { type: 'contains', value: 'x' }])],
  }),
  updateEval: random => ({ scorers: [{ type: 'contains', value: `${random.int(9)}` }] }),
  putEval: random => ({ pass_threshold: random.int(2) }),
  createDatasetItem: random => ({ input: [{ role: 'user', content: `q${random.int(9)}` }], metadata: { n: 1 } }),
  createMemoryRule: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    memory_store_id: random.pick(ids.own.mstore),
    on: 'generations.completed',
    agent_id: random.pick(ids.own.agent),
  }),
  createFormation: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: `formation ${random.int(1e9)}`,
    template: { resources: { Store: { type: 'memory_store', properties: { name: `store ${random.int(9)}` } } } },
  }),
  createWorkflow: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: `workflow ${random.int(1e9)}`,
    states: workflowStates(random),
    transitions: [{ name: 'go', from: ['a'], to: 'b' }],
  }),
  updateWorkflow: random => ({
    states: workflowStates(random),
    transitions: [{ name: 'go', from: ['a', 'b'], to: 'b', guard: { '==': [random.int(2), 1] } }],
  }),
  createTask: (random, ids) => ({
    workflow_id: random.pick(ids.own.wfl),
    project_id: random.pick(ids.own.proj),
    title: `task ${random.int(1e6)}`,
    payload: { n: random.int(9) },
  }),
  updateTask: random => ({ payload: { n: random.int(9) } }),
  transitionTask: () => ({ transition: 'go' }),
  createMemoryStore: (random, ids) => ({ project_id: random.pick(ids.own.proj), name: `store ${random.int(9)}` }),
  updateMemoryStore: random => ({ name: `store ${random.int(9)}` }),
  replaceMemoryStore: random => ({ name: `store ${random.int(9)}` }),
  createMemory: (random, ids) => ({
    memory_store_id: random.pick(ids.own.mstore),
    content: `fact ${random.int(99)}`,
  }),
  createMemoryEntry: (random, ids) => ({
    memory_store_id: random.pick(ids.own.mstore),
    content: `fact ${random.int(99)}`,
  }),
  updateMemory: random => ({ content: `fact ${random.int(99)}` }),
  replaceMemory: random => ({ content: `fact ${random.int(99)}` }),
  updateQuota: random => ({ limit: 1 + random.int(1e6) }),
  redispatchEvent: (random, ids) => ({ webhook_id: random.pick(ids.own.wh) }),
  redeliverWebhookDeliveries: (random, ids) => ({ webhook_id: random.pick(ids.own.wh) }),
  createShare: (random, ids) => {
    const project_id = ids.own.proj[0]
    const kind = random.pick(['tool', 'agent'])
    return {
      project_id,
      resource: `srn:${project_id}:${kind}:${random.pick(ids.own[kind])}`,
      actions: [kind === 'tool' ? 'tools:CallTool' : 'agents:CreateAgentGeneration'],
      grantee: random.pick(ids.foreign.proj),
    }
  },
  createFile: (random, ids) => ({ project_id: random.pick(ids.own.proj), filename: `f${random.int(1e9)}` }),
  uploadFileBase64: (random, ids) => ({ project_id: random.pick(ids.own.proj), content: 'eA==' }),
  createPresignedUrl: (random, ids) => ({ project_id: random.pick(ids.own.proj), prefix: '/in' }),
  createDocument: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    content: random.pick(['text', 'Ein Satz. '.repeat(500), '# head\n\nwords', '', ' ']),
    path: random.pick([null, `/docs/${random.int(1e6)}.md`]),
    chunk_strategy: random.pick(['whole', 'size', 'auto']),
    metadata: random.pick([null, { team: 'a' }, { team: 1 }]),
  }),
  updateDocument: random =>
    random.pick([
      { content: `text ${random.int(9)}` },
      { append: ' more' },
      { title: 't' },
      { chunk_strategy: 'auto' },
    ]),
  ingestDocument: (random, ids) => ({ project_id: random.pick(ids.own.proj), file_id: random.pick(ids.own.file) }),
  reingestDocument: () => ({}),
  searchKnowledge: random => ({ query: random.pick(['text', '"ein satz" -words', '???']), limit: 5 }),
  createIngestionRule: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    agent_id: random.pick(ids.own.agent),
    content_type_glob: `image/x${random.int(1e6)}`,
  }),
  updateIngestionRule: () => ({ chunk_strategy: 'auto' }),
  createMetadataSchema: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    resource_type: random.pick(['document', 'file']),
    path_prefix: `/docs/${random.int(1e6)}`,
    schema: { type: 'object', properties: { team: { type: 'string' } } },
  }),
  createAiProvider: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: `provider ${random.int(1e6)}`,
    provider: 'custom',
    default_model: 'm',
    base_url: 'http://127.0.0.1:9/v1',
  }),
  createAgent: (random, ids) => ({ project_id: random.pick(ids.own.proj), ai_provider_id: random.pick(ids.own.aip) }),
  createChat: (random, ids) => ({ project_id: random.pick(ids.own.proj), ai_provider_id: random.pick(ids.own.aip) }),
  createChatCompletion: (random, ids) => ({
    chat_id: random.pick(ids.own.chat),
    messages: [{ role: 'user', content: 'hello' }],
    ...(random.chance(0.3) ? { stream: true } : {}),
  }),
  createTrigger: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: `trigger ${random.int(1e9)}`,
    target_type: 'agent',
    target_id: random.pick(ids.own.agent),
    input: { message: 'hello' },
    ...random.pick([
      { type: 'manual' },
      { type: 'webhook' },
      { type: 'schedule', cron: '0 9 1 1 *', timezone: 'Europe/Berlin' },
      { type: 'event', event_pattern: 'actors.deleted' },
    ]),
  }),
  createCase: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    title: `case ${random.int(1e6)}`,
    ...random.pick([{}, { external_id: `x-${random.int(3)}` }, { fields: { n: random.int(9) }, priority: 'high' }]),
  }),
  updateCase: random => ({ title: `case ${random.int(1e6)}`, fields: { n: random.int(9) } }),
  resolveCase: () => ({ outcome: 'done' }),
  closeCase: () => ({}),
  reopenCase: () => ({ reason: 'again' }),
  commentCase: () => ({ body: 'text' }),
  addCaseEvidence: random =>
    random.pick([
      { name: 'n', kind: 'note', content: { a: 1 } },
      { name: 'l', kind: 'link', url: 'https://example.com' },
    ]),
  withdrawCaseEvidence: () => ({ reason: 'wrong' }),
  linkCase: (random, ids) => ({ type: 'file', target_id: random.pick(ids.own.file) }),
  createPlaybook: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: `playbook ${random.int(1e9)}`,
    steps: playbookSteps(random),
  }),
  updatePlaybook: random => ({ steps: playbookSteps(random) }),
  validatePlaybook: random => ({ steps: playbookSteps(random) }),
  startPlaybookExecution: (random, ids) => ({
    case_id: random.pick(ids.own.case),
    playbook_id: random.pick(ids.own.pbk),
    input: { n: random.int(9) },
  }),
  skipPlaybookStep: () => ({ reason: 'not needed' }),
  assignPlaybookStep: () => ({ assignee: 'ann' }),
  createExport: (random, ids) => ({
    subject_type: 'case',
    subject_id: random.pick(ids.own.case),
    ...random.pick([{}, { formats: ['html'] }, { formats: ['json', 'html'] }]),
  }),
  updateTrigger: random => ({ description: `at ${random.int(1e9)}`, active: random.chance(0.5) }),
  fireTrigger: () => ({ input: { message: 'hello' }, wait: false }),
  createDecider: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    name: `decider ${random.int(1e9)}`,
    agent_id: random.pick(ids.own.agent),
    questions: questions(random),
  }),
  updateDecider: random => ({ questions: questions(random) }),
  createDecision: random => ({ input: random.pick(['text', { a: [1] }, [{ role: 'user', content: 'x' }]]) }),
  createDecisionBatch: () => ({ inputs: [{ input: 'one' }, { input: 2 }] }),
  createInlineDecision: (random, ids) => ({
    project_id: random.pick(ids.own.proj),
    agent_id: random.pick(ids.own.agent),
    questions: questions(random),
    input: 'text',
  }),
  createAgentGeneration: random => ({ prompt: canary('prompt'), ...(random.chance(0.3) ? { stream: true } : {}) }),
  generateConversationMessage: (random, ids) => ({ agent_id: random.pick(ids.own.agent) }),
  createSession: (random, ids) => ({ agent_id: random.pick(ids.own.agent) }),
  updateSession: random => ({ name: `renamed ${random.int(9)}`, tags: { team: 'finance' } }),
  generateSessionReply: () => ({ on_busy: 'queue' }),
  mergeActor: (random, ids) => ({ into_actor_id: random.pick(ids.own.actor) }),
  updateConversationMessage: () => ({ metadata: { seen: true } }),
}

const workflowStates = (random: Random): Json[] => [
  { name: 'a', initial: true, stalled_after: 1 + random.int(1000) },
  { name: 'b', terminal: random.chance(0.5) },
]

const graphNodes = (random: Random): Json[] => [
  { id: 'a', type: 'transform', expression: { '+': [{ var: 'input.n' }, random.int(9)] } },
  { id: 'b', type: 'human', prompt: 'Go on?' },
]

/** The body of a create that should be accepted: an example if it exists, else the fields of its schema. */
export function createBody({ id, operation }: Described, random: Random, ids: Ids, document: Json): Json {
  const schema = operation.requestBody.content['application/json'].schema as Json
  const { properties } = schema.$ref ? document.components.schemas[schema.$ref.split('/').at(-1)] : schema
  const body = (examples[id]?.(random, ids) ?? sample(schema, '', random, ids, document, REQUIRED_ONLY)) as Json
  return properties?.project_id && ids.own.proj ? { project_id: ids.own.proj[0], ...body } : body
}

const TOO_DEEP = 100_000

const BOUNDARY = 'fuzz-boundary'

/** Bytes of a file: text, nothing, another type in disguise, more than a chunk. */
const fileBytes = (random: Random): Buffer =>
  random.pick([
    () => Buffer.from('text'),
    () => Buffer.alloc(0),
    () => Buffer.from('%PDF-1.7 nonsense'),
    () => Buffer.from([0x50, 0x4b, 0x03, 0x04, ...Array.from({ length: 60 }, () => random.int(256))]),
    () => Buffer.from([0xff, 0xd8, 0xff, ...Array.from({ length: 60 }, () => random.int(256))]),
    () => Buffer.alloc(300_000, random.int(256)),
  ])()

/** A form with the fields of a schema: its binary properties are files, objects travel as JSON text. */
function formBody(
  described: Described,
  schema: Json,
  random: Random,
  ids: Ids,
  document: Json,
  clean: boolean,
): { body: Buffer; headers: Record<string, string> } {
  const target = schema.$ref ? document.components.schemas[schema.$ref.split('/').at(-1)] : schema
  const value = sample(target, '', random, ids, document) as Json
  if (described.id === 'uploadFileWithToken') delete value.content
  if (clean) delete value.content_type
  const parts: Buffer[] = []
  const part = (head: string, bytes: Buffer | string) =>
    parts.push(Buffer.from(`--${BOUNDARY}\r\n${head}\r\n\r\n`), Buffer.from(bytes as string), Buffer.from('\r\n'))
  const field = (name: string, text: string) => part(`Content-Disposition: form-data; name="${name}"`, text)
  const file = (name: string, filename: string, type = '') =>
    part(`Content-Disposition: form-data; name="${name}"; filename="${filename}"${type}`, fileBytes(random))
  for (const [name, item] of Object.entries(clean ? value : (spoil(value, random, ids) as Json)))
    if (target.properties[name]?.format !== 'binary')
      field(name, typeof item === 'string' ? item.toWellFormed() : (JSON.stringify(item) ?? ''))
  const name = `f${random.int(1e9)}.txt`
  if (clean) file('file', name)
  else
    random.pick([
      () => file('file', name),
      () => file('file', name, '\r\nContent-Type: application/octet-stream'),
      () => file('file', name, '\r\nContent-Type: ;;;'),
      () => file('file', random.pick(nastyTexts).toWellFormed()),
      () => file('upload', name),
      () => field('file', 'text'),
      () => {
        file('file', name)
        file('file', name)
      },
      () => part('Content-Disposition: form-data', 'x'),
      () => part('Content-Type: text/plain', 'x'),
      () => {},
    ])()
  let body = Buffer.concat([...parts, Buffer.from(`--${BOUNDARY}--\r\n`)])
  let type = `multipart/form-data; boundary=${BOUNDARY}`
  if (!clean && random.chance(0.3)) {
    random.pick([
      () => {
        body = body.subarray(0, random.int(body.length))
      },
      () => {
        type = 'multipart/form-data'
      },
      () => {
        type = 'multipart/form-data; boundary=other'
      },
      () => {
        type = random.pick(['multipart/mixed; boundary=x', 'application/json', 'text/plain', '', `${type}${type}`])
      },
      () => {
        body = Buffer.concat([body, body])
      },
    ])()
  }
  return { body, headers: type ? { 'content-type': type } : {} }
}

/** The bytes of a body, and the headers for them. */
function bodyOf(
  described: Described,
  random: Random,
  ids: Ids,
  document: Json,
  clean: boolean,
): { body: Buffer | null; headers: Record<string, string> } {
  const contents = (described.operation.requestBody?.content ?? {}) as Record<string, Json>
  const schema = contents['application/json']?.schema as Json | undefined
  if (contents['multipart/form-data'] && (clean || random.chance(0.8)) && (!schema || random.chance(0.5)))
    return contents['application/octet-stream'] && random.chance(0.5)
      ? {
          body: fileBytes(random),
          headers: { 'content-type': random.pick(['application/octet-stream', 'text/x', ';']) },
        }
      : formBody(described, contents['multipart/form-data'].schema, random, ids, document, clean)
  const none = { body: null, headers: {} }
  if (!schema && (clean || random.chance(0.7))) return none
  const example = examples[described.id]
  let value: unknown =
    example && random.chance(0.6) ? example(random, ids) : schema ? sample(schema, '', random, ids, document) : {}
  if (clean) return { body: Buffer.from(JSON.stringify(value)), headers: { 'content-type': 'application/json' } }
  if (random.chance(0.04)) return none
  const roll = random.next()
  if (roll < 0.4) value = spoil(value, random, ids)
  else if (roll < 0.45) value = nasty(random, ids)
  let text = JSON.stringify(value) ?? ''
  const headers: Record<string, string> = { 'content-type': 'application/json' }
  let raw: Buffer | undefined
  if (random.chance(0.1)) {
    const broken: (() => string | Buffer)[] = [
      () => text.slice(0, random.int(text.length + 1)),
      () => `${text}}`,
      () => text.replace(/:/, ':1e999,"x":'),
      () => text.replace(/\d+/, '1e999'),
      () => `${text.slice(0, -1)},"name":"one","name":"two"}`,
      () => `\ufeff${text}`,
      () => `${text.slice(0, -1)},}`,
      () => 'NaN',
      () => '   ',
      () => '"text"',
      () => '1',
      () => `${'['.repeat(TOO_DEEP)}${']'.repeat(TOO_DEEP)}`,
      () => `${'{"a":'.repeat(TOO_DEEP)}1${'}'.repeat(TOO_DEEP)}`,
      () => Buffer.from(text, 'utf16le'),
      () => Buffer.from([0xff, 0xfe, 0x00, 0x80, 0xc3, 0x28]),
      () => Buffer.concat([Buffer.from('{"name":"'), Buffer.from([0xc3, 0x28, 0xf0, 0x28]), Buffer.from('"}')]),
      () => '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhello\r\n--x--\r\n',
      () => 'a=1&b=2',
    ]
    const made = random.pick(broken)()
    if (typeof made === 'string') text = made
    else raw = made
  }
  let bytes = raw ?? Buffer.from(text)
  if (random.chance(0.06))
    headers['content-type'] = random.pick([
      'text/plain',
      'application/json; charset=utf-16',
      'application/json; charset=latin1',
      'application/json; charset=klingon',
      'application/json; charset=',
      'multipart/form-data; boundary=x',
      'application/x-www-form-urlencoded',
      '',
      ';;;',
    ])
  if (random.chance(0.04)) {
    const encodings: (() => [string, Buffer])[] = [
      () => ['gzip', gzipSync(bytes)],
      () => ['deflate', deflateSync(bytes)],
      () => ['gzip', bytes],
      () => ['gzip', gzipSync(bytes).subarray(0, 12)],
      () => ['br', bytes],
      () => ['compress', bytes],
      () => ['identity', bytes],
      () => ['gzip, gzip', gzipSync(gzipSync(bytes))],
      () => ['gzip', bomb()],
    ]
    const [encoding, encoded] = random.pick(encodings)()
    headers['content-encoding'] = encoding
    bytes = encoded
  }
  return { body: bytes, headers }
}

let bombBytes: Buffer | undefined
/** 32 MiB of blanks, three times what a body may hold, in 32 KiB. */
function bomb(): Buffer {
  bombBytes ??= gzipSync(Buffer.alloc(32 * 1024 * 1024, 0x20))
  return bombBytes
}

const brokenSegments = [
  '%00',
  'a%2Fb',
  '%2F',
  '%E0%A4%A',
  '%FF',
  '%ED%A0%80',
  '..%2f..',
  '%2e%2e',
  '*',
  'null',
  'undefined',
  '0',
  '-1',
  '%F0%9F%98%80',
  'me',
  '%20',
  'a%0d%0ab',
  ';a=b',
  '%25',
  'a'.repeat(5000),
  `proj_${'0'.repeat(26)}`,
  'constructor',
  '__proto__',
]

/** A path of the template; `clean` ones name what exists and may be seen. */
function pathOf({ method, path }: Described, random: Random, ids: Ids, clean: boolean): string {
  const [conversation, message] = ids.messages.length > 0 && random.chance(0.7) ? random.pick(ids.messages) : []
  return path.replace(/\{(\w+)\}/g, (_, name: string) => {
    if (name === 'document_id' && message) return message
    if (name === 'conversation_id' && conversation && path.includes('{document_id}')) return conversation
    if (name === 'version') return String(random.int(clean ? 2 : 5))
    // A deleted resource is gone for the requests that follow.
    const own = ids.own[prefixOf(name) ?? '']
    if (clean && own?.length && (method !== 'DELETE' || random.chance(0.3))) return random.pick(own)
    return segmentFor(name, random, ids)
  })
}

function segmentFor(name: string, random: Random, ids: Ids): string {
  const roll = random.next()
  const id = idFor(random, ids, name)
  if (roll < 0.6) return encodeURIComponent(id)
  if (roll < 0.7)
    return random.pick([`${id}%20`, `${id}%00`, id.toUpperCase(), id.slice(0, -1), `${id}a`, `${id}/`, `${id}%0A`])
  return random.pick(brokenSegments)
}

const pageNames = [
  'limit',
  'offset',
  'from',
  'to',
  'project_id',
  'status',
  'page',
  'sort',
  'cursor',
  'tags[a]',
  'tags[__proto__]',
  'tags',
  'name',
  'force',
  'wait',
]

const queryValues = [
  '',
  '1',
  '0',
  '-1',
  '1.5',
  '1e3',
  '999999999999999',
  '99999999999999999999',
  'abc',
  '%00',
  '%ED%A0%80',
  '%FF',
  '%',
  '%F0%9F%98%80',
  'true',
  'false',
  'null',
  '0000-01-01',
  '0000-01-01T00:00:00Z',
  '9999-12-31T23:59:59-14:00',
  '2026-02-30',
  '2026-01-01T00:00:00%2B01:00',
  '2026-01-01',
  '-271821-04-20',
  "'%20or%201=1",
  '%25_%5C',
  'x'.repeat(3000),
]

function queryOf(described: Described, random: Random, ids: Ids, document: Json, clean: boolean): string {
  const parts: string[] = []
  const declared = ((described.operation.parameters ?? []) as Json[]).filter(({ in: place }) => place === 'query')
  for (const parameter of declared) {
    if (!parameter.required && !random.chance(0.2)) continue
    const name = parameter.name as string
    if (clean || random.chance(0.45)) {
      const value = sample(parameter.schema, name, random, ids, document)
      for (const item of Array.isArray(value) ? value : [value])
        parts.push(
          `${name}=${encodeURIComponent(typeof item === 'object' ? JSON.stringify(item) : String(item).toWellFormed())}`,
        )
    } else {
      const shape = random.pick([
        name,
        name,
        name,
        `${name}[]`,
        `${name}[a]`,
        `${name}[a][b]`,
        `${name}[0]`,
        `${name}[`,
      ])
      parts.push(`${shape}=${random.pick(queryValues)}`)
      if (random.chance(0.15)) parts.push(`${name}=${random.pick(queryValues)}`)
    }
  }
  if (!clean && random.chance(0.25)) parts.push(`${random.pick(pageNames)}=${random.pick(queryValues)}`)
  if (!clean && random.chance(0.02))
    parts.push(
      random.pick([
        '&&&==&',
        '%E0%A4%A=1',
        '__proto__[x]=1',
        'constructor[prototype]=1',
        `a${'[b]'.repeat(60)}=1`,
        Array.from({ length: 1200 }, (_, i) => `p${i}=1`).join('&'),
      ]),
    )
  return parts.length > 0 ? `?${parts.join('&')}` : ''
}

function oddHeaders(random: Random): Record<string, string> {
  const headers: Record<string, string> = {}
  const maybe = (name: string, values: string[], probability = 0.05) => {
    if (random.chance(probability)) headers[name] = random.pick(values)
  }
  maybe(
    'idempotency-key',
    [`k${random.int(40)}`, '', 'two words', 'x'.repeat(256), 'x'.repeat(255), '\u00e9', "';--"],
    0.12,
  )
  maybe('if-match', ['*', '', 'W/"x"', '"x", W/"y"', 'garbage', ',', '\u00ff'], 0.1)
  maybe('if-none-match', ['*', 'W/"x"', ','])
  maybe('x-request-id', ['ok-1', 'two words', 'x'.repeat(129), '\u00e9', ''])
  maybe('last-event-id', ['0', '-1', 'abc', '99999999999999999999', '1.5', ''], 0.06)
  maybe('accept', ['*/*', 'text/event-stream', 'application/x-ndjson', 'image/png', ';;', ''])
  maybe('x-forwarded-for', ['1.2.3.4', 'garbage', '::1', ',,,', "1.2.3.4, 5.6.7.8'"])
  maybe('x-http-method-override', ['DELETE', 'TRACE'])
  maybe('user-agent', ['x'.repeat(2000), '\u00ff\u00fe', ''])
  maybe('range', ['bytes=0-1', 'bytes=-'])
  maybe('origin', ['null', 'http://evil.invalid'])
  maybe('cookie', ['a=b; session=sk_x'])
  return headers
}

export const badAuthorizations = [
  'Bearer',
  'Bearer ',
  'bearer  x',
  'Basic YWRtaW46YWRtaW4=',
  'Bearer sk_',
  `Bearer sk_${'a'.repeat(48)}`,
  `Bearer sk_${'a'.repeat(5000)}`,
  'Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJ1c2VyXzEifQ.',
  'Bearer eyJhbGciOiJIUzI1NiJ9.e30.x',
  'Bearer \u00ff\u00fe',
  'Bearer a b c',
  'Digest username="x"',
  '',
]

/** One request for an operation: sometimes right, mostly wrong somewhere. */
export function requestFor(described: Described, random: Random, ids: Ids, document: Json): FuzzRequest {
  const clean = random.chance(0.3)
  let path = pathOf(described, random, ids, clean || random.chance(0.5))
  if (!clean && random.chance(0.02))
    path = random.pick([
      `${path}/`,
      `${path}//`,
      path.toUpperCase(),
      `${path}/extra`,
      path.replace('/api/v1/', '/api/v1//'),
    ])
  const reads = described.method === 'GET'
  let method = described.method
  if (reads && random.chance(0.06)) method = 'HEAD'
  else if (!clean && random.chance(0.04))
    method = random.pick(['OPTIONS', 'TRACE', 'PUT', 'PATCH', 'DELETE', 'POST', 'PROPFIND', 'M-SEARCH'])
  const { body, headers } =
    reads && random.chance(0.95) ? { body: null, headers: {} } : bodyOf(described, random, ids, document, clean)
  return {
    method,
    path: path + queryOf(described, random, ids, document, clean),
    headers: { ...(clean ? {} : oddHeaders(random)), ...headers },
    body,
  }
}

/** What no HTTP client would send; the server may answer or hang up, but not suffer. */
export function rawGarbage(random: Random, token: string): Buffer {
  const authorization = `Authorization: Bearer ${token}\r\n`
  const text = random.pick([
    'GARBAGE\r\n\r\n',
    '\r\n\r\n\r\n',
    'GET /api/v1/projects\r\n\r\n',
    'GET /api/v1/projects HTTP/9.9\r\n\r\n',
    `GET /api/v1/projects HTTP/1.1\r\n${authorization}\r\n`,
    `GET /api/v1/projects HTTP/1.0\r\n${authorization}\r\n`,
    'GET /api/v1/proj\u0000ects HTTP/1.1\r\nHost: x\r\n\r\n',
    'FOO /api/v1/projects HTTP/1.1\r\nHost: x\r\n\r\n',
    'CONNECT example.invalid:443 HTTP/1.1\r\nHost: x\r\n\r\n',
    'OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n',
    `GET http://elsewhere.invalid/api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}\r\n`,
    `GET /api/v1/projects HTTP/1.1\r\nHost: x\r\nX: ${'y'.repeat(20_000)}\r\n\r\n`,
    `GET /${'a'.repeat(20_000)} HTTP/1.1\r\nHost: x\r\n\r\n`,
    'GET /api/v1/projects HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n',
    'GET /api/v1/projects HTTP/1.1\r\nHost: x\r\nExpect: the-unexpected\r\n\r\n',
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Content-Length: -5\r\n\r\n{}`,
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Content-Length: 99999999999999999999\r\n\r\n{}`,
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Content-Length: 200000000\r\n\r\n{}`,
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Content-Length: 500\r\n\r\n{"name":`,
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}`,
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}`,
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n`,
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Transfer-Encoding: chunked\r\n\r\n5\r\n{"nam`,
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Transfer-Encoding: gzip\r\n\r\n{}`,
    `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\n${authorization}Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n`,
    `GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGARBAGE\r\n\r\n`,
  ])
  const bytes = Buffer.from(text, 'latin1')
  return random.chance(0.3) ? bytes.subarray(0, random.int(bytes.length)) : bytes
}
