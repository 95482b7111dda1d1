import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import type { Queryable } from '../../core/db/sql.ts'

const MAX_JSON_BYTES = 64 * 1024

const fitsJson = (value: unknown) => Buffer.byteLength(JSON.stringify(value)) <= MAX_JSON_BYTES
const positive = z.int().min(1).max(2_147_483_647)

const fields = {
  name: z.string().trim().min(1).max(255).nullable().describe('Name to show'),
  instructions: z.string().max(65_536).nullable().describe('The system prompt'),
  ai_provider_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('AI provider that serves the model; null with a route, or with the default route of the project'),
  model_route_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe(
      'Model route that calls go by, in place of a provider; with neither they go by the default of the project',
    ),
  model: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('Model of the provider; null is its default_model. Not with a route, whose targets name theirs'),
  max_steps: positive.nullable().describe('Most model calls of one turn; null is 20'),
  temperature: z.number().min(0).max(2).nullable().describe('Sampling temperature; null is not sent'),
  max_output_tokens: positive.nullable().describe('Most tokens of one answer; null is not sent'),
  top_p: z.number().min(0).max(1).nullable().describe('Nucleus sampling; null is not sent'),
  seed: z.int().nullable().describe('Seed for repeatable answers, where the vendor takes one'),
  provider_options: z
    .record(z.string(), z.record(z.string(), z.unknown()))
    .refine(fitsJson, 'must be at most 64 KiB')
    .nullable()
    .describe('Options per provider type, passed through to its vendor'),
  // Anything goes in here: what is not a JSON Schema has a code of its own.
  output_schema: z.unknown().describe('JSON Schema, draft-07 or 2020-12, that final answers satisfy; null for text'),
  prompt_caching: z
    .strictObject({ enabled: z.boolean().describe('Whether it is done') })
    .nullable()
    .describe('Marks the instructions as a prefix that the vendor may cache'),
  max_context_messages: positive.nullable().describe('Most messages that a model is given, the newest; null is all'),
  single_session_per_actor: z.boolean().describe('An end user has at most one open session with the agent'),
  trace_content_mode: z
    .enum(['full', 'none'])
    .nullable()
    .describe('Whether the content of turns is kept; null is as the project says, which may not be exceeded'),
}

export const Agent = record('Agent', {
  ...fields,
  output_schema: z.record(z.string(), z.unknown()).nullable(),
  version: z.int().describe('Counts the changes of the configuration, from 1'),
})

export const AgentPatch = patchBody('AgentPatch', fields)

export const AgentInput = createBody('AgentInput', fields, [])

export const agentKind = kind({
  name: 'agent',
  prefix: 'agent',
  table: 'agents',
  missing: 'AGENT_NOT_FOUND',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'ai_provider', column: 'ai_provider_id', on_delete: 'block' },
    { kind: 'model_route', column: 'model_route_id', on_delete: 'block' },
  ],
  record: Agent,
  events: ['created', 'updated', 'deleted'],
})

export type AgentRow = z.output<typeof agentKind.row>

/** The agent of an id, whatever its project; null when there is none. */
export const findAgent = (db: Queryable, id: string): Promise<AgentRow | null> => agentKind.find(db, id)
