import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { withWarnings } from '#core/api/warnings.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { type Fragment, sql } from '#core/db/sql.ts'

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

/** Variants of the OpenAI API by the rules of their vendors or servers. */
export const DIALECTS = [
  'openai',
  'mistral',
  'deepseek',
  'kimi',
  'openrouter',
  'litellm',
  'vllm',
  'llamacpp',
  'lmstudio',
  'ollama',
] as const
export type Dialect = (typeof DIALECTS)[number]

/** Inputs that models take. */
export const MODEL_INPUTS = ['text', 'image', 'pdf', 'audio'] as const
export type ModelInput = (typeof MODEL_INPUTS)[number]

/** Settings of a provider type as stored; credentials are masked as `***`. */
export type ProviderConfig = Record<string, unknown>

const fields = {
  name: z.string().trim().min(1).max(255).describe('Display name'),
  provider: z.enum(PROVIDER_TYPES).describe('Vendor, or `gateway` or `custom` for an OpenAI-compatible endpoint'),
  default_model: z.string().min(1).max(255).describe('Model if a call sets none'),
  secret_id: z.string().min(1).max(255).nullable().describe('ID of the secret with the credential'),
  base_url: z
    .string()
    .min(1)
    .max(2048)
    .nullable()
    .describe("Base URL of the API, instead of the vendor's. Required for gateway and custom."),
  config: z
    .record(z.string(), z.unknown().meta({ 'x-secret': true }))
    .nullable()
    .describe(
      'Settings of the type, such as region, api_version or headers; `dialect` of a custom, gateway or ollama provider, such as `mistral`, `deepseek` or `vllm`; `auth: bearer` of an anthropic provider behind a gateway; and `models` with the inputs of models: `{ "<model>": { "input": ["text", "image", "pdf", "audio"] } }`. Credentials, and headers other than well-known ones such as user-agent, are masked as `***`.',
    ),
}

export const AiProvider = record('AiProvider', fields)

export const AiProviderWithWarnings = withWarnings(AiProvider, 'AiProviderWithWarnings')

export const AiProviderInput = createBody('AiProviderInput', fields, ['name', 'provider', 'default_model'], {
  name: 'openai',
  provider: 'openai',
  default_model: 'gpt-5-mini',
  secret_id: 'sec_01k5p3vd7r9hj2x8m4qcw6tz0e',
})

export const AiProviderPatch = patchBody('AiProviderPatch', fields)

export const ProviderModel = z
  .object({
    id: z.string(),
    display_name: z.string().nullable().describe('Display name'),
    vendor: z.string().nullable().describe('Vendor of the model'),
    input_modalities: z.array(z.string()).nullable().describe('Input modalities'),
    output_modalities: z.array(z.string()).nullable().describe('Output modalities'),
    streaming: z.boolean().nullable().describe('Whether streaming is supported'),
    lifecycle: z.enum(['active', 'legacy', 'deprecated']).nullable().describe('Lifecycle stage at the vendor'),
    inference_types: z.array(z.string()).nullable().describe('Inference types that the vendor offers'),
    callable: z
      .boolean()
      .nullable()
      .describe(
        'Whether calls may name the ID; false if the vendor serves the model by an inference profile. Null if unknown.',
      ),
  })
  .meta({ id: 'ProviderModel' })

export type ListedModel = z.infer<typeof ProviderModel>

const FOUND_BY = ['call', 'check'] as const
export type FoundBy = (typeof FOUND_BY)[number]

/** Findings about the models of a provider, by model and finding. */
const Profile = z.record(z.string(), z.record(z.string(), z.object({ by: z.enum(FOUND_BY), at: z.string() })))
export type ProviderProfile = z.output<typeof Profile>

/** What a check found about a capability. */
const RESULTS = ['works', 'refused', 'ignored', 'degraded', 'not_offered'] as const

const CheckLine = z
  .object({
    capability: z.string().describe('Name of the capability, such as `stream` or `image`'),
    result: z
      .enum(RESULTS)
      .describe(
        '`works`; `refused` - by the vendor, or not answered in time; `ignored` - accepted without effect; `degraded` - works in another form, as `note` says; `not_offered` - by this type or model',
      ),
    note: z.string().nullable().describe('Explanation of the result'),
    vendor_message: z.string().nullable().describe("The vendor's refusal, with credentials masked"),
  })
  .meta({ id: 'AiProviderCapability' })
export type CheckLine = z.output<typeof CheckLine>

/** What a check by capabilities found. Contains no secrets. */
export const Matrix = z.object({
  model: z.string().describe('Model that was called'),
  checked_at: z.iso.datetime().describe('Time at the end of the check'),
  checks: z.array(CheckLine).describe('Results by capability'),
  proposed_dialect: z
    .enum(DIALECTS)
    .nullable()
    .describe(
      'Dialect that listing, headers and errors of the endpoint suggest for `config.dialect`; null if it is configured or none is recognized',
    ),
})
export type Matrix = z.output<typeof Matrix>

export const AiProviderProfile = z
  .object({
    findings: z
      .array(
        z.object({
          model: z.string(),
          finding: z
            .string()
            .describe(
              'Setting that the model refuses and that is left out, such as `temperature` or `stream`; or `thinks`',
            ),
          found_by: z.enum(FOUND_BY).describe('`call` - a refused call; `check` - a check'),
          found_at: z.iso.datetime().describe('Time of the finding'),
          expires_at: z.iso.datetime().nullable().describe('End of the finding, a day later; null for one of a check'),
        }),
      )
      .describe('What calls and checks found about models'),
    last_check: Matrix.nullable().describe('Last check by capabilities'),
  })
  .meta({ id: 'AiProviderProfile' })

/** Expression over the alias `t` that changes with the value of any secret of a provider. */
export const secretStamp: Fragment = sql.fragment`(
  select string_agg(s.id || ' ' || s.updated_at::text, ',' order by s.id) from secrets s where s.id = any(t.secret_ids))`

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
    /** All secrets that a call requires. */
    secret_ids: z.array(z.string()),
    /** Changes with the value of any referenced secret. */
    secret_stamp: z.string().nullable(),
    profile: Profile,
  },
  computed: { secret_stamp: secretStamp },
  events: ['created', 'updated', 'deleted'],
})

/** Provider row for calls and writes. */
export type ProviderRow = z.output<typeof aiProviderKind.row>

export const providerCredentials = sealedColumn({
  table: 'ai_providers',
  column: 'sealed_credentials',
  kind: 'ai_provider',
})
