import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import type { Queryable } from '../../core/db/sql.ts'

const MAX_JSON_BYTES = 64 * 1024

const fitsJson = (value: unknown) => Buffer.byteLength(JSON.stringify(value)) <= MAX_JSON_BYTES
const positive = z.int().min(1).max(2_147_483_647)

const nullable = {
  name: z.string().trim().min(1).max(255).nullable(),
  /** The system prompt. */
  instructions: z.string().max(65_536).nullable(),
  ai_provider_id: z.string().min(1).max(255).nullable(),
  /** Null: the provider's default_model. */
  model: z.string().min(1).max(255).nullable(),
  /** Null: 20. */
  max_steps: positive.nullable(),
  temperature: z.number().min(0).max(2).nullable(),
  max_output_tokens: positive.nullable(),
  top_p: z.number().min(0).max(1).nullable(),
  seed: z.int().nullable(),
  /** Options per provider type, passed through to its vendor. */
  provider_options: z
    .record(z.string(), z.record(z.string(), z.unknown()))
    .refine(fitsJson, 'must be at most 64 KiB')
    .nullable(),
  prompt_caching: z.strictObject({ enabled: z.boolean() }).nullable(),
  max_context_messages: positive.nullable(),
  trace_content_mode: z
    .enum(['full', 'none'])
    .nullable()
    .describe('Whether the content of turns is kept; null is as the project says, which may not be exceeded'),
}

/** The configuration of an agent: what its callers write and its versions keep. */
export const AgentConfig = z.object({
  ...nullable,
  ai_provider_id: z.string(),
  output_schema: z.record(z.string(), z.unknown()).nullable(),
  single_session_per_actor: z.boolean(),
  trace_content_mode: nullable.trace_content_mode,
})

export type AgentConfig = z.infer<typeof AgentConfig>

export const Agent = record('Agent', { ...AgentConfig.shape, version: z.int() })

export type AgentRow = z.infer<typeof Agent>

export const AgentPatch = z
  .strictObject({
    ...nullable,
    // Anything goes here: what is not a JSON Schema has a code of its own.
    output_schema: z.unknown(),
    single_session_per_actor: z.boolean(),
  })
  .partial()
  .meta({ id: 'AgentPatch' })

export const AgentInput = AgentPatch.extend({ project_id: z.string().optional() }).meta({ id: 'AgentInput' })

export const agentKind = kind({
  name: 'agent',
  prefix: 'agent',
  table: 'agents',
  missing: 'AGENT_NOT_FOUND',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'ai_provider', column: 'ai_provider_id', on_delete: 'block' },
  ],
  record: Agent,
  events: ['created', 'updated', 'deleted'],
})

/** The part of a row that its callers write. */
export function configOf(row: AgentRow): AgentConfig {
  return {
    name: row.name,
    instructions: row.instructions,
    ai_provider_id: row.ai_provider_id,
    model: row.model,
    max_steps: row.max_steps,
    temperature: row.temperature,
    max_output_tokens: row.max_output_tokens,
    top_p: row.top_p,
    seed: row.seed,
    provider_options: row.provider_options,
    output_schema: row.output_schema,
    prompt_caching: row.prompt_caching,
    max_context_messages: row.max_context_messages,
    single_session_per_actor: row.single_session_per_actor,
    trace_content_mode: row.trace_content_mode,
  }
}

/** The agent of an id, whatever its project; null when there is none. */
export const findAgent = (db: Queryable, id: string): Promise<AgentRow | null> => agentKind.find(db, id)
