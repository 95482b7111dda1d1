import { type Fragment, rawFragment, sql } from '#core/db/sql.ts'

/** Number of characters of a preview. */
export const PREVIEW_CHARS = 200

const CHARS = rawFragment(String(PREVIEW_CHARS))

/** Expression for the beginning of the text of a message `m`; null without a text. By the primary keys. */
export const messagePreview: Fragment = sql.fragment`(
  select left(x.content, ${CHARS}) from documents d join document_texts x on x.document_id = d.id
  where d.id = m.document_id and d.status <> 'withdrawn')`
