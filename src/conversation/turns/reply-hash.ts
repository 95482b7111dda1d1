import { createHash } from 'node:crypto'
import { type Fragment, sql } from '../../core/db/sql.ts'

/** Blocks that clients add to texts of assistants, such as reasoning. */
const DETAILS = /<details\b[^>]*>[\s\S]*?<\/details>/gi

/** Returns a text of an assistant for comparisons, without blocks that clients add. */
export const comparedText = (text: string): string => text.replace(DETAILS, '').trim()

/** Returns the texts of a turn's steps as one text. */
export const joinedTexts = (texts: readonly string[]): string => texts.filter(text => text !== '').join('\n\n')

export const replyHash = (text: string): Buffer => createHash('sha256').update(comparedText(text)).digest()

/** Returns ctes that store the hash of a reply with several texts; its message has only the last one. */
export function replyHashCtes(generationId: string, texts: readonly string[]): Fragment[] {
  if (texts.filter(text => text !== '').length < 2) return []
  const hash = replyHash(joinedTexts(texts))
  return [
    sql.fragment`hashed as (
      insert into reply_hashes (generation_id, hash) values (${generationId}, ${sql.binary(hash)}) on conflict do nothing)`,
  ]
}
