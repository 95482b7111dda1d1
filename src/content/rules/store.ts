import { UniqueIntegrityConstraintViolationError } from 'slonik'
import { raise } from '../../core/api/errors.ts'
import { jsonb, type Queryable, sql } from '../../core/db/sql.ts'
import { IngestionRule, type IngestionRuleRow, type RuleConfig } from './model.ts'

const rule = sql.type(IngestionRule)

/** Adds a rule; null when the project has one of its glob and path prefix (index ingestion_rules_glob). */
export const insertRule = (
  db: Queryable,
  id: string,
  projectId: string,
  config: RuleConfig,
): Promise<IngestionRuleRow | null> =>
  db.maybeOne(rule`
    insert into ingestion_rules (id, project_id, enabled, content_type_glob, path_prefix, tool_id, agent_id, action,
      preset_parameters, native_extraction, file_delivery, chunk_strategy, chunk_unit, chunk_size, chunk_overlap, metadata)
    values (${id}, ${projectId}, ${config.enabled}, ${config.content_type_glob}, ${config.path_prefix}, ${config.tool_id},
      ${config.agent_id}, ${config.action}, ${jsonb(config.preset_parameters)}, ${config.native_extraction},
      ${config.file_delivery}, ${config.chunk_strategy}, ${config.chunk_unit}, ${config.chunk_size},
      ${config.chunk_overlap}, ${jsonb(config.metadata)})
    on conflict (project_id, content_type_glob, path_prefix) do nothing
    returning *`)

/** Writes a rule's configuration. Raises INGESTION_RULE_GLOB_CONFLICT when another rule has its glob and path prefix. */
export async function updateRule(db: Queryable, id: string, config: RuleConfig): Promise<IngestionRuleRow> {
  try {
    return await db.one(rule`
      update ingestion_rules set enabled = ${config.enabled}, content_type_glob = ${config.content_type_glob},
        path_prefix = ${config.path_prefix}, tool_id = ${config.tool_id}, agent_id = ${config.agent_id},
        action = ${config.action}, preset_parameters = ${jsonb(config.preset_parameters)},
        native_extraction = ${config.native_extraction}, file_delivery = ${config.file_delivery},
        chunk_strategy = ${config.chunk_strategy}, chunk_unit = ${config.chunk_unit}, chunk_size = ${config.chunk_size},
        chunk_overlap = ${config.chunk_overlap}, metadata = ${jsonb(config.metadata)}, updated_at = now()
      where id = ${id} returning *`)
  } catch (error) {
    if (error instanceof UniqueIntegrityConstraintViolationError) return globConflict(config)
    throw error
  }
}

/** Raises INGESTION_RULE_GLOB_CONFLICT for what a rule is for. */
export const globConflict = ({ content_type_glob, path_prefix }: RuleConfig): never =>
  raise('INGESTION_RULE_GLOB_CONFLICT', { meta: { content_type_glob, path_prefix } })

/** Deletes a rule; null when it was gone. */
export const deleteRule = (db: Queryable, id: string): Promise<IngestionRuleRow | null> =>
  db.maybeOne(rule`delete from ingestion_rules where id = ${id} returning *`)

/** The rules of a project, oldest first (index ingestion_rules_project). */
export const rulesOf = (db: Queryable, projectId: string): Promise<readonly IngestionRuleRow[]> =>
  db.any(rule`select * from ingestion_rules where project_id = ${projectId} order by created_at, id`)

/**
 * The rule for a media type in lower case without parameters, at a path: the longest path prefix, then the fewest `*`,
 * then the longest glob, then the first in the alphabet (content, 7.3 rule 3). A glob holds no character that means
 * something to `like` until its `*` becomes `%`. By ingestion_rules_glob: a project has few rules.
 */
export const bestRule = (
  db: Queryable,
  projectId: string,
  mediaType: string,
  path: string | null,
): Promise<IngestionRuleRow | null> =>
  db.maybeOne(rule`
    select * from ingestion_rules
    where project_id = ${projectId} and enabled and ${mediaType} like replace(content_type_glob, '*', '%')
      and (path_prefix is null or path_prefix = ${path} or starts_with(${path}, path_prefix || '/'))
    order by coalesce(length(path_prefix), 0) desc, length(content_type_glob) - length(replace(content_type_glob, '*', '')),
      length(content_type_glob) desc, content_type_glob collate "C"
    limit 1`)
