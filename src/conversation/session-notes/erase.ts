import { contentUnavailable, type EndUserContentEraser, eraseInBatches } from '#control/retention/erasure.ts'
import { eraseStoredResponses } from '#core/api/idempotency.ts'
import { deleteNotes, listNotesOfEndUser } from './store.ts'

/** Deletes the notes of an end user's sessions: they are about the end user, and mean nothing without their text. */
export const noteContent: EndUserContentEraser = {
  async erase({ services, endUser, until, read, write }) {
    await eraseInBatches(
      limit => listNotesOfEndUser(read, endUser, until, limit),
      found =>
        write(async tx => {
          const ids = await deleteNotes(tx, found)
          return {
            session_notes: ids.length,
            kept_answers: await eraseStoredResponses(tx, services, endUser.project_id, ids, contentUnavailable()),
          }
        }),
    )
    return 'erased'
  },
}
