import type { Queryable } from '#core/db/sql.ts'
import { type IngestionRuleRow, ingestionRuleKind } from './model.ts'

/** Lists the rules of a project, oldest first. Index ingestion_rules_project. */
export const listIngestionRules = (db: Queryable, projectId: string): Promise<readonly IngestionRuleRow[]> =>
  db.any(ingestionRuleKind.sql`select * from ingestion_rules where project_id = ${projectId} order by created_at, id`)

/**
 * Returns the rule for a path and a media type in lower case without parameters: the longest path prefix, then the
 * fewest `*`, then the longest glob, then alphabetical order. Globs contain no other `like` wildcards. Index
 * ingestion_rules_glob; a project has few rules.
 */
export const findMatchingRule = (
  db: Queryable,
  projectId: string,
  mediaType: string,
  path: string | null,
): Promise<IngestionRuleRow | null> =>
  db.maybeOne(ingestionRuleKind.sql`
    select * from ingestion_rules
    where project_id = ${projectId} and enabled and ${mediaType} like replace(content_type_glob, '*', '%')
      and (path_prefix is null or path_prefix = ${path} or starts_with(${path}, path_prefix || '/'))
    order by coalesce(length(path_prefix), 0) desc, length(content_type_glob) - length(replace(content_type_glob, '*', '')),
      length(content_type_glob) desc, content_type_glob collate "C"
    limit 1`)
