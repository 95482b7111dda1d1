import type { Queryable } from '../../core/db/sql.ts'
import { essenceOf } from '../files/media-type.ts'
import type { IngestionRuleRow } from './model.ts'
import { bestRule } from './store.ts'

/** Types whose text is read without a converter. */
const NATIVE = new Set(['application/pdf', 'text/plain', 'text/markdown'])

export const isNative = (contentType: string | null): boolean =>
  contentType !== null && NATIVE.has(essenceOf(contentType))

/** The rule of a project that a file goes by as rules stand now; null when none matches. */
export const matchRule = async (
  db: Queryable,
  projectId: string,
  file: { content_type: string | null; path: string | null },
): Promise<IngestionRuleRow | null> =>
  file.content_type === null ? null : bestRule(db, projectId, essenceOf(file.content_type), file.path)
