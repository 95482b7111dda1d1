import { AppError, raise } from '../../../core/api/errors.ts'
import { storableText } from '../../../core/api/storable-text.ts'
import type { ToolContext } from '../../../core/api/tool-context.ts'
import { isTransient } from '../../../core/db/database-errors.ts'
import type { Services } from '../../../core/process/services.ts'
import { boundIds } from '../../agents/bindings.ts'
import type { AgentRow, ToolBinding } from '../../agents/model.ts'
import { actionsOf, resolvedName } from '../../tools/actions.ts'
import { guardrailView, openCall, sharedToolCall } from '../../tools/call.ts'
import type { Callable } from '../../tools/call-types.ts'
import { type GateRequest, toolGate } from '../../tools/guardrail-gate.ts'
import { mcpActions } from '../../tools/mcp.ts'
import { type ToolAction, type ToolRow, withToolDefaults } from '../../tools/model.ts'
import { isReadOnly } from '../../tools/platform.ts'
import { type ResolvedTools, resolveSharedTools, resolveTools } from '../../tools/resolve.ts'
import { missingContextKey } from '../../tools/tokens.ts'
import type { ToolSurface } from '../model.ts'

/** How long the server of an mcp tool may take to say what it offers. */
const LISTING_MS = 30_000
const BYTES_PER_TOKEN = 3.4

/** What a model writes beside its arguments where a rule may ask a person. */
const JUSTIFICATION = {
  approval_reasoning: {
    type: 'string',
    description: 'Why the call is needed, for the person who may have to approve it',
  },
  approval_evidence: { type: 'object', description: 'What the decision can be checked against' },
  approval_predicted_impact: { type: 'string', description: 'What the call will change' },
} as const
export type Justification = keyof typeof JUSTIFICATION

/** A tool under the name that the model calls it by. */
export type TurnTool = {
  name: string
  description: string
  /** As the model is shown it. */
  schema: Record<string, unknown>
  /** What arguments are checked by beside the definition: the schema of the server of an mcp tool. */
  checked: Record<string, unknown> | null
  callable: Callable
  /** Operation of a platform tool, tool of the server of an mcp tool; null for others. */
  action: string | null
  /** A call whose outcome is not known may be made again. */
  repeatable: boolean
  /** Fields that the schema was given for the person who approves; not arguments. */
  justified: Justification[]
  /** What a tool of the platform's own does in place of a call. */
  perform?: (input: Record<string, unknown>) => Promise<unknown>
}

/** A binding that gives no tool, and why. */
export type Unavailable = { tool_id: string | null; tool_name: string; tool_type: string | null; reason: string }

export type Toolbox = {
  tools: ReadonlyMap<string, TurnTool>
  unavailable: readonly Unavailable[]
  surface: ToolSurface | null
}

type Given = {
  agent: Pick<AgentRow, 'id' | 'project_id' | 'tool_bindings'>
  /** A tool of the platform's own; its name goes before those of bindings. */
  own: TurnTool | Unavailable | null
  /** Project that the turn runs in: another one than the agent's where that is shared. */
  project_id: string
  /** Tools of the agent's project that its bindings name. */
  tools: readonly ToolRow[]
  /** Tools that some step may call; null is no restriction. */
  reachable: ReadonlySet<string> | null
  gate: GateRequest['agent']
  context: ToolContext
  signal: AbortSignal
}

export const NO_TOOLS: Toolbox = { tools: new Map(), unavailable: [], surface: null }

/**
 * What the model of a turn can call now: each binding is resolved, servers of mcp tools are asked side by side. A binding
 * that gives no tool is left out and reported.
 * @throws MISSING_TOOL_CONTEXT_KEY when the server of an mcp tool cannot be asked for want of one; the reason of the signal
 */
export async function openToolbox(services: Services, given: Given): Promise<Toolbox> {
  const bindings = given.agent.tool_bindings ?? []
  const unavailable: Unavailable[] = []
  const { own } = given
  const first = own && 'callable' in own ? [own] : []
  if (own && !('callable' in own)) unavailable.push(own)
  const shared = await sharedTools(services, given)
  const resolved = await Promise.all(bindings.map(binding => resolve(services, binding, given, shared, unavailable)))
  const tools = new Map<string, TurnTool>()
  for (const tool of [...first, ...resolved.flat()]) {
    if (!tools.has(tool.name)) tools.set(tool.name, tool)
    else unavailable.push(missing(tool.callable, `name already taken: ${tool.name}`))
  }
  await justify(services, given, [...tools.values()])
  return { tools, unavailable, surface: surfaceOf([...tools.values()]) }
}

async function resolve(
  services: Services,
  binding: ToolBinding,
  given: Given,
  shared: ResolvedTools,
  unavailable: Unavailable[],
): Promise<TurnTool[]> {
  const { reachable } = given
  if (binding.tool_id !== undefined && reachable && !reachable.has(binding.tool_id)) return []
  const callable = boundOf(binding, given, shared)
  if (!callable) {
    const tool_id = binding.tool_id as string
    unavailable.push({
      tool_id,
      tool_name: tool_id,
      tool_type: null,
      reason: shared.denied.has(tool_id) ? 'share not active' : 'tool not found',
    })
    return []
  }
  try {
    const actions = callable.type === 'mcp' ? await listed(services, callable, given) : actionsOf(callable)
    if (actions.length === 0) unavailable.push(missing(callable, 'it offers nothing'))
    return actions.map(action => turnTool(callable, action))
  } catch (error) {
    if (given.signal.aborted) throw given.signal.reason
    if (!(error instanceof AppError) || error.code === 'MISSING_TOOL_CONTEXT_KEY' || isTransient(error)) throw error
    unavailable.push(missing(callable, reasonOf(error)))
    return []
  }
}

/** The definition of a binding. */
const ownTool = (tool: NonNullable<ToolBinding['tool']>, project_id: string): Callable => ({
  ...withToolDefaults(tool),
  id: null,
  project_id,
  guardrail_ids: null,
})

/** Tools of other projects that bindings name. */
function sharedTools({ pool }: Services, { agent, tools }: Given): Promise<ResolvedTools> {
  const { tool_ids } = boundIds(agent.tool_bindings)
  const missing = (tool_ids ?? []).filter(id => !tools.some(tool => tool.id === id))
  return resolveTools(pool, agent.project_id, missing)
}

function boundOf({ tool_id, tool }: ToolBinding, given: Given, shared: ResolvedTools): Callable | null {
  const { agent, tools, project_id } = given
  const found: Callable | undefined = tool
    ? ownTool(tool, agent.project_id)
    : (tools.find(({ id }) => id === tool_id) ?? shared.tools.get(tool_id as string))
  if (!found) return null
  // A shared agent calls its own tools in the name of the project that it runs in; the turn was taken from the share.
  return agent.project_id !== project_id && !found.consumer
    ? { ...found, consumer: { project_id, share: null } }
    : found
}

async function listed(services: Services, tool: Callable, { context, signal }: Given): Promise<ToolAction[]> {
  if (!tool.mcp) throw new AppError('VALIDATION_FAILED', { message: 'it names no server' })
  const call = sharedToolCall(
    tool,
    openCall(services, { caller: async () => null, context, metering: null, signal, timeoutMs: LISTING_MS }),
  )
  const actions = await mcpActions(services, tool, call)
  if (actions.length > 0) return actions
  throw new AppError('TOOL_HTTP_ERROR', {
    message:
      tool.actions || tool.denied_actions
        ? 'all listed tools excluded by actions/denied_actions'
        : 'tools/list returned no tools',
  })
}

const turnTool = (callable: Callable, action: ToolAction): TurnTool => {
  const several = callable.type === 'mcp' || callable.type === 'platform'
  return {
    name: action.resolved_name,
    description: action.description ?? '',
    schema: action.input_schema,
    checked: callable.type === 'mcp' ? action.input_schema : null,
    callable,
    action: several ? action.name : null,
    repeatable: callable.idempotent || (callable.type === 'platform' && isReadOnly(action.name)),
    justified: [],
  }
}

const missing = ({ id, name, type }: Callable, reason: string): Unavailable => ({
  tool_id: id,
  tool_name: name,
  tool_type: type,
  reason,
})

/** Why the server of an mcp tool could not be asked. */
function reasonOf({ message, meta }: AppError): string {
  const { tool_status_code: status, rpc_code, rpc_message } = (meta ?? {}) as Record<string, unknown>
  if (rpc_code !== undefined) return `tools/list answered the JSON-RPC error ${rpc_code}: ${rpc_message}`
  if (typeof status === 'number' && status !== 200) return `tools/list answered ${status}`
  return storableText(message).slice(0, 500)
}

/** Lets the model say why, where a rule may send its call to a person. */
async function justify(services: Services, { project_id, gate }: Given, tools: TurnTool[]): Promise<void> {
  const rules = toolGate.only()
  if (!rules || tools.length === 0) return
  const scope = { project_id, agent: gate, tools: tools.map(({ callable }) => guardrailView(callable)) }
  const asks = await rules.mayAsk(services, scope)
  for (const [index, tool] of tools.entries()) {
    if (!asks[index]) continue
    const properties = (tool.schema.properties ?? {}) as Record<string, unknown>
    const added = (Object.keys(JUSTIFICATION) as Justification[]).filter(name => !Object.hasOwn(properties, name))
    tool.justified = added
    tool.schema = {
      ...tool.schema,
      properties: { ...properties, ...Object.fromEntries(added.map(name => [name, JUSTIFICATION[name]])) },
    }
  }
}

function surfaceOf(tools: readonly TurnTool[]): ToolSurface | null {
  if (tools.length === 0) return null
  const text = JSON.stringify(tools.map(({ name, description, schema }) => ({ name, description, schema })))
  const bytes = Buffer.byteLength(text)
  return { tools: tools.length, bytes, estimated_tokens: Math.ceil(bytes / BYTES_PER_TOKEN) }
}

/** What the model is told of tools that it may expect and does not have; null when there are none. */
export function unavailableNote(unavailable: readonly Unavailable[]): string | null {
  if (unavailable.length === 0) return null
  const names = [...new Set(unavailable.map(({ tool_name }) => tool_name))].join(', ')
  return `These tools are not available at the moment: ${names}. If one of them is needed, say that it is not available, and give no reason.`
}

/** The name of a client tool among the bindings, and its definition; for outputs of calls, which need nothing else. */
export function clientTools(
  agent: Pick<AgentRow, 'project_id' | 'tool_bindings'>,
  tools: readonly ToolRow[],
): Map<string, Callable> {
  const found = new Map<string, Callable>()
  for (const { tool_id, tool } of agent.tool_bindings ?? []) {
    const row: Callable | undefined = tool ? ownTool(tool, agent.project_id) : tools.find(({ id }) => id === tool_id)
    if (row?.type === 'client' && !found.has(resolvedName(row.name))) found.set(resolvedName(row.name), row)
  }
  return found
}

/**
 * Refuses a turn that could not ask the servers of its mcp tools what they offer. What the header of another tool lacks is
 * a failure of its calls.
 * @throws MISSING_TOOL_CONTEXT_KEY
 */
export async function requireContext(
  { pool }: Services,
  agent: Pick<AgentRow, 'project_id' | 'tool_bindings'>,
  context: ToolContext | null,
): Promise<void> {
  if (!agent.tool_bindings?.length) return
  const { tool_ids } = boundIds(agent.tool_bindings)
  const rows = tool_ids ? (await resolveSharedTools(pool, agent.project_id, tool_ids)).values() : []
  const inline = agent.tool_bindings.flatMap(({ tool }) => (tool ? withToolDefaults(tool) : []))
  for (const { type, mcp } of [...rows, ...inline])
    for (const [header, text] of type === 'mcp' ? Object.entries(mcp?.headers ?? {}) : []) {
      const key = missingContextKey(text, context ?? {})
      if (key !== null) raise('MISSING_TOOL_CONTEXT_KEY', { meta: { key, header } })
    }
}
