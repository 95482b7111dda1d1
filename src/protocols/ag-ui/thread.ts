import { ownsSession } from '#conversation/sessions/end-user.ts'
import { findSession, sessionKind } from '#conversation/sessions/kind.ts'
import { canSeeProject, couldAllowIn, isAllowed, raiseForbidden, requirePermitted } from '#core/api/access.ts'
import { endUserError } from '#core/api/end-user.ts'
import { hasIdPrefix } from '#core/api/kind.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { serviceHeader } from '#core/http/mounts.ts'
import { agentKind } from '#execution/agents/model.ts'
import { generationKind } from '#execution/generations/model.ts'
import { findGrantingShares } from '#execution/grants/grants.ts'
import { type AgUiRequest, callOperation, type Run } from './call.ts'
import { type RunInput, turnOfMessage } from './input.ts'
import { findThread, type Thread } from './store.ts'

/** Threads: sessions by the ids of clients. */

type Actor = { id: string } | { external_id: string }

/** Returns the end user of the token, or the end user that another credential names in a header; null for none. */
function actorOf(request: AgUiRequest): Actor | null {
  const { caller } = request
  if (caller.end_user) return { id: caller.end_user.actor_id }
  const external_id = serviceHeader(request, 'Actor')
  return external_id === undefined ? null : { external_id }
}

/** A run of a thread, which may have no session yet. */
type FoundRun = Omit<Run, 'sessionId'>

/**
 * Finds the thread of a run.
 * @throws RESOURCE_NOT_FOUND for an unknown agent
 */
async function findRunThread(request: AgUiRequest, agentId: string, input: RunInput): Promise<FoundRun> {
  const { services, caller } = request
  const ids = input.messages.map(({ id }) => id)
  const thread = await findThread(services.pool, {
    agent_id: agentId,
    project_id: caller.project_id,
    thread_id: input.threadId,
    session_key: request.mount.keyPrefix + input.threadId,
    run_id: input.runId,
    actor: actorOf(request),
    message_ids: ids,
    generation_ids: ids.flatMap(id => turnOfMessage(id) ?? []),
  })
  const isOpen = caller.end_user?.agent_ids.includes(agentId) ?? true
  if (!thread || !isOpen || !(await isVisible(request, agentId, thread)))
    return raise(agentKind.notFound, { meta: { id: agentId } })
  return { request, agentId, thread, input }
}

/** Whether a credential may learn that an agent exists: one of its project, a shared one, or one of its session. */
async function isVisible({ services, caller }: AgUiRequest, agentId: string, thread: Thread): Promise<boolean> {
  const { project_id, end_user } = caller
  if (project_id === null) return canSeeProject(caller, thread.agent_project_id)
  if (project_id === thread.agent_project_id || thread.session_id !== null || end_user) return true
  return (await findGrantingShares(services.pool, 'agent', project_id, [agentId])).has(agentId)
}

/**
 * Finds the thread of a run, and counts the request.
 * @throws RESOURCE_NOT_FOUND for an unknown agent or the id of another session, QUOTA_EXCEEDED, FORBIDDEN for a caller
 *   that may send messages to no session
 */
export async function findRun(request: AgUiRequest, agentId: string, input: RunInput): Promise<FoundRun> {
  const run = await findRunThread(request, agentId, input)
  const { caller } = request
  const { project_id, session_id } = run.thread
  await request.exchange.request.count?.in(caller, project_id)
  if (session_id !== null) await requireSession(request, session_id)
  else if (!caller.end_user && !couldAllowIn(caller, 'sessions:SendSessionMessage', project_id))
    raiseForbidden(caller, 'sessions:SendSessionMessage')
  return run
}

/**
 * Finds or creates the session of a run.
 * @throws RESOURCE_NOT_FOUND, QUOTA_EXCEEDED, errors of creating a session
 */
export async function openRun(request: AgUiRequest, agentId: string, input: RunInput): Promise<Run> {
  const run = await findRun(request, agentId, input)
  const sessionId = run.thread.session_id ?? (await createSession(request, agentId, input.threadId))
  return { ...run, sessionId }
}

/** Finds the thread of a run again, whose key has moved to another session. */
export async function reopenRun({ request, agentId, input }: Run, sessionId: string): Promise<Run> {
  return { ...(await findRunThread(request, agentId, input)), sessionId }
}

/** Requires that the caller may send to a session. @throws RESOURCE_NOT_FOUND, FORBIDDEN */
async function requireSession({ services, caller }: AgUiRequest, id: string): Promise<void> {
  const row = await findSession(services.pool, id)
  if (!row || (caller.end_user && !ownsSession(row, caller.end_user)))
    return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  requirePermitted(caller, 'sessions:SendSessionMessage', { kind: sessionKind, row })
}

/** Returns the refusal of a caller that has lost its permission; null for any other. */
export async function lostPermission({ request, sessionId }: Run): Promise<AppError | null> {
  try {
    const caller = (await request.exchange.identify()) ?? raise('UNAUTHORIZED')
    await requireSession({ ...request, caller }, sessionId)
    return null
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return error
    throw error
  }
}

async function createSession(request: AgUiRequest, agent_id: string, threadId: string): Promise<string> {
  const actor = actorOf(request)
  if (hasIdPrefix(sessionKind, threadId)) raise('RESOURCE_NOT_FOUND', { meta: { id: threadId } })
  try {
    const { body } = await callOperation(request, 'createSession', {
      body: { agent_id, ...(actor && 'external_id' in actor && { actor: { ...actor, name: actor.external_id } }) },
      client: { session_key: request.mount.keyPrefix + threadId },
    })
    return (body as { id: string }).id
  } catch (error) {
    // The agent is in the path here, not in a body.
    if (error instanceof AppError && error.code === 'AGENT_NOT_FOUND')
      raise(agentKind.notFound, { meta: { id: agent_id } })
    throw error
  }
}

/** Returns an error as the caller sees it. */
export const shownError = ({ request: { caller } }: Run, error: AppError): AppError =>
  caller.end_user ? endUserError(error) : error

/** Whether the caller may read turns of the project, and so sees steps and calls on the server. */
export const seesSteps = ({ request: { caller }, thread: { project_id } }: Run): boolean =>
  !caller.end_user && isAllowed(caller, 'generations:GetGeneration', { kind: generationKind, project_id })
