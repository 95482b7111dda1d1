import { z } from 'zod'
import { listTargetOf, visibleRows } from '#core/api/access.ts'
import type { EntryFields } from '#core/api/entry-fields.ts'
import { type Fragment, isoTime, rawFragment, sql } from '#core/db/sql.ts'
import { MESSAGE_ORIGINS } from '../dialog/messages/model.ts'
import { messageOrigin } from '../dialog/messages/store.ts'
import { sessionKind } from './kind.ts'

/** Number of characters of a preview. */
const PREVIEW_CHARS = 200

const CHARS = rawFragment(String(PREVIEW_CHARS))

/** Expression for the beginning of the text of a message `m`; null without a text. By the primary keys. */
const messagePreview: Fragment = sql.fragment`(
  select left(x.content, ${CHARS}) from documents d join document_texts x on x.document_id = d.id
  where d.id = m.document_id and d.status <> 'withdrawn')`

/** A message with the beginning of its text. */
export const previewFields = {
  role: z.enum(['user', 'assistant']).describe('Role of the message'),
  origin: z.enum(MESSAGE_ORIGINS).describe('Origin of the message'),
  preview: z.string().nullable().describe(`The first ${PREVIEW_CHARS} characters of the text. Null if it was erased.`),
  created_at: z.iso.datetime(),
}

/** Arguments of jsonb_build_object for the fields of a preview of a message `m`. */
export const previewOfMessage: Fragment = sql.fragment`'role', m.role, 'origin', ${messageOrigin},
  'preview', ${messagePreview}, 'created_at', ${isoTime(sql.fragment`m.created_at`)}`

/** The last message of a session `t`, without notes of the platform. By conversation_messages_position. */
export const lastMessage: EntryFields = {
  shape: {
    last_message: z
      .object(previewFields)
      .nullable()
      .describe('Last message. Null without one, and without `sessions:ListSessionMessages`.'),
  },
  select({ caller, project }) {
    if (caller.end_user) return sql.fragment`'{}'::jsonb`
    const { rows } = visibleRows(
      caller,
      { ...listTargetOf(sessionKind), action: 'sessions:ListSessionMessages', project },
      { project: sql.fragment`t.project_id`, id: sql.fragment`t.id`, tags: sql.fragment`t.tags` },
    )
    return sql.fragment`case when ${rows} then jsonb_build_object('last_message', (
      select jsonb_build_object(${previewOfMessage}) from conversation_messages m
      where m.conversation_id = t.conversation_id and not m.note order by m.position desc limit 1)) else '{}' end`
  },
}
