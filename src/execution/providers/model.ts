import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'

export const PROVIDER_TYPES = [
  'openai',
  'anthropic',
  'google',
  'xai',
  'groq',
  'ollama',
  'azure',
  'bedrock',
  'vertex',
  'gateway',
  'custom',
] as const

export type ProviderType = (typeof PROVIDER_TYPES)[number]

/** Per-type settings as stored: credential values read `***`. */
export type ProviderConfig = Record<string, unknown>

export const AiProvider = record('AiProvider', {
  name: z.string(),
  provider: z.enum(PROVIDER_TYPES),
  default_model: z.string(),
  secret_id: z.string().nullable(),
  base_url: z.string().nullable(),
  config: z.record(z.string(), z.unknown()).nullable(),
})

const name = z.string().trim().min(1).max(255)
const model = z.string().min(1).max(255)

const fields = {
  name,
  provider: z.enum(PROVIDER_TYPES),
  default_model: model,
  secret_id: z.string().min(1).max(255).nullable().optional(),
  base_url: z.string().min(1).max(2048).nullable().optional(),
  config: z.record(z.string(), z.unknown()).nullable().optional(),
}

export const AiProviderInput = z
  .strictObject({ project_id: z.string().optional(), ...fields })
  .meta({ id: 'AiProviderInput' })

export const AiProviderPatch = z
  .strictObject({
    name: name.optional(),
    provider: fields.provider.optional(),
    default_model: model.optional(),
    secret_id: fields.secret_id,
    base_url: fields.base_url,
    config: fields.config,
  })
  .meta({ id: 'AiProviderPatch' })

export const ProviderModel = z
  .object({
    id: z.string(),
    display_name: z.string().nullable(),
    vendor: z.string().nullable(),
    input_modalities: z.array(z.string()).nullable(),
    output_modalities: z.array(z.string()).nullable(),
    streaming: z.boolean().nullable(),
    lifecycle: z.enum(['active', 'legacy', 'deprecated']).nullable(),
    inference_types: z.array(z.string()).nullable(),
  })
  .meta({ id: 'ProviderModel' })

export type ListedModel = z.infer<typeof ProviderModel>

export const aiProviderKind = kind({
  name: 'ai_provider',
  prefix: 'aip',
  table: 'ai_providers',
  missing: 'AI_PROVIDER_NOT_FOUND',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    {
      kind: 'secret',
      column: 'secret_ids',
      many: true,
      field: id => sql.fragment`case when secret_id = ${id} then 'secret_id' else 'config.headers' end`,
      on_delete: 'force',
    },
  ],
  record: AiProvider,
  hidden: {
    sealed_credentials: z.string().nullable(),
    /** Changes when the value of a secret that the provider names does. */
    secret_stamp: z.string().nullable(),
  },
  computed: {
    secret_stamp: sql.fragment`(select string_agg(s.id || ' ' || s.updated_at::text, ',' order by s.id) from secrets s
      where s.id = any(t.secret_ids))`,
  },
  events: ['created', 'updated', 'deleted'],
})

/** A provider as calls and writes need it. */
export type ProviderRow = z.output<typeof aiProviderKind.row>

export const providerCredentials = sealedColumn({
  table: 'ai_providers',
  column: 'sealed_credentials',
  kind: 'ai_provider',
})
