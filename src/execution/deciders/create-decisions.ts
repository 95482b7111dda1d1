import { checkSpend } from '../../control/quotas/spend.ts'
import { definitionOf } from '../../core/api/authors.ts'
import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { kinds } from '../../core/api/kind.ts'
import { type OperationResult as Answered, type Context, result } from '../../core/api/operation.ts'
import type { Tx } from '../../core/db/writer.ts'
import { narrowAuthority } from '../../core/iam/authority.ts'
import { type PrincipalRecord, principalRecord } from '../../core/iam/caller.ts'
import { subscribeUntil } from '../../core/jobs/subscription.ts'
import type { Services } from '../../core/process/services.ts'
import { lockUnpaused } from '../../identity/projects/pause.ts'
import { admitTurn } from '../generations/request/admission.ts'
import { type BackendRef, type DeciderBackend, resolveBackend } from './backend.ts'
import { DECISION_SETTLED_CHANNEL, type DecisionRow, decisionKind, isDecisionSettled } from './model.ts'
import type { Question } from './questions.ts'
import { decisionQueue } from './queue.ts'
import { type ContentMode, insertDecisionWork, type Permission } from './store.ts'

/** What is asked of whom. */
export type DecisionBatch = {
  project_id: string
  decider: { id: string; version: number; author: PrincipalRecord | null } | null
  questions: Question[]
  backend: BackendRef
}

/** What is asked about, as JSON. */
export type DecisionSubject = { text: string; metadata?: Record<string, unknown> | null }

type Requesting = Pick<Context, 'services'> & (Pick<Context, 'caller'> | { caller: null; principal: PrincipalRecord })

/** What binds a sealed input to its decision. */
export const decisionSeal = ({ id, project_id }: Pick<DecisionRow, 'id' | 'project_id'>) => ({
  kind: 'decision_input',
  id,
  project_id,
})

/**
 * Writes decisions with their attempts and wake-ups, all or none. What can refuse one does so here, so that no decision
 * fails for it.
 * @param permission what each is asked for again when it is made, by its id
 * @throws what requireBackend does, PROJECT_PAUSED
 */
export async function insertDecisions(
  tx: Tx,
  requesting: Requesting,
  { project_id, decider, questions, backend: named }: DecisionBatch,
  items: readonly DecisionSubject[],
  options: { permission: (id: string) => Permission; admit?: (backend: DeciderBackend) => void },
): Promise<DecisionRow[]> {
  const { services } = requesting
  const asker = requesting.caller === null ? requesting.principal : principalRecord(requesting.caller)
  const principal = decider ? narrowAuthority(asker, definitionOf(decider)) : asker
  const backend = await resolveBackend(tx, project_id, named)
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
    const attempt_id = newId('dec')
    await insertDecisionWork(tx, {
      decision_id: row.id,
      id: attempt_id,
      principal,
      permission: options.permission(row.id),
      mode,
      sealed: services.secrets.seal(text, decisionSeal(row)),
    })
    tx.send(decisionQueue, { decision_id: row.id, attempt_id, project_id })
    rows.push(row)
  }
  return rows
}

/** Raises what refuses work in the project, and of an agent what refuses a turn. */
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

/** The stricter of what the project and the agent say. */
async function contentMode(tx: Tx, projectId: string, { agent }: DeciderBackend): Promise<ContentMode> {
  if (agent?.trace_content_mode === 'none') return 'none'
  const project = await kinds.get('project').find(tx, projectId)
  return project?.trace_content_mode === 'none' ? 'none' : 'full'
}

/** The floor under the notifications. */
const POLL_MS = 2000

/**
 * Answers 201 with a new decision: as it is at once, or with `wait` as it is once it has settled or SYNC_WAIT_SECONDS are
 * over. A caller that goes away changes nothing.
 * @param make writes the decision; what it raises refuses the request
 */
export async function answerDecision(
  { services, request }: Pick<Context, 'services' | 'request'>,
  wait: boolean,
  make: () => Promise<DecisionRow>,
): Promise<Answered> {
  const made = await make()
  return wait ? answerDecisionAgain({ services, request }, made) : result(201, decisionKind.present(made))
}

/** Answers with a decision that there is once it has settled, or after SYNC_WAIT_SECONDS. Raises RESOURCE_NOT_FOUND. */
export async function answerDecisionAgain(
  { services, request }: Pick<Context, 'services' | 'request'>,
  made: { id?: unknown },
): Promise<Answered> {
  const id = made.id as string
  const settled = await waitForDecision(services, id, request.closed, services.config.SYNC_WAIT_SECONDS * 1000)
  if (!settled) return raise('RESOURCE_NOT_FOUND', { message: 'The decision is gone', meta: { id } })
  return result(201, decisionKind.present(settled))
}

/** What a new decision leaves for repeats. */
export const recordedAs = (row: DecisionRow, wait: boolean) =>
  wait ? { made: { id: row.id } } : { body: decisionKind.present(row) }

/** A decision as it is at its end, or when the time is over; null when it is gone. */
export const waitForDecision = (
  services: Services,
  id: string,
  closed: AbortSignal,
  withinMs: number,
): Promise<DecisionRow | null> =>
  subscribeUntil<DecisionRow | null>({
    subscribe: notice =>
      services.notifications.listen(DECISION_SETTLED_CHANNEL, settled => settled === id && notice(), {
        onReconnect: notice,
      }),
    read: () => decisionKind.find(services.pool, id),
    isOver: decision => !decision || isDecisionSettled(decision),
    pollMs: POLL_MS,
  }).wait({ closed, withinMs })
