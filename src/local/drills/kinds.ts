import type { Script } from '../double/script.ts'
import { type Credential, must } from './api.ts'
import type { Receiver } from './receiver.ts'

/** The project of a drill, with the resources that its work needs. */
export type Prepared = {
  project_id: string
  /** Key of the project, with which the load is sent. */
  key: string
  session_id: string
  webhook_id: string
  store_id: string
  trigger_id: string
  workflow_id: string
  orchestration_id: string
  eval_id: string
  agents: Record<Agent, string>
}

/** Sends a request until it is answered with a success, and returns the body of the answer. */
export type Send = (path: string, body: object) => Promise<any>

/** A kind of work of the load. The records of a kind are all rows of its list. */
export type Kind = {
  name: string
  /** Starts work and returns the ID of its record once it is acknowledged. */
  start(send: Send, prepared: Prepared, number: number): Promise<string>
  list(prepared: Prepared): string
  /** Outcome of a record; null while it is open. */
  outcome(record: any): 'succeeded' | 'failed' | null
  /** Calls of the receiver per record; the key of each contains the ID of the record. */
  calls?: { path: string; count: number }
  /** Model calls per record, each in the lane of the agent. */
  model?: { lane: Agent; count: number }
  /** Whether only one is started, which outlives the grace period of its worker. */
  once?: boolean
  /** Usage events per record. */
  usage?: { llm_tokens?: number; tool_execution?: number }
}

/** Steps of the long turn: as many model calls, with a tool call in each but the last. */
export const LONG_TURN_STEPS = 100

/** The agents, each with a lane of the model double. */
const AGENTS = ['talker', 'writer', 'caller', 'measured', 'long'] as const
type Agent = (typeof AGENTS)[number]

const MODEL_DELAY_MS = 50
/** Duration of a step of the long turn until `hastenLongTurn`. */
const LONG_STEP_MS = 1500

/** Scripts of the lanes: callers call their tool once, the long turn in every step but the last. */
const SCRIPTS = {
  talker: { rules: [{ reply: { text: 'said', delay_ms: MODEL_DELAY_MS } }] },
  writer: { rules: [{ reply: { text: 'written', delay_ms: MODEL_DELAY_MS } }] },
  measured: { rules: [{ reply: { text: 'measured' } }] },
  caller: {
    rules: [
      { when: { last_role: 'tool' }, reply: { text: 'done', delay_ms: MODEL_DELAY_MS } },
      { reply: { tool_calls: [{ name: 'turns', args: {} }], delay_ms: MODEL_DELAY_MS } },
    ],
  },
  long: {
    rules: [
      { when: { messages: { min: 2 * LONG_TURN_STEPS - 1 } }, reply: { text: 'done' } },
      { reply: { tool_calls: [{ name: 'long', args: {} }], delay_ms: LONG_STEP_MS } },
    ],
  },
} satisfies Record<Agent, Omit<Script, 'lane'>>

/** The scripts with which the model double starts. */
export const MODEL_SCRIPTS: Script[] = Object.entries(SCRIPTS).map(([lane, script]) => ({ lane, ...script }))

const ended = (status: string, succeeded: string, failed: readonly string[]) =>
  status === succeeded ? 'succeeded' : failed.includes(status) ? 'failed' : null

const turnOutcome = ({ status }: { status: string }) =>
  ended(status, 'completed', ['failed', 'cancelled', 'expired', 'incomplete'])

const NODES = ['a', 'b', 'c']

export const KINDS: readonly Kind[] = [
  {
    name: 'session turns',
    start: async (send, { session_id }, number) =>
      (await send(`/sessions/${session_id}/messages?wait=true`, { message: `message ${number}` })).generation_id,
    list: ({ agents }) => `/generations?agent_id=${agents.talker}`,
    outcome: turnOutcome,
    model: { lane: 'talker', count: 1 },
    usage: { llm_tokens: 1 },
  },
  {
    name: 'turns',
    start: async (send, { agents }) =>
      idOfTurn(await send(`/agents/${agents.writer}/generate?wait=false`, { prompt: 'x' })),
    list: ({ agents }) => `/generations?agent_id=${agents.writer}`,
    outcome: turnOutcome,
    model: { lane: 'writer', count: 1 },
    usage: { llm_tokens: 1 },
  },
  {
    name: 'turns with tools',
    start: async (send, { agents }) =>
      idOfTurn(await send(`/agents/${agents.caller}/generate?wait=true`, { prompt: 'x' })),
    list: ({ agents }) => `/generations?agent_id=${agents.caller}`,
    outcome: turnOutcome,
    calls: { path: '/tools/turns', count: 1 },
    model: { lane: 'caller', count: 2 },
    usage: { llm_tokens: 1, tool_execution: 1 },
  },
  {
    name: 'orchestration runs',
    start: async (send, { orchestration_id }) =>
      (await send('/orchestration-runs', { orchestration_id, wait: false })).id,
    list: ({ orchestration_id }) => `/orchestration-runs?orchestration_id=${orchestration_id}`,
    outcome: ({ status }) => ended(status, 'succeeded', ['failed', 'cancelled', 'expired']),
    calls: { path: '/tools/runs', count: NODES.length },
    usage: { tool_execution: NODES.length },
  },
  {
    name: 'trigger firings',
    start: async (send, { trigger_id }) => (await send(`/triggers/${trigger_id}/fire`, { wait: false })).id,
    list: ({ trigger_id }) => `/trigger-firings?trigger_id=${trigger_id}`,
    outcome: ({ status }) => ended(status, 'succeeded', ['failed', 'skipped']),
    calls: { path: '/tools/firings', count: 1 },
    usage: { tool_execution: 1 },
  },
  {
    name: 'tasks',
    start: async (send, { workflow_id }, number) => (await send('/tasks', { workflow_id, title: `task ${number}` })).id,
    list: ({ workflow_id }) => `/tasks?workflow_id=${workflow_id}`,
    outcome: ({ status, automation_status }) =>
      status === 'closed' ? 'succeeded' : ['failed', 'unrouted'].includes(automation_status) ? 'failed' : null,
    calls: { path: '/tools/tasks', count: 1 },
    usage: { tool_execution: 1 },
  },
  {
    name: 'ingestions',
    start: async (send, _prepared, number) => {
      const content = Buffer.from(`The text of file ${number}.`).toString('base64')
      const file = { content, filename: `file-${number}.txt`, content_type: 'text/plain' }
      const { id: file_id } = await send('/files/upload/base64', file)
      return (await send('/documents/ingest?wait=false', { file_id })).id
    },
    list: () => '/documents',
    outcome: ({ status }) => ended(status, 'ready', ['failed', 'withdrawn']),
  },
  {
    name: 'webhook events',
    start: async (send, _prepared, number) => (await send('/actors', { name: `actor ${number}` })).id,
    list: () => '/actors',
    outcome: () => 'succeeded',
  },
  {
    name: 'memory writes',
    start: async (send, { store_id }, number) =>
      (await send('/memory-entries', { memory_store_id: store_id, content: `fact ${number}` })).id,
    list: ({ store_id }) => `/memory-entries?memory_store_id=${store_id}`,
    outcome: ({ action }) => (action === 'created' ? 'succeeded' : 'failed'),
  },
  {
    name: 'eval runs',
    start: async (send, { eval_id }) => (await send(`/evals/${eval_id}/runs`, {})).id,
    list: ({ eval_id }) => `/evals/${eval_id}/runs`,
    outcome: ({ status, errored_count }) =>
      status === 'completed' && errored_count > 0 ? 'failed' : ended(status, 'completed', ['failed', 'canceled']),
    model: { lane: 'measured', count: 1 },
    usage: { llm_tokens: 1 },
  },
]

/** A turn of 100 steps with a tool call in each but the last. */
export const LONG_TURN: Kind = {
  name: 'long turns',
  once: true,
  start: async (send, { agents }) =>
    idOfTurn(await send(`/agents/${agents.long}/generate?wait=false`, { prompt: 'x' })),
  list: ({ agents }) => `/generations?agent_id=${agents.long}`,
  outcome: turnOutcome,
  calls: { path: '/tools/long', count: LONG_TURN_STEPS - 1 },
  model: { lane: 'long', count: LONG_TURN_STEPS },
  usage: { llm_tokens: 1, tool_execution: LONG_TURN_STEPS - 1 },
}

const idOfTurn = (body: any): string => body.generation_id ?? body.id

/** Sets the script of a lane of the model double. */
export async function scriptLane(doubleUrl: string, lane: string, script: object): Promise<void> {
  const response = await fetch(`${doubleUrl}/control/lanes/${lane}`, { method: 'PUT', body: JSON.stringify(script) })
  if (!response.ok) throw new Error(`script of lane ${lane}: ${await response.text()}`)
}

/** Lets the long turn take the rest of its steps without a pause. */
export const hastenLongTurn = (doubleUrl: string): Promise<void> => {
  const [last, others] = SCRIPTS.long.rules
  return scriptLane(doubleUrl, 'long', { rules: [last, { reply: { ...others.reply, delay_ms: 0 } }] })
}

/** Model calls of a lane that the double has received. */
export async function modelCalls(doubleUrl: string, lane: string): Promise<number> {
  const state = (await (await fetch(`${doubleUrl}/control/lanes/${lane}`)).json()) as { calls: number }
  return state.calls
}

/** Creates the project of a drill with everything that its work needs, as an admin. */
export async function prepare(
  admin: Credential,
  { receiver, doubleUrl }: { receiver: Receiver; doubleUrl: string },
): Promise<Prepared> {
  const { id: project_id } = await must(admin, 'POST', '/projects', { name: `Drill ${new Date().toISOString()}` })
  const create = (path: string, fields: object) => must(admin, 'POST', path, { project_id, ...fields })
  const document = { statement: [{ effect: 'Allow', action: ['*'], resource: [`srn:${project_id}:*:*`] }] }
  const policy = await must(admin, 'POST', '/policies', { document })
  const { secret: key } = await create('/project-keys', { policy_ids: [policy.id] })
  const provider = { name: 'double', provider: 'custom', default_model: 'writer/m', base_url: `${doubleUrl}/v1` }
  const ai_provider_id = (await create('/ai-providers', provider)).id
  const tools: Record<string, string> = {}
  for (const name of ['turns', 'runs', 'firings', 'tasks', 'long'])
    tools[name] = (
      await create('/tools', { name, type: 'http', idempotent: true, execute: { url: `${receiver.toolUrl}/${name}` } })
    ).id
  const bindings: Partial<Record<Agent, string>> = { caller: tools.turns, long: tools.long }
  const agents: Partial<Record<Agent, string>> = {}
  for (const name of AGENTS) {
    const tool_bindings = bindings[name] ? [{ tool_id: bindings[name] }] : []
    const fields = { name, model: `${name}/m`, ai_provider_id, tool_bindings, max_steps: LONG_TURN_STEPS }
    agents[name] = (await create('/agents', fields)).id
  }
  const session = { agent_id: agents.talker, name: 'drill', auto_generate: true, inactivity_ttl_seconds: 0 }
  const graph = {
    name: 'three calls',
    nodes: NODES.map(id => ({ id, type: 'tool', tool_id: tools.runs })),
    edges: NODES.slice(1).map((to, index) => ({ from: NODES[index], to })),
  }
  const trigger = { name: 'manual', type: 'manual', target_type: 'tool', target_id: tools.firings }
  const workflow = {
    name: 'one call',
    states: [
      {
        name: 'calling',
        initial: true,
        on_enter: {
          dispatch: { kind: 'tool', tool_id: tools.tasks },
          on_complete: [{ when: true, transition: 'end' }],
        },
      },
      { name: 'done', terminal: true },
    ],
    transitions: [{ name: 'end', from: ['calling'], to: 'done' }],
  }
  const { id: dataset_id } = await create('/datasets', { name: 'one item' })
  const item = { input: [{ role: 'user', content: 'x' }], expected_output: 'measured' }
  await must(admin, 'POST', `/datasets/${dataset_id}/items`, item)
  const measured = { name: 'one item', agent_id: agents.measured, dataset_id, scorers: [{ type: 'exact_match' }] }
  return {
    project_id,
    key,
    session_id: (await create('/sessions', session)).id,
    webhook_id: (await create('/webhooks', { name: 'drill', url: receiver.hookUrl, events: ['actors.created'] })).id,
    store_id: (await create('/memory-stores', { name: 'drill' })).id,
    trigger_id: (await create('/triggers', trigger)).id,
    workflow_id: (await create('/workflows', workflow)).id,
    orchestration_id: (await create('/orchestrations', graph)).id,
    eval_id: (await create('/evals', measured)).id,
    agents: agents as Record<Agent, string>,
  }
}
