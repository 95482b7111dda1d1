import { checkSpend } from '#control/quotas/spend.ts'
import { authorPermissions, ownPermissions, requirePermitted } from '#core/api/access.ts'
import { type Kind, type KindRow, kinds } from '#core/api/kind.ts'
import { systemClock } from '#core/base/clock.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { mergedKnowledge } from '#execution/agents/knowledge.ts'
import { findGrantingShares } from '#execution/grants/grants.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import type { GenerationRow, TurnData } from '../model.ts'
import { openTurnData } from './turn-data.ts'
import type { TurnSource } from './turn-owner.ts'
import type { LoadedTurn } from './turn-store.ts'

const AGENT_GONE = 'The agent was deleted or is no longer shared with the project'

/**
 * Opens the turn data and, before the first start, prepares the messages and checks what could refuse the turn. A
 * refusal fails the turn without steps or usage.
 */
export async function prepareTurn(
  services: Services,
  { generation, agent, sealedData }: LoadedTurn,
  source: TurnSource | undefined,
): Promise<{ data: TurnData | null; refusal: RecordedFailure | null }> {
  const refused = (data: TurnData | null, code: string, message: string) => ({ data, refusal: { code, message } })
  if (sealedData === null) return refused(null, 'GENERATION_CONTENT_UNAVAILABLE', 'The turn data was deleted')
  const data = openTurnData(services, generation, sealedData)
  if (!data) return refused(null, 'SECRET_NOT_DECRYPTABLE', 'The turn data cannot be decrypted')
  if (!agent) return refused(data, 'AGENT_NOT_FOUND', AGENT_GONE)
  if (generation.status !== 'pending') return { data, refusal: null }
  if (generation.abort) {
    const { stop_reason: _, ...refusal } = generation.abort
    return { data, refusal }
  }
  if (!(await isStillShared(services, generation))) return refused(data, 'AGENT_NOT_FOUND', AGENT_GONE)
  const forbidden = await refusalToStart(services, generation, source)
  if (forbidden) return { data, refusal: forbidden.recorded() }
  const overspent = await refusalByQuota(services, generation)
  if (overspent) return { data, refusal: overspent }
  if (data.messages !== null || !source?.prepare) return { data, refusal: null }
  const prepared = await source.prepare(services.pool, generation)
  if ('refuse' in prepared) return { data, refusal: prepared.refuse }
  const { overrides } = data
  return {
    data: {
      ...data,
      messages: [...prepared.messages, ...data.settled],
      system_extra: [...data.system_extra, ...prepared.system_extra],
      notes: prepared.notes ?? {},
      shared_state: agent.shared_state ? (prepared.shared_state ?? null) : null,
      context: prepared.context ?? null,
      overrides: prepared.knowledge_config
        ? { ...overrides, knowledge_config: mergedKnowledge(prepared.knowledge_config, overrides.knowledge_config) }
        : overrides,
    },
    refusal: null,
  }
}

/** Turns outside conversations that start this soon after their creation are not checked against quotas again. */
const QUOTA_RECHECK_MS = 1000

/** Returns the refusal of a turn whose quotas were used up while it waited, or null. */
async function refusalByQuota(services: Services, generation: GenerationRow): Promise<RecordedFailure | null> {
  const waited = systemClock.now().getTime() - new Date(generation.created_at).getTime()
  if (generation.conversation_id === null && waited < QUOTA_RECHECK_MS) return null
  try {
    await checkSpend(services, generation, services.pool, { again: true })
    return null
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return error.recorded()
    throw error
  }
}

/** Whether an agent of another project is still shared with the turn's project. */
async function isStillShared(
  { pool }: Services,
  { project_id, publisher_project_id, agent_id }: GenerationRow,
): Promise<boolean> {
  return (
    publisher_project_id === null || (await findGrantingShares(pool, 'agent', project_id, [agent_id])).has(agent_id)
  )
}

/** Fields of a turn whose permissions are checked; without an agent only its permission is. */
type StartingTurn = Pick<GenerationRow, 'authority' | 'permission' | 'project_id'> & { agent_id: string | null }

/**
 * Checks with current permissions whether a turn may start: its principal must have the permission that the turn was
 * created with, and the authors of the definitions that led to it must be permitted to run the agent. Null if it may.
 */
export async function refusalToStart(
  services: Services,
  { authority, permission, project_id, agent_id }: StartingTurn,
  source?: TurnSource,
): Promise<AppError | null> {
  const caller = await callerForPrincipal(services, authority, project_id)
  if (!caller) return new AppError('FORBIDDEN')
  if (caller.layers.length === 0) return null
  const { kind, row } = permission ? await targetOf(services, permission, project_id, source) : {}
  if (permission && !row) return new AppError('FORBIDDEN')
  try {
    if (permission && kind && row) requirePermitted(ownPermissions(caller), permission.action, { kind, row })
    if (agent_id !== null)
      requirePermitted(authorPermissions(caller), 'agents:CreateAgentGeneration', {
        kind: kinds.get('agent'),
        row: { id: agent_id, project_id },
      })
    return null
  } catch (error) {
    if (error instanceof AppError) return error
    throw error
  }
}

async function targetOf(
  { pool }: Services,
  permission: NonNullable<GenerationRow['permission']>,
  project_id: string,
  source: TurnSource | undefined,
): Promise<{ kind: Kind; row: KindRow | null }> {
  const kind = kinds.get(permission.kind)
  if (kind.name === 'agent') return { kind, row: { id: permission.id, project_id } }
  return { kind, row: source?.target?.(permission) ?? (await kind.find(pool, permission.id)) }
}
