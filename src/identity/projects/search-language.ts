import { z } from 'zod'
import { type Problem, raiseInvalid } from '#core/base/errors.ts'
import { invalidateOnCommit } from '#core/db/notified-cache.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'

/** Channel of changes of search languages; the payload is the project. */
export const searchLanguageChannel = 'muster_search_languages'

/** A language of texts for searches by words. The database is queried for it separately. */
export const SearchLanguage = z.string().min(1).max(128).toLowerCase().nullable()

const existsRow = sql.type(z.object({ exists: z.boolean() }))

/** Problem of a language that the database does not have; null for a valid one. */
export async function searchLanguageProblem(
  db: Queryable,
  language: string | null | undefined,
): Promise<Problem | null> {
  if (language == null || language === 'auto') return null
  const exists = await db.oneFirst(existsRow`
    select exists (
      select from pg_ts_config t join pg_namespace n on n.oid = t.cfgnamespace
      where (t.cfgname = ${language} and pg_ts_config_is_visible(t.oid)) or n.nspname || '.' || t.cfgname = ${language}
    ) as exists`)
  if (exists) return null
  return {
    code: 'INVALID_VALUE',
    path: 'search_language',
    message: 'must be `auto` or the name of a text search configuration of the database, such as `german`',
  }
}

/** Raises VALIDATION_FAILED for a language that the database does not have. */
export async function requireSearchLanguage(db: Queryable, language: string | null | undefined): Promise<void> {
  const problem = await searchLanguageProblem(db, language)
  if (problem) raiseInvalid(problem)
}

/** Invalidates the cached languages of a project, and of searches over all projects. */
export function searchLanguageChanged(tx: Tx, projectId: string): void {
  invalidateOnCommit(tx, searchLanguageChannel, projectId)
  invalidateOnCommit(tx, searchLanguageChannel, '')
}
