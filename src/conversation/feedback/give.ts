import type { z } from 'zod'
import { redactEvents } from '#control/events/redact.ts'
import { contentUnavailable } from '#control/retention/erasure.ts'
import { eraseStoredResponses } from '#core/api/idempotency.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { SessionRow } from '../sessions/model.ts'
import { feedbackEvents } from './erase.ts'
import { type FeedbackInput, type FeedbackRow, feedbackKind } from './model.ts'
import { type Author, lockFeedback, referenceMessage, referenceReply, referenceTurn, type Target } from './store.ts'

/** Returns the author of feedback that a caller gives. */
export const authorOf = ({ end_user, principal: { type, id } }: Pick<Caller, 'end_user' | 'principal'>): Author =>
  end_user ? { type: 'actor', id: end_user.actor_id } : { type, id }

/**
 * Returns a reply of a session as target.
 * @throws RESOURCE_NOT_FOUND; VALIDATION_FAILED for another message
 */
export async function targetOfMessage(tx: Tx, session: SessionRow, documentId: string): Promise<Target> {
  const { conversation_id } = session
  const message = await referenceMessage(tx, conversation_id, documentId)
  if (!message) return raise('RESOURCE_NOT_FOUND', { meta: { id: documentId } })
  if (message.origin !== 'agent')
    raiseInvalid({ code: 'INVALID_VALUE', path: 'document_id', message: 'must be a reply of the agent' })
  const turn = message.generation_id === null ? null : await referenceTurn(tx, message.generation_id)
  return {
    project_id: session.project_id,
    session_id: session.id,
    conversation_id,
    document_id: documentId,
    generation_id: message.generation_id,
    agent_id: turn?.agent_id ?? message.agent_id ?? session.agent_id,
    agent_version: turn?.agent_version ?? null,
    actor_id: session.actor_id,
  }
}

/**
 * Returns a settled turn as target, by its reply if that is a message.
 * @throws GENERATION_NOT_FOUND; GENERATION_ALREADY_IN_PROGRESS for an open turn
 */
export async function targetOfTurn(tx: Tx, id: string): Promise<Target> {
  const turn = (await referenceTurn(tx, id)) ?? raise('GENERATION_NOT_FOUND', { meta: { id } })
  if (turn.status !== 'completed' && turn.status !== 'failed')
    raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: id } })
  const { project_id, agent_id, agent_version, session_id, actor_id } = turn
  const document_id = turn.conversation_id === null ? null : await referenceReply(tx, turn)
  return {
    project_id,
    session_id,
    conversation_id: document_id && turn.conversation_id,
    document_id,
    generation_id: id,
    agent_id,
    agent_version,
    actor_id,
  }
}

type Given = z.output<typeof FeedbackInput>

/** Writes the feedback of an author on a target, in place of an earlier one. */
export async function giveFeedback(tx: Tx, target: Target, author: Author, given: Given): Promise<FeedbackRow> {
  const { rating = null, score = null, labels, comment = null } = given
  const values = { rating, score, labels, comment, erased: false }
  const row = { ...target, author_type: author.type, author_id: author.id, ...values }
  const emit = (verb: 'created' | 'updated', written: FeedbackRow): FeedbackRow => {
    tx.emit(feedbackKind, verb, written, eventData(written))
    return written
  }
  for (;;) {
    const stored = await lockFeedback(tx, target, author)
    if (stored) return emit('updated', await feedbackKind.update(tx, stored.id, values))
    const created = await feedbackKind.insertUnlessTaken(tx, row)
    if (created) return emit('created', created)
    // Another request of the author wrote it since.
  }
}

/** Deletes the feedback of an author on a target, and its labels and comment in events and stored responses. */
export async function deleteFeedback(tx: Tx, services: Services, target: Target, author: Author): Promise<void> {
  const stored = await lockFeedback(tx, target, author)
  if (!stored) return raise('RESOURCE_NOT_FOUND', { meta: { id: target.document_id ?? target.generation_id } })
  await feedbackKind.delete(tx, stored.id)
  await redactEvents(tx, feedbackEvents([stored.id]))
  await eraseStoredResponses(tx, services, stored.project_id, [stored.id], contentUnavailable())
  const row = { ...stored, labels: [], comment: null }
  tx.emit(feedbackKind, 'deleted', row, eventData(row))
}

/** Data of events, which triggers give to models: without the comment. */
const eventData = (row: FeedbackRow) => ({
  data: { ...feedbackKind.present(row), comment: null },
  extra: { has_comment: row.comment !== null },
})
