import { checkSpend } from '#control/quotas/spend.ts'
import { definitionOf } from '#core/api/authors.ts'
import { kinds } from '#core/api/kind.ts'
import { type OperationResult as Answered, type Context, result } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { narrowAuthority } from '#core/iam/authority.ts'
import { type PrincipalRecord, principalRecord } from '#core/iam/caller.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import { admitTurn } from '../generations/request/admission.ts'
import { type BackendRef, type DeciderBackend, resolveBackend } from './backend.ts'
import { decisionWork } from './evaluate.ts'
import { DECISION_SETTLED_CHANNEL, type DecisionRow, decisionKind, decisionSeal, isDecisionSettled } from './model.ts'
import type { Question } from './questions.ts'
import { type ContentMode, insertDecisionWork, type Permission } from './store.ts'

/** Questions and the backend that answers them. */
export type DecisionBatch = {
  project_id: string
  decider: { id: string; version: number; author: PrincipalRecord | null } | null
  questions: Question[]
  backend: BackendRef
}

/** Input of a decision, as JSON text. */
export type DecisionSubject = { text: string; metadata?: Record<string, unknown> | null }

type RequestContext = Pick<Context, 'services'> &
  (Pick<Context, 'caller'> | { caller: null; principal: PrincipalRecord })

/**
 * Inserts decisions with their work items and wake-ups, all or none. Refusals are raised here, so that no stored
 * decision fails for them.
 * @param permission permission that each decision requires again when it is made, by its id
 * @throws the errors of requireBackendPermission, PROJECT_PAUSED
 */
export async function insertDecisions(
  tx: Tx,
  request: RequestContext,
  { project_id, decider, questions, backend: backendRef }: DecisionBatch,
  items: readonly DecisionSubject[],
  options: { permission: (id: string) => Permission; admit?: (backend: DeciderBackend) => void },
): Promise<DecisionRow[]> {
  const { services } = request
  const requester = request.caller === null ? request.principal : principalRecord(request.caller)
  const principal = decider ? narrowAuthority(requester, definitionOf(decider)) : requester
  const backend = await resolveBackend(tx, project_id, backendRef)
  options.admit?.(backend)
  await admit(tx, services, project_id, backend)
  const mode = await contentMode(tx, project_id, backend)
  const rows: DecisionRow[] = []
  for (const { text, metadata = null } of items) {
    const row = await decisionKind.insert(tx, {
      project_id,
      decider_id: decider?.id ?? null,
      decider_version: decider?.version ?? null,
      asked: questions,
      agent_id: backend.agent?.id ?? null,
      agent_version: backend.agent_version,
      tool_id: backend.tool?.id ?? null,
      metadata,
    })
    const work_id = newId(decisionKind.prefix)
    await insertDecisionWork(tx, {
      decision_id: row.id,
      id: work_id,
      principal,
      permission: options.permission(row.id),
      mode,
      sealed: services.secrets.seal(text, decisionSeal(row)),
    })
    decisionWork.wake(tx, { entity: row.id, id: work_id, project_id })
    rows.push(row)
  }
  return rows
}

/** Raises the errors that refuse work in the project, and for an agent those that refuse a turn. */
async function admit(
  tx: Tx,
  services: Services,
  project_id: string,
  { agent, agent_version }: DeciderBackend,
): Promise<void> {
  if (!agent) return lockUnpaused(tx, project_id)
  await admitTurn(tx, services, { project_id, agent_id: agent.id, pinned_version: agent_version })
  await checkSpend(services, { project_id, agent_id: agent.id, actor_id: null }, tx)
}

/** Returns the stricter content mode of project and agent. */
async function contentMode(tx: Tx, projectId: string, { agent }: DeciderBackend): Promise<ContentMode> {
  if (agent?.trace_content_mode === 'none') return 'none'
  const project = await kinds.get('project').find(tx, projectId)
  return project?.trace_content_mode === 'none' ? 'none' : 'full'
}

/** Fallback for lost notifications. */
const POLL_MS = 2000

/**
 * Returns 201 with a new decision: immediately, or with `wait` after it has settled or SYNC_WAIT_SECONDS have passed. A
 * closed connection changes nothing.
 * @param make inserts the decision; its errors refuse the request
 */
export async function answerDecision(
  { services, request }: Pick<Context, 'services' | 'request'>,
  wait: boolean,
  make: () => Promise<DecisionRow>,
): Promise<Answered> {
  const created = await make()
  return wait ? answerDecisionAgain({ services, request }, created) : result(201, decisionKind.present(created))
}

/**
 * Returns an existing decision after it has settled or SYNC_WAIT_SECONDS have passed.
 * @throws RESOURCE_NOT_FOUND
 */
export async function answerDecisionAgain(
  { services, request }: Pick<Context, 'services' | 'request'>,
  created: { id?: unknown },
): Promise<Answered> {
  const id = created.id as string
  const settled = await waitForDecision(services, id, request.closed, services.config.SYNC_WAIT_SECONDS * 1000)
  if (!settled) return raise('RESOURCE_NOT_FOUND', { message: `Decision ${id} was deleted`, meta: { id } })
  return result(201, decisionKind.present(settled))
}

/** Returns the idempotency record of a new decision. */
export const recordedAs = (row: DecisionRow, wait: boolean) =>
  wait ? { made: { id: row.id } } : { body: decisionKind.present(row) }

/** Waits until a decision has settled or the time is over and returns it; null if it was deleted. */
export const waitForDecision = (
  services: Services,
  id: string,
  closed: AbortSignal,
  withinMs: number,
): Promise<DecisionRow | null> =>
  subscribeUntil<DecisionRow | null>({
    subscribe: notify =>
      services.notifications.listen(DECISION_SETTLED_CHANNEL, settled => settled === id && notify(), {
        onReconnect: notify,
      }),
    read: () => decisionKind.find(services.pool, id),
    isOver: decision => !decision || isDecisionSettled(decision),
    pollMs: POLL_MS,
  }).wait({ closed, withinMs })
