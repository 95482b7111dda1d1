import { checkSpend } from '../../control/quotas/spend.ts'
import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { kinds } from '../../core/api/kind.ts'
import { permitted } from '../../core/iam/access.ts'
import type { Services } from '../../core/process/services.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import { grantingShares } from '../shares/grants.ts'
import type { LoadedTurn } from './attempt-store.ts'
import type { GenerationRow, Work } from './model.ts'
import type { TurnSource } from './source.ts'
import { openWork } from './work.ts'

const AGENT_GONE = 'The agent is no longer there, or no longer shared with the project'

/**
 * What a turn works on, and what refuses it before it starts: a refusal fails it without steps or usage. A turn that has
 * started is not asked again.
 */
export async function prepareTurn(
  services: Services,
  { generation, agent, sealedWork }: LoadedTurn,
  source: TurnSource | undefined,
): Promise<{ work: Work | null; refusal: RecordedFailure | null }> {
  const refused = (work: Work | null, code: string, message: string) => ({ work, refusal: { code, message } })
  if (sealedWork === null)
    return refused(null, 'GENERATION_CONTENT_UNAVAILABLE', 'The working state of the turn is gone')
  const work = openWork(services, generation, sealedWork)
  if (!work) return refused(null, 'SECRET_NOT_DECRYPTABLE', 'The working state of the turn cannot be decrypted')
  if (!agent) return refused(work, 'AGENT_NOT_FOUND', AGENT_GONE)
  if (generation.status !== 'pending') return { work, refusal: null }
  if (generation.abort) {
    const { stop_reason: _, ...refusal } = generation.abort
    return { work, refusal }
  }
  if (!(await isStillShared(services, generation))) return refused(work, 'AGENT_NOT_FOUND', AGENT_GONE)
  if (!(await mayStart(services, generation, source))) return refused(work, 'FORBIDDEN', 'Forbidden')
  const overspent = await refusalByQuota(services, generation)
  if (overspent) return { work, refusal: overspent }
  if (work.messages !== null || !source?.prepare) return { work, refusal: null }
  const prepared = await source.prepare(services.pool, generation)
  if ('refuse' in prepared) return { work, refusal: prepared.refuse }
  return {
    work: {
      ...work,
      messages: [...prepared.messages, ...work.settled],
      system_extra: [...work.system_extra, ...prepared.system_extra],
      notes: prepared.notes ?? {},
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

/** Whether whom the turn runs as still has the permission that it was made with. */
export async function mayStart(
  services: Services,
  { authority, permission, project_id }: Pick<GenerationRow, 'authority' | 'permission' | 'project_id'>,
  source?: TurnSource,
): Promise<boolean> {
  const caller = await callerForPrincipal(services, authority, project_id)
  if (!caller) return false
  if (!permission || caller.layers.length === 0) return true
  const kind = kinds.get(permission.kind)
  const row =
    kind.name === 'agent'
      ? { id: permission.id, project_id }
      : (source?.target?.(permission) ?? (await kind.find(services.pool, permission.id)))
  return row !== null && permitted(caller, permission.action, { kind, row })
}
