import { jsonb, type Queryable, sql } from '../../core/db/sql.ts'
import type { AgentConfig, AgentRow } from './model.ts'

const json = (value: unknown) =>
  value === null ? sql.fragment`null::json` : sql.fragment`${JSON.stringify(value)}::json`

export const insertAgent = (db: Queryable, id: string, projectId: string, config: AgentConfig): Promise<AgentRow> =>
  db.one(sql.unsafe`
    insert into agents as t (id, project_id, name, instructions, ai_provider_id, model, max_steps, temperature,
      max_output_tokens, top_p, seed, provider_options, output_schema, prompt_caching, max_context_messages,
      single_session_per_actor, trace_content_mode)
    values (${id}, ${projectId}, ${config.name}, ${config.instructions}, ${config.ai_provider_id}, ${config.model},
      ${config.max_steps}, ${config.temperature}, ${config.max_output_tokens}, ${config.top_p}, ${config.seed},
      ${jsonb(config.provider_options)}, ${json(config.output_schema)}, ${jsonb(config.prompt_caching)},
      ${config.max_context_messages}, ${config.single_session_per_actor}, ${config.trace_content_mode})
    returning t.*`) as Promise<AgentRow>

/** Writes a new configuration of an agent whose lock the caller holds, as its next version. */
export const updateAgent = (db: Queryable, id: string, config: AgentConfig): Promise<AgentRow> =>
  db.one(sql.unsafe`
    update agents t set name = ${config.name}, instructions = ${config.instructions},
      ai_provider_id = ${config.ai_provider_id}, model = ${config.model}, max_steps = ${config.max_steps},
      temperature = ${config.temperature}, max_output_tokens = ${config.max_output_tokens}, top_p = ${config.top_p},
      seed = ${config.seed}, provider_options = ${jsonb(config.provider_options)},
      output_schema = ${json(config.output_schema)}, prompt_caching = ${jsonb(config.prompt_caching)},
      max_context_messages = ${config.max_context_messages},
      single_session_per_actor = ${config.single_session_per_actor},
      trace_content_mode = ${config.trace_content_mode}, version = t.version + 1, updated_at = now()
    where t.id = ${id} returning t.*`) as Promise<AgentRow>

/** The agents of a project, oldest first. */
export const agentsOf = (db: Queryable, projectId: string): Promise<readonly AgentRow[]> =>
  db.any(sql.unsafe`select t.* from agents t where t.project_id = ${projectId} order by t.id`) as Promise<
    readonly AgentRow[]
  >
