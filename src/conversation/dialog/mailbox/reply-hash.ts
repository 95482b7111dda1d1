import { createHash } from 'node:crypto'
import { type Fragment, sql } from '#core/db/sql.ts'

const DETAILS = /<details\b/gi
const END_OF_DETAILS = /<\/details>/gi

/** Returns the end of the first match at or after a position, or -1. */
function indexOfMatch(pattern: RegExp, text: string, from: number): number {
  pattern.lastIndex = from
  return pattern.test(text) ? pattern.lastIndex : -1
}

/**
 * Returns a text of an assistant for comparisons, without `details` blocks, which clients add, for example with the
 * reasoning. One pattern for a whole block would search its end again from each start: models and callers write the text.
 */
export function comparedText(text: string): string {
  let compared = ''
  let from = 0
  for (;;) {
    const afterName = indexOfMatch(DETAILS, text, from)
    const tag = afterName === -1 ? -1 : text.indexOf('>', afterName)
    const end = tag === -1 ? -1 : indexOfMatch(END_OF_DETAILS, text, tag + 1)
    if (end === -1) return (compared + text.slice(from)).trim()
    compared += text.slice(from, afterName - '<details'.length)
    from = end
  }
}

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
