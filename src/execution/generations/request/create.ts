import { z } from 'zod'
import { checkSpend, requiresReservation, type SpendScope } from '#control/quotas/spend.ts'
import { unpricedComponents } from '#control/usage/price-usage.ts'
import type { Origin } from '#core/api/call.ts'
import { systemClock } from '#core/base/clock.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { HOLDER } from '#core/base/holder.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { traceContext } from '#core/base/telemetry.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import { entityMailbox } from '#core/queues/queue.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { firstProvider } from '#execution/model-routes/store.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import { modelClient } from '#execution/providers/models.ts'
import { optionApiOf } from '#execution/providers/options/provider-options.ts'
import { hasVendorTool } from '#execution/providers/options/vendor-tools.ts'
import { requireUnpaused } from '#identity/projects/pause.ts'
import { ExternalValueRequired } from '#identity/secrets/resolve.ts'
import { sealTurnData } from '../loop/turn-data.ts'
import { withMemory } from '../loop/turn-hooks.ts'
import type { LoadedTurn } from '../loop/turn-store.ts'
import { type GenerationRow, generationKind, type TurnData } from '../model.ts'
import { addFrame } from '../streams/frame-store.ts'
import { makeFrame, startedOf } from '../streams/frames.ts'
import { traceKind } from '../traces/kind.ts'
import {
  type AgentBinding,
  type ExtraCtes,
  insertTurn,
  type NewTurn,
  newTurnParts,
  type ProjectFound,
  type RunnableAgent,
} from './create-store.ts'

/** Wake-ups of turns outside conversations; the generation's row has the state. */
export const turnQueue = entityMailbox('turn.execute', {
  message: z.object({ generation_id: z.string(), project_id: z.string() }),
  key: message => message.generation_id,
  project: message => message.project_id,
  concern: 'generation',
  retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
  leaseSeconds: 60,
})

export type TurnInput = {
  project_id: string
  agent_id: string
  /**
   * Agent version of the turn. If omitted, the agent's release assigns one: when the turn is created or, in a
   * conversation, when it starts.
   */
  agent_version?: number
  /** Null if the turn's source prepares them when the turn starts. */
  messages: ModelMessage[] | null
  /** Settled steps of the turn that this one retries; they follow the messages. */
  settled?: ModelMessage[]
  system_extra?: string[]
  model?: string | null
  tool_context?: Record<string, string> | null
  /** `context` of guardrails. */
  guardrail_context?: Record<string, unknown> | null
  patience?: TurnData['patience']
  awaited?: TurnData['awaited']
  /** Settings that override the settings of the agent. */
  overrides?: TurnData['overrides']
  /** Conversations whose mailboxes wait for the turn. */
  occupied?: readonly string[]
  /** Remaining depth for nested turns. */
  depth?: number
  metadata?: Record<string, unknown> | null
  action_id?: string | null
  /** The node execution that the turn belongs to. */
  orchestration?: { run_id: string; node_id: string; attempt: number } | null
  /** The trigger that led to the turn; default: the trigger of its authority. */
  trigger_id?: string | null
  /** An existing trace to join. */
  trace_id?: string | null
  parent_trace_id?: string | null
  root_trace_id?: string | null
  initiator_generation_id?: string | null
  /** Chain of a turn that continues its initiator. */
  chain_id?: string | null
  conversation_id?: string | null
  session_id?: string | null
  /** End user of the session; usage is attributed to it. */
  actor_id?: string | null
  /** Whether the turn was not requested separately: quotas are then checked only when it starts. */
  automatic?: boolean
  authority: PrincipalRecord
  /** The permission checked again when the turn starts; default: running the agent. */
  permission?: { action: string; kind: string; id: string } | null
  source?: string | null
  streamed: boolean
  /** Format of the stream: of agents, with steps, or of conversations, without. */
  shape: 'agent' | 'conversation'
  /** Whether the request forbids storing the content of the turn. */
  unstored?: boolean
  /** Time at which the turn fails unless it has settled. */
  deadline_at?: string | null
  /** Revision of the agent that the turn is checked for; null or omitted for the agent as the insert finds it. */
  agent_revision?: string | null
  /** Chosen by a caller that has already subscribed. */
  generation_id?: string
}

/** Returns the origin of a turn for turns that retry it, continue it or are nested in it. */
export const turnOrigin = (
  turn: Pick<GenerationRow, 'source' | 'trigger_id' | 'orchestration_run_id' | 'node_id' | 'node_attempt'>,
) =>
  ({
    source: turn.source,
    trigger_id: turn.trigger_id,
    orchestration:
      turn.orchestration_run_id === null
        ? null
        : { run_id: turn.orchestration_run_id, node_id: turn.node_id ?? '', attempt: turn.node_attempt ?? 1 },
  }) satisfies Partial<TurnInput>

/** Returns the permission that is checked again when a turn starts. */
export const permissionOf = ({ permission, agent_id }: TurnInput): NonNullable<GenerationRow['permission']> =>
  permission ?? { action: 'agents:CreateAgentGeneration', kind: 'agent', id: agent_id }

const triggerOf = ({ via }: PrincipalRecord): string | null => (via?.type === 'trigger' ? via.id : null)

/** Returns the row of a new turn with its sealed turn data. */
function buildTurn(services: Services, input: TurnInput): NewTurn {
  const id = input.generation_id ?? newId(generationKind.prefix)
  const settled = input.settled ?? []
  const data: TurnData = {
    messages: input.messages && [...input.messages, ...settled],
    settled,
    system_extra: input.system_extra ?? [],
    model: input.model ?? null,
    tool_context: input.tool_context ?? null,
    guardrail_context: input.guardrail_context ?? null,
    ...(input.patience && { patience: input.patience }),
    ...(input.awaited && { awaited: true }),
    overrides: input.overrides ?? {},
    resumed: {},
    occupied: input.occupied ?? [],
    depth: input.depth ?? services.config.AGENT_MAX_CALL_DEPTH,
    notes: {},
    shared_state: null,
    knowledge: null,
    context: null,
  }
  const isDirect = input.authority.via === null
  return {
    id,
    project_id: input.project_id,
    agent_id: input.agent_id,
    agent_version: input.agent_version ?? null,
    // A turn of a conversation may wait for other turns, and the agent may change until it starts.
    assigned: input.agent_version !== undefined || !input.conversation_id,
    trace_id: input.trace_id ?? newId(traceKind.prefix),
    newTrace: !input.trace_id,
    parent_trace_id: input.parent_trace_id ?? null,
    root_trace_id: input.root_trace_id ?? null,
    conversation_id: input.conversation_id ?? null,
    session_id: input.session_id ?? null,
    actor_id: input.actor_id ?? null,
    initiator_generation_id: input.initiator_generation_id ?? null,
    chain_id: input.chain_id ?? null,
    started_by_principal_type: isDirect ? input.authority.type : null,
    started_by_principal_id: isDirect ? input.authority.id : null,
    action_id: input.action_id ?? null,
    trigger_id: input.trigger_id ?? triggerOf(input.authority),
    orchestration_run_id: input.orchestration?.run_id ?? null,
    node_id: input.orchestration?.node_id ?? null,
    node_attempt: input.orchestration?.attempt ?? null,
    source: input.source ?? null,
    metadata: input.metadata ?? null,
    authority: input.authority,
    permission: permissionOf(input),
    streamed: input.streamed,
    shape: input.shape,
    unstored: input.unstored ?? false,
    deadline_at: input.deadline_at ?? null,
    created_at: systemClock.now().toISOString(),
    sealedData: sealTurnData(services, { id, project_id: input.project_id }, data),
    agent_revision: input.agent_revision ?? null,
    holder: null,
    trace_context: traceContext(),
  }
}

/** @throws RESOURCE_NOT_FOUND, PROJECT_PAUSED */
function requireRunnableProject(found: ProjectFound, projectId: string): void {
  if (!found.project_id) raise('RESOURCE_NOT_FOUND', { meta: { id: projectId } })
  if (found.paused_at) raise('PROJECT_PAUSED', { meta: { project_id: projectId, pause_reason: found.pause_reason } })
}

/** Thrown if an agent has changed since the turn was checked. Nothing was written. */
export class AgentChanged extends Error {}

/** @throws AgentChanged */
function requireRevision(made: boolean, { agent_revision }: Pick<TurnInput, 'agent_revision'>): void {
  if (agent_revision != null && !made) throw new AgentChanged()
}

/**
 * Checks that the first model call of a turn can be made.
 * @throws MODEL_ROUTE_NOT_FOUND, AI_PROVIDER_MISCONFIGURED, VALIDATION_FAILED for a model override of an agent with a
 *   model route, MODEL_NOT_PRICED if the project requires prices
 */
async function requireCallable(
  services: Services,
  binding: AgentBinding,
  { model }: Pick<TurnInput, 'model'>,
  db?: Queryable,
): Promise<void> {
  const { provider } = binding
  if (!provider && model != null)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'model',
      message: 'cannot be set for an agent with a model route',
    })
  const first = firstProvider(binding)
  if (!first)
    raise('MODEL_ROUTE_NOT_FOUND', {
      message: 'The agent has neither an AI provider nor a model route, and the project has no default model route',
    })
  await modelClient(services, first, db).catch(error => {
    // The worker of the turn reads the value.
    if (!(error instanceof ExternalValueRequired)) throw error
  })
  if (binding.require_priced_model) await requirePrices(services, binding, model ?? null, db)
}

/**
 * Checks a turn before tool calls are made for it, which cannot be undone. Creating the turn repeats the checks.
 * @throws PROJECT_PAUSED, errors of `requireCallable` and of quotas
 */
export async function precheckTurn(
  services: Services,
  input: Pick<TurnInput, 'project_id' | 'agent_id' | 'actor_id'>,
  binding: AgentBinding,
): Promise<void> {
  await requireUnpaused(services.pool, input.project_id)
  await requireCallable(services, binding, {})
  await checkSpend(services, spenderOf(input))
}

/** Components that must have a price. */
const PRICED = ['input_tokens', 'output_tokens'].map(component => ({ component, unit: 'token' }))
/** The component of an agent whose vendor searches the web. */
const SEARCHES = { component: 'web_searches', unit: 'search' }

/** Requires prices of the project that has the provider: for a shared agent, the publisher. */
async function requirePrices(
  services: Services,
  { provider, route, model: agentModel, vendor_tools }: AgentBinding,
  model: string | null,
  db?: Queryable,
): Promise<void> {
  const called = provider
    ? [{ ai_provider: provider, model: model ?? agentModel ?? provider.default_model }]
    : (route?.route.targets ?? []).flatMap(target => {
        const ai_provider = route?.providers.find(({ id }) => id === target.ai_provider_id)
        return ai_provider ? [{ ai_provider, model: target.model }] : []
      })
  const unpriced_rows = await unpricedComponents(
    services,
    called.flatMap(({ ai_provider, model }) => {
      const of = {
        project_id: ai_provider.project_id,
        ai_provider_id: ai_provider.id,
        provider: ai_provider.provider,
        model,
      }
      const maySearch = hasVendorTool(optionApiOf(ai_provider), vendor_tools, 'web_search')
      return [...PRICED, ...(maySearch ? [SEARCHES] : [])].map(component => ({ ...of, ...component }))
    }),
    db,
  )
  const [first] = unpriced_rows
  if (first)
    raise('MODEL_NOT_PRICED', {
      message: `Model ${first.model} of ${first.provider} has no price for ${first.component}, and the project requires one`,
      meta: { unpriced_rows },
    })
}

/**
 * Priority of the wake-up: nested turns first, the deepest first, because completing them releases the turns that wait.
 */
export const priorityOf = ({ config }: Services, { depth }: Pick<TurnInput, 'depth'>): number =>
  config.AGENT_MAX_CALL_DEPTH - (depth ?? config.AGENT_MAX_CALL_DEPTH)

function wakeTurn(outbox: Outbox, services: Services, input: TurnInput, generation_id: string): void {
  const nested = input.initiator_generation_id != null
  const options = nested ? { priority: priorityOf(services, input) } : {}
  outbox.send(turnQueue, { generation_id, project_id: input.project_id }, options)
}

/** Returns the fields that a nested turn inherits from the turn that waits for it. */
export const nestedTurnFields = (origin: Origin | null): Partial<TurnInput> =>
  origin
    ? {
        initiator_generation_id: origin.generation_id,
        parent_trace_id: origin.trace_id,
        root_trace_id: origin.root_trace_id,
        depth: Math.max(0, origin.depth - 1),
        occupied: origin.conversations,
        source: origin.source,
        orchestration: origin.orchestration,
        trigger_id: origin.trigger_id,
      }
    : {}

export const spenderOf = ({
  project_id,
  agent_id,
  actor_id = null,
}: Pick<TurnInput, 'project_id' | 'agent_id' | 'actor_id'>): SpendScope => ({
  project_id,
  agent_id,
  actor_id,
})

/** Errors of quotas and price checks. */
export const spendRefusals = ['QUOTA_EXCEEDED', 'QUOTA_UNENFORCEABLE', 'MODEL_NOT_PRICED'] as const

type NewIds = { generation_id: string; trace_id: string }

/**
 * Inserts a pending generation with its trace and its wake-up in the caller's transaction, which must be rolled back on
 * an error.
 * @throws PROJECT_PAUSED, RESOURCE_NOT_FOUND (project deleted), AI_PROVIDER_MISCONFIGURED, MODEL_ROUTE_NOT_FOUND,
 *   MODEL_NOT_PRICED, QUOTA_EXCEEDED, QUOTA_UNENFORCEABLE, AgentChanged
 */
export async function createTurn(tx: Tx, services: Services, input: TurnInput): Promise<NewIds> {
  const { generation_id, trace_id } = await createTurnWithoutWakeUp(tx, services, input)
  wakeTurn(tx, services, input, generation_id)
  return { generation_id, trace_id }
}

/**
 * Like createTurn, but sends no wake-up. `made` is false if `extra.unless` held; `publisher_project_id` is the project
 * that shares the agent.
 */
export async function createTurnWithoutWakeUp(
  tx: Tx,
  services: Services,
  input: TurnInput,
  extra?: ExtraCtes,
): Promise<NewIds & { made: boolean; publisher_project_id: string | null }> {
  if (!input.automatic) await checkSpend(services, spenderOf(input), tx)
  const turn = buildTurn(services, input)
  const found = await insertTurn(tx, turn, extra)
  requireRunnableProject(found, input.project_id)
  requireRevision(found.made, input)
  if (found.made) await requireCallable(services, found, input, tx)
  const { made, publisher_project_id } = found
  return { generation_id: turn.id, trace_id: turn.trace_id, made, publisher_project_id }
}

/** A turn to create in a single statement. */
type SingleTurn = { input: TurnInput; binding: AgentBinding; addWrites: (outbox: Outbox) => void }

/**
 * Like createTurn, but in a single statement and round trip, with the writes of `addWrites` (the audit entry of the
 * request). A quota that reserves requires a transaction.
 * @param binding of the agent, read with the agent
 */
export async function createTurnInOneStatement(
  services: Services,
  { input, binding, addWrites }: SingleTurn,
): Promise<NewIds> {
  await requireCallable(services, binding, input)
  if (await requiresReservation(services, spenderOf(input)))
    return services.write(async tx => {
      const made = await createTurn(tx, services, input)
      addWrites(tx)
      return made
    })
  const turn = buildTurn(services, input)
  await insertAlone(services, input, turn, outbox => {
    wakeTurn(outbox, services, input, turn.id)
    addWrites(outbox)
  })
  return { generation_id: turn.id, trace_id: turn.trace_id }
}

/**
 * Like createTurnInOneStatement, but the turn is in progress, in its first attempt, with this process as its holder: no message
 * is sent. The checks of a start are the checks of the request. Requires the agent's revision in `input`, and no quota for
 * which the project reserves. Returns the turn as `loadTurn` does, but without tools.
 */
export async function createStartedTurn(
  services: Services,
  { input, binding: agent, addWrites }: SingleTurn & { binding: RunnableAgent },
): Promise<LoadedTurn> {
  await requireCallable(services, agent, input)
  const turn = { ...buildTurn(services, input), holder: HOLDER }
  const generation = startedRow(turn, agent)
  await insertAlone(services, input, turn, outbox => {
    outbox.emit(generationKind, 'started', generation, withMemory([]))
    if (generation.streamed)
      addFrame(outbox, turn.id, makeFrame(services, generation, 1, 'started', startedOf(generation)))
    addWrites(outbox)
  })
  return {
    generation,
    agent,
    provider: agent.provider,
    route: agent.route,
    paused: false,
    sealedData: turn.sealedData,
    holder: HOLDER,
    isExecutedByHolder: true,
    steps: [],
    journal: [],
    tools: [],
    lastFrame: generation.streamed ? 1 : 0,
    rootTrace: turn.root_trace_id,
    traceContext: turn.trace_context,
  }
}

/** Checks quotas and inserts a turn with other writes in one statement. */
async function insertAlone(
  services: Services,
  input: TurnInput,
  turn: NewTurn,
  addWrites: (outbox: Outbox) => void,
): Promise<void> {
  await checkSpend(services, spenderOf(input))
  const found = await services.writeOne<ProjectFound>(outbox => {
    addWrites(outbox)
    return newTurnParts(turn)
  })
  requireRunnableProject(found, input.project_id)
  requireRevision(found.held, input)
}

/** Returns the row of a started turn as its insert writes it. */
function startedRow(turn: NewTurn, agent: RunnableAgent): GenerationRow {
  const {
    newTrace: _newTrace,
    parent_trace_id: _parent,
    root_trace_id: _root,
    sealedData: _sealedData,
    agent_revision: _revision,
    holder: _holder,
    trace_context: _context,
    unstored,
    assigned,
    created_at: now,
    ...columns
  } = turn
  // As the insert computes it (`runnable`, create-store.ts).
  const isStored = agent.project_content_mode === 'full' && !unstored && agent.trace_content_mode !== 'none'
  return {
    ...columns,
    content_mode: isStored ? 'full' : 'none',
    metadata: isStored ? turn.metadata : null,
    agent_version: agent.version,
    assigned_version: assigned ? agent.version : null,
    publisher_project_id: null,
    status: 'in_progress',
    attempt: 1,
    created_at: now,
    updated_at: now,
    started_at: now,
    last_activity_at: now,
    first_text_at: null,
    completed_at: null,
    stop_reason: null,
    error: null,
    input: null,
    output: null,
    required_action: null,
    usage: null,
    routing: null,
    tool_surface: null,
    extraction: null,
    knowledge: null,
    step_count: 0,
    journalled: 0,
    lost_attempts: 0,
    handed_back: false,
    model_attempts: 0,
    model_retry_at: null,
    abort: null,
    content_redacted_at: null,
    content_redacted_by_principal_type: null,
    content_redacted_by_principal_id: null,
  }
}
