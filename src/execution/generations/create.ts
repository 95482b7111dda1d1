import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Outgoing, Tx } from '../../core/db/write.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { entityMailbox } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import type { ModelMessage } from '../providers/exchange.ts'
import type { ProviderRow } from '../providers/model.ts'
import { modelClient } from '../providers/models.ts'
import { insertTurn, type NewTurn, newTurnParts, type ProjectFound } from './create-store.ts'
import type { Work } from './model.ts'
import { sealWork } from './work.ts'

/** Wake-ups of turns outside a conversation; the truth is the generation's row. */
export const generationRun = entityMailbox('generation-run', {
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
  /** Calls that may nest below this one. */
  depth?: number
  metadata?: Record<string, unknown> | null
  action_id?: string | null
  /** An existing trace to group under. */
  trace_id?: string | null
  parent_trace_id?: string | null
  root_trace_id?: string | null
  initiator_generation_id?: string | null
  conversation_id?: string | null
  session_id?: string | null
  actor_id?: string | null
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

/** The row of a new turn, with its sealed working state. */
function newTurn(services: Services, input: TurnInput): NewTurn {
  const id = input.generation_id ?? newId('gen')
  const settled = input.settled ?? []
  const work: Work = {
    messages: input.messages && [...input.messages, ...settled],
    settled,
    system_extra: input.system_extra ?? [],
    model: input.model ?? null,
    tool_context: input.tool_context ?? null,
    depth: input.depth ?? services.config.AGENT_MAX_CALL_DEPTH,
    notes: {},
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
    started_by_principal_type: shown ? input.authority.type : null,
    started_by_principal_id: shown ? input.authority.id : null,
    action_id: input.action_id ?? null,
    source: input.source ?? null,
    metadata: input.metadata ?? null,
    authority: input.authority,
    permission: input.permission ?? { action: 'agents:CreateAgentGeneration', kind: 'agent', id: input.agent_id },
    streamed: input.streamed,
    shape: input.shape,
    deadline_at: input.deadline_at ?? null,
    created_at: new Date().toISOString(),
    sealedWork: sealWork(services, { id, project_id: input.project_id }, work),
  }
}

/** Raises what a turn's project refuses. */
function checkProject(found: ProjectFound, projectId: string): void {
  if (!found.project_id) raise('RESOURCE_NOT_FOUND', { meta: { id: projectId } })
  if (found.paused_at) raise('PROJECT_PAUSED', { meta: { project_id: projectId, pause_reason: found.pause_reason } })
}

/** Raises AI_PROVIDER_NOT_FOUND and AI_PROVIDER_MISCONFIGURED: a provider that could not be called. */
async function checkProvider(services: Services, provider: ProviderRow | null, db?: Queryable): Promise<void> {
  if (!provider) raise('AI_PROVIDER_NOT_FOUND')
  await modelClient(services, provider, db)
}

/**
 * Writes a pending generation with its trace inside the caller's transaction; turns outside a conversation get their
 * wake-up too. Raises PROJECT_PAUSED, RESOURCE_NOT_FOUND (project gone) and AI_PROVIDER_MISCONFIGURED, upon which the
 * caller's transaction must not commit.
 */
export async function createTurn(
  tx: Tx,
  services: Services,
  input: TurnInput,
): Promise<{ generation_id: string; trace_id: string }> {
  const turn = newTurn(services, input)
  const found = await insertTurn(tx, turn)
  checkProject(found, input.project_id)
  await checkProvider(services, found.provider, tx)
  if (!input.conversation_id) tx.send(generationRun, { generation_id: turn.id, project_id: input.project_id })
  return { generation_id: turn.id, trace_id: turn.trace_id }
}

/**
 * The same as a change of its own, in one round trip: the turn, its wake-up and what `note` adds (the audit entry of
 * the request). `provider` is the agent's, read with the agent.
 */
export async function createTurnAtOnce(
  services: Services,
  input: TurnInput,
  provider: ProviderRow | null,
  note: (outgoing: Outgoing) => void,
): Promise<{ generation_id: string; trace_id: string }> {
  await checkProvider(services, provider)
  const turn = newTurn(services, input)
  const found = await services.writeOne<ProjectFound>(outgoing => {
    outgoing.send(generationRun, { generation_id: turn.id, project_id: input.project_id })
    note(outgoing)
    return newTurnParts(turn)
  })
  checkProject(found, input.project_id)
  return { generation_id: turn.id, trace_id: turn.trace_id }
}
