import { deleteMessageTexts, lockMessageTexts } from '#content/documents/message-text.ts'
import { redactEvents, redactFields } from '#control/events/redact.ts'
import {
  type Counts,
  contentUnavailable,
  type EndUser,
  type EndUserContentEraser,
  type EndUserPurge,
  eraseInBatches,
  type TurnContentEraser,
} from '#control/retention/erasure.ts'
import { eraseStoredResponses } from '#core/api/idempotency.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { deleteSummariesOf } from '../summaries/store.ts'
import { deleteDeletedMessages, listDeletedMessages } from './deleted-messages.ts'
import { messageEvents } from './model.ts'
import { eraseHistory, eraseMessages, listMessagesOfEndUser } from './store.ts'

/** Erases the tool calls of replies with their turn; the text of a reply belongs to the conversation. */
export const historyContent: TurnContentEraser = {
  erase: async (tx, turns) => ({
    counts: {
      message_histories: await eraseHistory(
        tx,
        turns.map(({ id }) => id),
      ),
    },
    events: [],
  }),
}

/**
 * Erases messages in an end user's conversations and its messages in other conversations. Messages keep their position
 * without content; a text shared with a fork is erased there too, and summaries that cover it are deleted. Documents used
 * as messages are retained. Copies of messages deleted earlier are erased in events.
 */
export const messageContent: EndUserContentEraser = {
  async erase(purge) {
    const { endUser, until, read } = purge
    await eraseInBatches(
      limit => listMessagesOfEndUser(read, endUser, until, limit),
      documentIds => eraseContent(purge, documentIds),
    )
    await eraseInBatches(
      limit => listDeletedMessages(read, endUser.id, limit),
      documentIds => eraseDeletedMessages(purge, documentIds),
    )
    return 'erased'
  },
}

const eraseContent = ({ services, endUser, write }: EndUserPurge, documentIds: readonly string[]) =>
  write(async tx => {
    const texts = await lockMessageTexts(tx, sql.fragment`select unnest(${sql.array([...documentIds], 'text')})`)
    const messages = await eraseMessages(tx, endUser.project_id, documentIds)
    await deleteSummariesOf(tx, endUser.project_id, documentIds)
    await deleteMessageTexts(tx, texts, sql.fragment`false`)
    return { messages, ...(await eraseCopies(tx, services, endUser, documentIds)) }
  })

const eraseDeletedMessages = ({ services, endUser, write }: EndUserPurge, documentIds: readonly string[]) =>
  write(async tx => {
    await deleteDeletedMessages(tx, endUser.id, documentIds)
    return eraseCopies(tx, services, endUser, documentIds)
  })

const without = redactFields('content', 'parts', 'metadata')

/** Erases messages in events and stored responses. */
const eraseCopies = async (
  tx: Tx,
  services: Services,
  { project_id }: EndUser,
  documentIds: readonly string[],
): Promise<Counts> => ({
  events: await redactEvents(tx, [{ resource_type: messageEvents.name, ids: documentIds, without }]),
  kept_answers: await eraseStoredResponses(tx, services, project_id, documentIds, contentUnavailable()),
})
