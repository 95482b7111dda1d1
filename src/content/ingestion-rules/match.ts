import type { Queryable } from '#core/db/sql.ts'
import { essenceOf } from '../files/media-type.ts'
import type { IngestionRuleRow } from './model.ts'
import { findMatchingRule } from './store.ts'

/** Types whose text is extracted without a converter. */
const NATIVE = new Set(['application/pdf', 'text/plain', 'text/markdown'])

export const isNative = (contentType: string | null): boolean =>
  contentType !== null && NATIVE.has(essenceOf(contentType))

/** Returns the rule of a project that currently matches a file, or null. */
export const matchRule = async (
  db: Queryable,
  projectId: string,
  file: { content_type: string | null; path: string | null },
): Promise<IngestionRuleRow | null> =>
  file.content_type === null ? null : findMatchingRule(db, projectId, essenceOf(file.content_type), file.path)
