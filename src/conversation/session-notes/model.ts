import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { patchBody, record } from '#core/api/record.ts'
import { sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { displayNameOf } from '#identity/users/display-name.ts'

const AUTHOR_TYPES = ['user', 'api_key'] as const

const fields = { text: z.string().trim().min(1).max(10_000).describe('Text of the note') }

export const SessionNote = record('SessionNote', {
  session_id: z.string(),
  ...fields,
  author: z
    .object({ type: z.enum(AUTHOR_TYPES), id: z.string().describe('ID of the user or key') })
    .describe('Who wrote the note'),
  author_name: z.string().nullable().describe('Display name of the user who wrote the note. Null for a key.'),
})

const example = { text: 'Refunded twice this year. A lead decides on a third refund.' }

export const SessionNoteInput = z.strictObject(fields).meta({ id: 'SessionNoteInput', example })

export const SessionNotePatch = patchBody('SessionNotePatch', fields, example)

const hidden = {
  author_type: z.enum(AUTHOR_TYPES),
  author_id: z.string(),
  session_tags: z.record(z.string(), z.string()),
}
export type SessionNoteRow = z.output<typeof SessionNote> & z.output<z.ZodObject<typeof hidden>>

export const sessionNoteKind = kind({
  name: 'session_note',
  prefix: 'snote',
  table: 'session_notes',
  // Deleted with the session.
  counted: false,
  references: [{ kind: 'session', column: 'session_id', on_delete: 'cascade' }],
  record: SessionNote,
  hidden,
  computed: {
    author: sql.fragment`jsonb_build_object('type', t.author_type, 'id', t.author_id)`,
    author_name: displayNameOf(sql.fragment`t.author_id`),
    session_tags: sql.fragment`(select s.tags from sessions s where s.id = t.session_id)`,
  },
  authorize: ({ session_id, session_tags }) => ({ type: 'session', id: session_id, tags: session_tags }),
  events: ['created', 'updated', 'deleted'],
  eventNotes: 'the text is always null, because triggers give events to models',
  remove: removeNote,
})

/** Emits an event of a note, without its text. */
export function emitNote(tx: Tx, verb: 'created' | 'updated' | 'deleted', row: SessionNoteRow): void {
  tx.emit(sessionNoteKind, verb, row, { data: { ...sessionNoteKind.present(row), text: null } })
}

async function removeNote(tx: Tx, row: SessionNoteRow): Promise<void> {
  await sessionNoteKind.delete(tx, row.id)
  emitNote(tx, 'deleted', row)
}
