import { isDeepStrictEqual } from 'node:util'
import type { z } from 'zod'
import type { Context } from '#core/api/operation.ts'
import { replacedTags } from '#core/api/tags.ts'
import { callerContext } from '#core/api/tool-context.ts'
import { raise } from '#core/base/errors.ts'
import { checkOverlay, type SessionKnowledge } from '#execution/agents/knowledge.ts'
import { findAgent } from '#execution/agents/model.ts'
import { addSessionFrame } from '../dialog/messages/frames.ts'
import { requireSingleSession } from './create.ts'
import { expireLockedSessions } from './expire.ts'
import { sessionKind } from './kind.ts'
import type { SessionPatch, SessionRow } from './model.ts'
import { sessionFailure } from './session-locks.ts'
import { lockPair, type SessionChange, updateSession } from './store.ts'
import { cancelDelayedAutoTurn, clearTurns } from './turns.ts'

type Patch = z.output<typeof SessionPatch>

/** Returns the fields of a patch whose value differs from the stored one. */
function changedFields(session: SessionRow, patch: SessionChange): SessionChange {
  const differing = Object.entries(patch).filter(
    ([key, value]) => value !== undefined && !isDeepStrictEqual(value, session[key as keyof SessionRow]),
  )
  return Object.fromEntries(differing)
}

/**
 * Updates a session: settings, close, reopen. Closing clears the mailbox in the same transaction, so that a concurrent
 * reply finds the session closed. A patch without changes emits nothing.
 * @throws SESSION_EXPIRED for a status change of an expired session, SINGLE_SESSION_CONFLICT for a reopen
 */
export async function changeSession(
  context: Pick<Context<unknown, Patch, SessionRow>, 'tx' | 'services' | 'body' | 'resource' | 'allow' | 'allowTags'>,
): Promise<SessionRow> {
  const { tx, services, body, resource } = context
  if (body.status === 'open' && resource.actor_id) await lockPair(tx, resource.agent_id, resource.actor_id)
  let session = await sessionKind.lock(tx, resource.id)
  if (session.status === 'expired') {
    if (body.status !== undefined) raise('SESSION_EXPIRED', { meta: { session_id: session.id } })
    if (session.stored_status !== 'expired') session = (await expireLockedSessions(tx, [session.id]))[0] ?? session
  }
  const { status, tags, tool_context, ...settings } = body
  const change = changedFields(session, {
    ...settings,
    status,
    tags: tags && replacedTags(session.tags, tags),
    tool_context:
      tool_context === undefined ? undefined : callerContext(tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX),
  })
  if (Object.keys(change).length === 0) return session
  if (change.tags) context.allowTags(change.tags)
  if (change.knowledge_config) await checkKnowledge(context, session, change.knowledge_config)
  if (change.status === 'open') {
    await requireReopenable(tx, session)
    change.reopened = true
  }
  if (change.status === 'closed')
    await clearTurns(tx, services, session, sessionFailure('SESSION_CLOSED', undefined, { session_id: session.id }))
  else if (change.auto_generate === false) await cancelDelayedAutoTurn(tx, services, session)
  const next = await updateSession(tx, session.id, change)
  tx.emit(sessionKind, 'updated', next)
  addSessionFrame(tx, { session_id: next.id }, { event: 'session' })
  if (change.status === 'closed') tx.emit(sessionKind, 'closed', next)
  // A shorter time to live may have passed already.
  return (await expireLockedSessions(tx, [next.id]))[0] ?? next
}

/** Checks a knowledge configuration, unless the agent was deleted and the session gets no more turns. */
async function checkKnowledge(
  context: Pick<Context, 'tx' | 'allow'>,
  { agent_id, project_id }: SessionRow,
  config: SessionKnowledge,
): Promise<void> {
  const agent = await findAgent(context.tx, agent_id)
  if (agent) await checkOverlay(context, agent, project_id, config)
}

/** Checks `single_session_per_actor` for a session that is reopened. */
async function requireReopenable(tx: Context['tx'], session: SessionRow): Promise<void> {
  if (session.actor_id === null) return
  const agent = await findAgent(tx, session.agent_id)
  if (agent?.single_session_per_actor) await requireSingleSession(tx, session.agent_id, session.actor_id)
}
