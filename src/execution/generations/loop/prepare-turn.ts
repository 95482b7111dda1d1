import { checkSpend } from '../../../control/quotas/spend.ts'
import { AppError, type RecordedFailure } from '../../../core/api/errors.ts'
import { type Kind, type KindRow, kinds } from '../../../core/api/kind.ts'
import { authorsRights, ownRights, requirePermitted } from '../../../core/iam/access.ts'
import type { Services } from '../../../core/process/services.ts'
import { callerForPrincipal } from '../../../identity/principals.ts'
import { mergedKnowledge } from '../../agents/knowledge.ts'
import { grantingShares } from '../../shares/grants.ts'
import type { GenerationRow, TurnData } from '../model.ts'
import { openTurnData } from './turn-data.ts'
import type { TurnSource } from './turn-owner.ts'
import type { LoadedTurn } from './turn-store.ts'

const AGENT_GONE = 'The agent is no longer there, or no longer shared with the project'

/**
 * What a turn works on, and what refuses it before it starts: a refusal fails it without steps or usage. A turn that has
 * started is not asked again.
 */
export async function prepareTurn(
  services: Services,
  { generation, agent, sealedWork }: LoadedTurn,
  source: TurnSource | undefined,
): Promise<{ work: TurnData | null; refusal: RecordedFailure | null }> {
  const refused = (work: TurnData | null, code: string, message: string) => ({ work, refusal: { code, message } })
  if (sealedWork === null)
    return refused(null, 'GENERATION_CONTENT_UNAVAILABLE', 'The working state of the turn is gone')
  const work = openTurnData(services, generation, sealedWork)
  if (!work) return refused(null, 'SECRET_NOT_DECRYPTABLE', 'The working state of the turn cannot be decrypted')
  if (!agent) return refused(work, 'AGENT_NOT_FOUND', AGENT_GONE)
  if (generation.status !== 'pending') return { work, refusal: null }
  if (generation.abort) {
    const { stop_reason: _, ...refusal } = generation.abort
    return { work, refusal }
  }
  if (!(await isStillShared(services, generation))) return refused(work, 'AGENT_NOT_FOUND', AGENT_GONE)
  const forbidden = await refusalToStart(services, generation, source)
  if (forbidden) return { work, refusal: forbidden.recorded() }
  const overspent = await refusalByQuota(services, generation)
  if (overspent) return { work, refusal: overspent }
  if (work.messages !== null || !source?.prepare) return { work, refusal: null }
  const prepared = await source.prepare(services.pool, generation)
  if ('refuse' in prepared) return { work, refusal: prepared.refuse }
  const { overrides } = work
  return {
    work: {
      ...work,
      messages: [...prepared.messages, ...work.settled],
      system_extra: [...work.system_extra, ...prepared.system_extra],
      notes: prepared.notes ?? {},
      overrides: prepared.knowledge_config
        ? { ...overrides, knowledge_config: mergedKnowledge(prepared.knowledge_config, overrides.knowledge_config) }
        : overrides,
    },
    refusal: null,
  }
}

/** A turn outside of a conversation that starts so soon after it was let in is not asked again. */
const AT_ONCE_MS = 1000

/** What refuses a turn that waited while others used up what its quotas allow; null when nothing does. */
async function refusalByQuota(services: Services, generation: GenerationRow): Promise<RecordedFailure | null> {
  const waited = Date.now() - new Date(generation.created_at).getTime()
  if (generation.conversation_id === null && waited < AT_ONCE_MS) return null
  try {
    await checkSpend(services, generation, services.pool, { again: true })
    return null
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return error.recorded()
    throw error
  }
}

/** Whether an agent of another project may be called at this moment. */
async function isStillShared(
  { pool }: Services,
  { project_id, publisher_project_id, agent_id }: GenerationRow,
): Promise<boolean> {
  return publisher_project_id === null || (await grantingShares(pool, 'agent', project_id, [agent_id])).has(agent_id)
}

/** What a turn is asked for again before it acts; without an agent only its permission is. */
type Starting = Pick<GenerationRow, 'authority' | 'permission' | 'project_id'> & { agent_id: string | null }

/**
 * Why a turn may not act as of now; null when it may. Whom it runs as must still have the permission that it was made with,
 * and the authors of the definitions that led to it the right to start the agent.
 */
export async function refusalToStart(
  services: Services,
  { authority, permission, project_id, agent_id }: Starting,
  source?: TurnSource,
): Promise<AppError | null> {
  const caller = await callerForPrincipal(services, authority, project_id)
  if (!caller) return new AppError('FORBIDDEN')
  if (caller.layers.length === 0) return null
  const { kind, row } = permission ? await targetOf(services, permission, project_id, source) : {}
  if (permission && !row) return new AppError('FORBIDDEN')
  try {
    if (permission && kind && row) requirePermitted(ownRights(caller), permission.action, { kind, row })
    if (agent_id !== null)
      requirePermitted(authorsRights(caller), 'agents:CreateAgentGeneration', {
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
