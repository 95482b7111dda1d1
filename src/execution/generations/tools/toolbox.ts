import type { ToolContext } from '#core/api/tool-context.ts'
import { AppError, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { storableText } from '#core/base/storable-text.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { boundIds } from '#execution/agents/bindings.ts'
import type { AgentRow, ToolBinding } from '#execution/agents/model.ts'
import { actionsOf, distinctName, resolvedName } from '#execution/tools/actions.ts'
import { guardrailView, openCall, sharedToolCall } from '#execution/tools/call.ts'
import type { Callable } from '#execution/tools/call-types.ts'
import { type GateRequest, toolGate } from '#execution/tools/guardrail-gate.ts'
import { listMcpActions } from '#execution/tools/mcp.ts'
import { type ToolAction, type ToolRow, withToolDefaults } from '#execution/tools/model.ts'
import { isReadOnly } from '#execution/tools/platform.ts'
import { type ResolvedTools, resolveSharedTools, resolveTools } from '#execution/tools/resolve.ts'
import { missingContextKey } from '#execution/tools/tokens.ts'
import type { ToolSurface } from '../model.ts'

/** Timeout for listing the tools of an MCP server. */
const LISTING_MS = 30_000
const BYTES_PER_TOKEN = 3.4

/** Fields that a model writes in addition to the arguments if a guardrail may require approval. */
const JUSTIFICATION = {
  approval_reasoning: {
    type: 'string',
    description: 'Why the call is needed, for the person who may have to approve it',
  },
  approval_evidence: { type: 'object', description: 'What the decision can be checked against' },
  approval_predicted_impact: { type: 'string', description: 'What the call will change' },
} as const
export type Justification = keyof typeof JUSTIFICATION

/** A tool with the name that the model uses. */
export type TurnTool = {
  name: string
  description: string
  /** Schema that the model receives. */
  schema: Record<string, unknown>
  /** Whether the client requires that calls are constrained to the schema. */
  strict?: true
  /** Schema for validation in addition to the definition: the schema of the MCP server. */
  validationSchema: Record<string, unknown> | null
  callable: Callable
  /** Operation of a platform tool, or tool of an MCP server; null for others. */
  action: string | null
  /** Whether a call with an unknown outcome may be repeated. */
  repeatable: boolean
  /** Justification fields added to the schema; not arguments. */
  justificationFields: Justification[]
  /** Activity that end users see; absent for a built-in tool. */
  label?: string
  /** Implementation of a built-in tool, in place of a call. */
  perform?: (input: Record<string, unknown>) => Promise<unknown>
  /** Returns stream events of a call that succeeded. */
  eventsOf?: (input: Record<string, unknown>) => { event: string; data: object }[]
}

/** A binding without a usable tool, and the reason. */
export type Unavailable = { tool_id: string | null; tool_name: string; tool_type: string | null; reason: string }

export type Toolbox = {
  tools: ReadonlyMap<string, TurnTool>
  unavailable: readonly Unavailable[]
  surface: ToolSurface | null
}

type ToolboxInput = {
  agent: Pick<AgentRow, 'id' | 'project_id' | 'tool_bindings'>
  /** A built-in tool; its name takes precedence over bindings. */
  builtIn: TurnTool | Unavailable | null
  /** Tools of the client; names of bindings take precedence. */
  client: readonly TurnTool[]
  /** Project of the turn, which differs from the agent's project if the agent is shared. */
  project_id: string
  /** Tools of the agent's project that its bindings refer to. */
  tools: readonly ToolRow[]
  /** Ids of the tools that some step may call; null is unrestricted. */
  reachable: ReadonlySet<string> | null
  gate: GateRequest['agent']
  context: ToolContext
  signal: AbortSignal
}

export const NO_TOOLS: Toolbox = { tools: new Map(), unavailable: [], surface: null }

/**
 * Resolves the bindings of an agent to tools; MCP servers are listed concurrently. A binding without a usable tool is
 * skipped and reported.
 * @throws MISSING_TOOL_CONTEXT_KEY if an MCP server cannot be listed without it; the reason of the signal
 */
export async function openToolbox(services: Services, input: ToolboxInput): Promise<Toolbox> {
  const bindings = input.agent.tool_bindings ?? []
  const unavailable: Unavailable[] = []
  const { builtIn } = input
  const first = builtIn && 'callable' in builtIn ? [builtIn] : []
  if (builtIn && !('callable' in builtIn)) unavailable.push(builtIn)
  const shared = await resolveShared(services, input)
  const resolved = await Promise.all(
    bindings.map(binding => resolveBinding(services, binding, input, shared, unavailable)),
  )
  const tools = new Map<string, TurnTool>()
  for (const tool of [...first, ...resolved.flat()]) {
    const name = freeName(tool, tools)
    if (name !== null) tools.set(name, { ...tool, name })
    else unavailable.push(unavailableTool(tool.callable, `name already taken: ${tool.name}`))
  }
  for (const tool of input.client) if (!tools.has(tool.name)) tools.set(tool.name, tool)
  await addJustificationFields(services, input, [...tools.values()])
  return { tools, unavailable, surface: surfaceOf([...tools.values()]) }
}

/**
 * Returns a name for a tool: its own, or with a suffix if another name became equal to it when characters were replaced. Null if
 * a tool has the same name.
 */
function freeName(tool: TurnTool, tools: ReadonlyMap<string, TurnTool>): string | null {
  const taken = tools.get(tool.name)
  if (!taken) return tool.name
  if (originalName(taken) === originalName(tool)) return null
  const name = distinctName(tool.name, originalName(tool))
  return tools.has(name) ? null : name
}

const originalName = ({ callable, action }: TurnTool): string =>
  action === null ? callable.name : `${callable.name}_${action}`

async function resolveBinding(
  services: Services,
  binding: ToolBinding,
  input: ToolboxInput,
  shared: ResolvedTools,
  unavailable: Unavailable[],
): Promise<TurnTool[]> {
  const { reachable } = input
  if (binding.tool_id !== undefined && reachable && !reachable.has(binding.tool_id)) return []
  const callable = findBoundTool(binding, input, shared)
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
    const actions = callable.type === 'mcp' ? await loadMcpActions(services, callable, input) : actionsOf(callable)
    if (actions.length === 0) unavailable.push(unavailableTool(callable, 'tool has no actions'))
    return actions.map(action => ({ ...turnTool(callable, action), label: binding.label }))
  } catch (error) {
    if (input.signal.aborted) throw input.signal.reason
    if (!(error instanceof AppError) || error.code === 'MISSING_TOOL_CONTEXT_KEY' || isTransient(error)) throw error
    unavailable.push(unavailableTool(callable, reasonOf(error)))
    return []
  }
}

/** Returns the tool defined in a binding. */
const inlineTool = (tool: NonNullable<ToolBinding['tool']>, project_id: string): Callable => ({
  ...withToolDefaults(tool),
  id: null,
  project_id,
  guardrail_ids: null,
})

/** Resolves the bound tools of other projects. */
function resolveShared({ pool }: Services, { agent, tools }: ToolboxInput): Promise<ResolvedTools> {
  const { tool_ids } = boundIds(agent.tool_bindings)
  const sharedIds = (tool_ids ?? []).filter(id => !tools.some(tool => tool.id === id))
  return resolveTools(pool, agent.project_id, sharedIds)
}

function findBoundTool({ tool_id, tool }: ToolBinding, input: ToolboxInput, shared: ResolvedTools): Callable | null {
  const { agent, tools, project_id } = input
  const found: Callable | undefined = tool
    ? inlineTool(tool, agent.project_id)
    : (tools.find(({ id }) => id === tool_id) ?? shared.tools.get(tool_id as string))
  if (!found) return null
  // A shared agent calls its tools on behalf of the project it runs in; the share was consumed for the turn.
  return agent.project_id !== project_id && !found.consumer
    ? { ...found, consumer: { project_id, share: null } }
    : found
}

async function loadMcpActions(
  services: Services,
  tool: Callable,
  { context, signal }: ToolboxInput,
): Promise<ToolAction[]> {
  if (!tool.mcp) throw new AppError('VALIDATION_FAILED', { message: 'the tool has no MCP server' })
  const call = sharedToolCall(
    tool,
    openCall(services, { caller: async () => null, context, metering: null, signal, timeoutMs: LISTING_MS }),
  )
  const actions = await listMcpActions(services, tool, call)
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
    validationSchema: callable.type === 'mcp' ? action.input_schema : null,
    callable,
    action: several ? action.name : null,
    repeatable: callable.idempotent || (callable.type === 'platform' && isReadOnly(action.name)),
    justificationFields: [],
  }
}

const unavailableTool = ({ id, name, type }: Callable, reason: string): Unavailable => ({
  tool_id: id,
  tool_name: name,
  tool_type: type,
  reason,
})

/** Returns the reason why an MCP server could not be listed. */
function reasonOf({ message, meta }: AppError): string {
  const { tool_status_code: status, rpc_code, rpc_message } = (meta ?? {}) as Record<string, unknown>
  if (rpc_code !== undefined) return `tools/list returned JSON-RPC error ${rpc_code}: ${rpc_message}`
  if (typeof status === 'number' && status !== 200) return `tools/list returned status ${status}`
  return storableText(message).slice(0, 500)
}

/** Adds justification fields to the schemas of tools whose calls a guardrail may route to approval. */
async function addJustificationFields(
  services: Services,
  { project_id, gate }: ToolboxInput,
  tools: TurnTool[],
): Promise<void> {
  const rules = toolGate.only()
  if (!rules || tools.length === 0) return
  const scope = { project_id, agent: gate, tools: tools.map(({ callable }) => guardrailView(callable)) }
  const mayRequireApproval = await rules.mayAsk(services, scope)
  for (const [index, tool] of tools.entries()) {
    if (!mayRequireApproval[index]) continue
    const properties = (tool.schema.properties ?? {}) as Record<string, unknown>
    const added = (Object.keys(JUSTIFICATION) as Justification[]).filter(name => !Object.hasOwn(properties, name))
    tool.justificationFields = added
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

/** Returns a note for the model on tools that are unavailable; null if there are none. */
export function unavailableNote(unavailable: readonly Unavailable[]): string | null {
  if (unavailable.length === 0) return null
  const names = [...new Set(unavailable.map(({ tool_name }) => tool_name))].join(', ')
  return `These tools are currently unavailable: ${names}. If one of them is needed, say that it is unavailable, without a reason.`
}

/** Returns the bound client tools by resolved name. */
export function clientTools(
  agent: Pick<AgentRow, 'project_id' | 'tool_bindings'>,
  tools: readonly ToolRow[],
): Map<string, Callable> {
  const found = new Map<string, Callable>()
  for (const { tool_id, tool } of agent.tool_bindings ?? []) {
    const row: Callable | undefined = tool ? inlineTool(tool, agent.project_id) : tools.find(({ id }) => id === tool_id)
    if (row?.type === 'client' && !found.has(resolvedName(row.name))) found.set(resolvedName(row.name), row)
  }
  return found
}

/**
 * Checks that the tool context is sufficient to list the agent's MCP servers. A key missing for another tool only fails
 * its calls.
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
