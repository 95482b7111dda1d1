import { z } from 'zod'
import { checkSpend, requiresReservation, type SpendScope } from '../../../control/quotas/spend.ts'
import { unpricedComponents } from '../../../control/usage/price-usage.ts'
import { raise, raiseInvalid } from '../../../core/api/errors.ts'
import { newId } from '../../../core/api/ids.ts'
import type { Queryable } from '../../../core/db/sql.ts'
import type { Outbox, Tx } from '../../../core/db/writer.ts'
import type { PrincipalRecord } from '../../../core/iam/caller.ts'
import type { Origin } from '../../../core/invoke/call.ts'
import { entityMailbox } from '../../../core/jobs/queue.ts'
import type { Services } from '../../../core/process/services.ts'
import { requireUnpaused } from '../../../identity/projects/pause.ts'
import { firstProvider } from '../../model-routes/store.ts'
import type { ModelMessage } from '../../providers/model-messages.ts'
import { modelClient } from '../../providers/models.ts'
import { sealTurnData } from '../loop/turn-data.ts'
import type { GenerationRow, TurnData } from '../model.ts'
import {
  type AgentBinding,
  type ExtraCtes,
  insertTurn,
  type NewTurn,
  newTurnParts,
  type ProjectFound,
} from './create-store.ts'

/** Wake-ups of turns outside a conversation; the truth is the generation's row. */
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
   * Version of the agent that the turn is served; without one it is given a version as the agent's release says, a turn of
   * a conversation when it starts.
   */
  agent_version?: number
  /** Null: the turn's source prepares them when it starts. */
  messages: ModelMessage[] | null
  /** Steps of an earlier turn that this one goes on from; they follow the messages. */
  settled?: ModelMessage[]
  system_extra?: string[]
  model?: string | null
  tool_context?: Record<string, string> | null
  /** What guards see as `context`. */
  guardrail_context?: Record<string, unknown> | null
  /** Settings in place of the agent's. */
  overrides?: TurnData['overrides']
  /** Conversations whose mailboxes wait for the turn. */
  occupied?: readonly string[]
  /** Calls that may nest below this one. */
  depth?: number
  metadata?: Record<string, unknown> | null
  action_id?: string | null
  /** The attempt of a node that it is part of. */
  orchestration?: { run_id: string; node_id: string; attempt: number } | null
  /** The trigger that it goes back to; default that of its authority. */
  trigger_id?: string | null
  /** An existing trace to group under. */
  trace_id?: string | null
  parent_trace_id?: string | null
  root_trace_id?: string | null
  initiator_generation_id?: string | null
  /** Chain that it is a member of: it carries on after its initiator. */
  chain_id?: string | null
  conversation_id?: string | null
  session_id?: string | null
  /** The end user of its session, whose budget it counts in. */
  actor_id?: string | null
  /** Nobody asked for it by itself: quotas refuse it when it starts, not the message that it answers. */
  automatic?: boolean
  authority: PrincipalRecord
  /** Asked again when the turn starts; default the right to run the agent. */
  permission?: { action: string; kind: string; id: string } | null
  source?: string | null
  streamed: boolean
  /** Whose events its stream sends: with the steps of a run of an agent, or without, as conversations do. */
  shape: 'agent' | 'conversation'
  /** Fails the turn when it is not at its end by then. */
  deadline_at?: string | null
  /** Drawn before by a caller that already listens. */
  generation_id?: string
}

/** What a turn goes back to, as a turn does that repeats it, carries it on or is asked for by one of its calls. */
export const turnOrigin = (
  turn: Pick<GenerationRow, 'trigger_id' | 'orchestration_run_id' | 'node_id' | 'node_attempt'>,
) =>
  ({
    trigger_id: turn.trigger_id,
    orchestration:
      turn.orchestration_run_id === null
        ? null
        : { run_id: turn.orchestration_run_id, node_id: turn.node_id ?? '', attempt: turn.node_attempt ?? 1 },
  }) satisfies Partial<TurnInput>

const triggerOf = ({ via }: PrincipalRecord): string | null => (via?.type === 'trigger' ? via.id : null)

/** The row of a new turn, with its sealed working state. */
function newTurn(services: Services, input: TurnInput): NewTurn {
  const id = input.generation_id ?? newId('gen')
  const settled = input.settled ?? []
  const work: TurnData = {
    messages: input.messages && [...input.messages, ...settled],
    settled,
    system_extra: input.system_extra ?? [],
    model: input.model ?? null,
    tool_context: input.tool_context ?? null,
    guardrail_context: input.guardrail_context ?? null,
    overrides: input.overrides ?? {},
    resumed: {},
    occupied: input.occupied ?? [],
    depth: input.depth ?? services.config.AGENT_MAX_CALL_DEPTH,
    notes: {},
    knowledge: null,
  }
  const shown = input.authority.via === null
  return {
    id,
    project_id: input.project_id,
    agent_id: input.agent_id,
    agent_version: input.agent_version ?? null,
    // Between a turn of a conversation and its start others may run, and the agent may change.
    assigned: input.agent_version !== undefined || !input.conversation_id,
    trace_id: input.trace_id ?? newId('trace'),
    newTrace: !input.trace_id,
    parent_trace_id: input.parent_trace_id ?? null,
    root_trace_id: input.root_trace_id ?? null,
    conversation_id: input.conversation_id ?? null,
    session_id: input.session_id ?? null,
    actor_id: input.actor_id ?? null,
    initiator_generation_id: input.initiator_generation_id ?? null,
    chain_id: input.chain_id ?? null,
    started_by_principal_type: shown ? input.authority.type : null,
    started_by_principal_id: shown ? input.authority.id : null,
    action_id: input.action_id ?? null,
    trigger_id: input.trigger_id ?? triggerOf(input.authority),
    orchestration_run_id: input.orchestration?.run_id ?? null,
    node_id: input.orchestration?.node_id ?? null,
    node_attempt: input.orchestration?.attempt ?? null,
    source: input.source ?? null,
    metadata: input.metadata ?? null,
    authority: input.authority,
    permission: input.permission ?? { action: 'agents:CreateAgentGeneration', kind: 'agent', id: input.agent_id },
    streamed: input.streamed,
    shape: input.shape,
    deadline_at: input.deadline_at ?? null,
    created_at: new Date().toISOString(),
    sealedWork: sealTurnData(services, { id, project_id: input.project_id }, work),
  }
}

/** Raises what a turn's project refuses. */
function checkProject(found: ProjectFound, projectId: string): void {
  if (!found.project_id) raise('RESOURCE_NOT_FOUND', { meta: { id: projectId } })
  if (found.paused_at) raise('PROJECT_PAUSED', { meta: { project_id: projectId, pause_reason: found.pause_reason } })
}

/**
 * Refuses a turn whose first call could not be made: MODEL_ROUTE_NOT_FOUND, AI_PROVIDER_MISCONFIGURED; a model of its own
 * beside a route, whose targets name theirs; and MODEL_NOT_PRICED, where the project wants to know what its turns cost.
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
      message: 'the agent uses a model route, whose targets name theirs',
    })
  const first = firstProvider(binding)
  if (!first)
    raise('MODEL_ROUTE_NOT_FOUND', {
      message: 'The agent has neither a provider nor a model route, and its project has no default route',
    })
  await modelClient(services, first, db)
  if (binding.require_priced_model) await requirePrices(services, binding, model ?? null, db)
}

/**
 * Refuses a turn before anything is done for it that no refusal undoes: PROJECT_PAUSED, and what `requireCallable` and the quotas
 * refuse. What makes the turn asks again.
 */
export async function refuseEarly(
  services: Services,
  input: Pick<TurnInput, 'project_id' | 'agent_id' | 'actor_id'>,
  binding: AgentBinding,
): Promise<void> {
  await requireUnpaused(services.pool, input.project_id)
  await requireCallable(services, binding, {})
  await checkSpend(services, spenderOf(input))
}

/** Tokens whose prices say what a turn costs. */
const PRICED = ['input_tokens', 'output_tokens'] as const

/** Prices are those of the project that the provider is of: of a shared agent, the one that shares it. */
async function requirePrices(
  services: Services,
  { provider, route, model: own }: AgentBinding,
  model: string | null,
  db?: Queryable,
): Promise<void> {
  const called = provider
    ? [{ ai_provider: provider, model: model ?? own ?? provider.default_model }]
    : (route?.route.targets ?? []).flatMap(target => {
        const ai_provider = route?.providers.find(({ id }) => id === target.ai_provider_id)
        return ai_provider ? [{ ai_provider, model: target.model }] : []
      })
  const unpriced_rows = await unpricedComponents(
    services,
    called.flatMap(({ ai_provider: { id, project_id, provider: slug }, model }) =>
      PRICED.map(component => ({ project_id, ai_provider_id: id, provider: slug, model, component, unit: 'token' })),
    ),
    db,
  )
  const [first] = unpriced_rows
  if (first)
    raise('MODEL_NOT_PRICED', {
      message: `The model ${first.model} of ${first.provider} has no price for ${first.component}, and the project requires one`,
      meta: { unpriced_rows },
    })
}

/**
 * Turns that others wait for go before those that nobody waits for, the deepest first: they give back what is held for
 * them.
 */
export const priorityOf = ({ config }: Services, { depth }: Pick<TurnInput, 'depth'>): number =>
  config.AGENT_MAX_CALL_DEPTH - (depth ?? config.AGENT_MAX_CALL_DEPTH)

function wakeTurn(outgoing: Outbox, services: Services, input: TurnInput, generation_id: string): void {
  const nested = input.initiator_generation_id != null
  const options = nested ? { priority: priorityOf(services, input) } : {}
  outgoing.send(turnQueue, { generation_id, project_id: input.project_id }, options)
}

/** What a turn inherits from the one that waits for it. */
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

const spenderOf = ({
  project_id,
  agent_id,
  actor_id = null,
}: Pick<TurnInput, 'project_id' | 'agent_id' | 'actor_id'>): SpendScope => ({
  project_id,
  agent_id,
  actor_id,
})

/** What the quotas of a project, and what it asks of prices, refuse a turn with. */
export const spendRefusals = ['QUOTA_EXCEEDED', 'QUOTA_UNENFORCEABLE', 'MODEL_NOT_PRICED'] as const

type NewIds = { generation_id: string; trace_id: string }

/**
 * Writes a pending generation with its trace and its wake-up inside the caller's transaction. Raises PROJECT_PAUSED,
 * RESOURCE_NOT_FOUND (project gone), AI_PROVIDER_MISCONFIGURED, MODEL_ROUTE_NOT_FOUND, QUOTA_EXCEEDED and
 * QUOTA_UNENFORCEABLE, upon which the caller's transaction must not commit.
 */
export async function createTurn(tx: Tx, services: Services, input: TurnInput): Promise<NewIds> {
  const { generation_id, trace_id } = await createTurnWithoutWakeUp(tx, services, input)
  wakeTurn(tx, services, input, generation_id)
  return { generation_id, trace_id }
}

/**
 * The same for who sends a wake-up of its own. `made` is false where `beside` says that the turn is not to be made;
 * `publisher_project_id` is the project that shares the agent.
 */
export async function createTurnWithoutWakeUp(
  tx: Tx,
  services: Services,
  input: TurnInput,
  beside?: ExtraCtes,
): Promise<NewIds & { made: boolean; publisher_project_id: string | null }> {
  if (!input.automatic) await checkSpend(services, spenderOf(input), tx)
  const turn = newTurn(services, input)
  const found = await insertTurn(tx, turn, beside)
  checkProject(found, input.project_id)
  if (found.made) await requireCallable(services, found, input, tx)
  const { made, publisher_project_id } = found
  return { generation_id: turn.id, trace_id: turn.trace_id, made, publisher_project_id }
}

/**
 * The same as a change of its own, in one round trip: the turn, its wake-up and what `note` adds (the audit entry of
 * the request). `binding` is the agent's, read with the agent. With a quota that reserves it takes a transaction.
 */
export async function createTurnInOneStatement(
  services: Services,
  input: TurnInput,
  binding: AgentBinding,
  note: (outgoing: Outbox) => void,
): Promise<{ generation_id: string; trace_id: string }> {
  await requireCallable(services, binding, input)
  const spender = spenderOf(input)
  if (await requiresReservation(services, spender))
    return services.write(async tx => {
      const made = await createTurn(tx, services, input)
      note(tx)
      return made
    })
  await checkSpend(services, spender)
  const turn = newTurn(services, input)
  const found = await services.writeOne<ProjectFound>(outgoing => {
    wakeTurn(outgoing, services, input, turn.id)
    note(outgoing)
    return newTurnParts(turn)
  })
  checkProject(found, input.project_id)
  return { generation_id: turn.id, trace_id: turn.trace_id }
}
