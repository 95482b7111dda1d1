import { deleteMessageTexts, lockMessageTexts } from '../../content/documents/message-text.ts'
import { redactEvents, redactFields } from '../../control/events/redact.ts'
import {
  type Counts,
  contentUnavailable,
  type EndUser,
  type EndUserContentEraser,
  type EndUserPurge,
  eraseInBatches,
  type TurnContentEraser,
} from '../../control/retention/erasure.ts'
import { eraseStoredResponses } from '../../core/api/idempotency.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { deletedMessagesOf, deleteTombstones } from './deleted-messages.ts'
import { messageEvents } from './model.ts'
import { eraseHistory, eraseMessages, messagesOfEndUser } from './store.ts'

/** The calls that a reply was made with go with its turn; its text belongs to the conversation. */
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
 * Messages of an end user's conversations, and those that it wrote in others. They keep their place and show no content; a
 * text that a fork shares is gone there, too. Documents that messages name stay. Of messages that were deleted before, what
 * events still say goes.
 */
export const messageContent: EndUserContentEraser = {
  async erase(purge) {
    const { endUser, until, read } = purge
    await eraseInBatches(
      limit => messagesOfEndUser(read, endUser, until, limit),
      found => erase(purge, found),
    )
    await eraseInBatches(
      limit => deletedMessagesOf(read, endUser.id, limit),
      found => eraseDeleted(purge, found),
    )
    return 'erased'
  },
}

const erase = ({ services, endUser, write }: EndUserPurge, documentIds: readonly string[]) =>
  write(async tx => {
    const texts = await lockMessageTexts(tx, sql.fragment`select unnest(${sql.array([...documentIds], 'text')})`)
    const messages = await eraseMessages(tx, endUser.project_id, documentIds)
    await deleteMessageTexts(tx, texts, sql.fragment`false`)
    return { messages, ...(await eraseCopies(tx, services, endUser, documentIds)) }
  })

const eraseDeleted = ({ services, endUser, write }: EndUserPurge, documentIds: readonly string[]) =>
  write(async tx => {
    await deleteTombstones(tx, endUser.id, documentIds)
    return eraseCopies(tx, services, endUser, documentIds)
  })

const without = redactFields('content', 'metadata')

/** What events and kept answers say of messages. */
const eraseCopies = async (
  tx: Tx,
  services: Services,
  { project_id }: EndUser,
  documentIds: readonly string[],
): Promise<Counts> => ({
  events: await redactEvents(tx, [{ resource_type: messageEvents.name, ids: documentIds, without }]),
  kept_answers: await eraseStoredResponses(tx, services, project_id, documentIds, contentUnavailable()),
})
