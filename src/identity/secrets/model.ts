import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { parseTime } from '../../core/api/lists.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'

const MAX_BYTES = 65_536

const SEGMENT = '[A-Za-z0-9_+=@-][A-Za-z0-9_.+=@-]*'
const PATH = new RegExp(`^${SEGMENT}(?:/${SEGMENT})*(?:#[A-Za-z0-9_.-]{1,128})?$`)

/** Where the value of a secret lies when it is not stored here. */
export const SecretSource = z
  .strictObject({
    type: z
      .enum(['vault', 'aws_secrets_manager'])
      .describe('Kind of the store; the deployment has to be set up for it'),
    path: z
      .string()
      .max(512)
      .regex(PATH, 'must be names joined by /, with # and a field behind them where one is meant')
      .describe(
        "Where it lies below the project's folder of the store, such as `openai` or `openai#api_key`; without a field the field `value` (vault) or the whole text (aws_secrets_manager)",
      ),
  })
  .meta({ id: 'SecretSource' })
export type SecretSource = z.output<typeof SecretSource>

/** A secret as the wire shows it; its value is in no answer. */
export const Secret = record('Secret', {
  name: z.string(),
  has_value: z.boolean().describe('Whether a value is stored'),
  source: SecretSource.nullable(),
  value_updated_at: z.string().nullable().describe('When the value was last set'),
  expires_at: z.string().nullable(),
})

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name to show; references go by id'),
  value: z
    .string()
    .min(1)
    .refine(text => Buffer.byteLength(text) <= MAX_BYTES, 'must be at most 64 KiB of UTF-8')
    .describe('The value, stored encrypted and never shown again')
    .meta({ 'x-secret': true }),
  source: SecretSource.describe('External store that the value is read from at use, in place of `value`'),
  expires_at: z
    .string()
    .refine(value => parseTime(value) !== null, 'must be an ISO 8601 time')
    .transform(value => (parseTime(value) as Date).toISOString())
    .nullable()
    .describe('When the value ends where it is used: an exception says so 14 days ahead; null for never'),
}

type Value = { value?: string; source?: SecretSource }

const oneValue = (required: boolean) => (body: Value, context: z.core.$RefinementCtx) => {
  const { value, source } = body
  if (value !== undefined && source !== undefined)
    context.addIssue({ code: 'custom', path: ['source'], message: 'must be left out where there is a value' })
  if (required && value === undefined && source === undefined)
    context.addIssue({ code: 'custom', path: ['value'], message: 'is required', params: { code: 'REQUIRED' } })
}

export const SecretInput = createBody('SecretInput', fields, ['name'], { name: 'openai', value: 'sk-...' }).superRefine(
  oneValue(true),
)

export const SecretPatch = patchBody('SecretPatch', fields, { name: 'openai' }).superRefine(oneValue(false))

export const SecretReference = z
  .object({ type: z.string(), id: z.string(), field: z.string().describe('Field that names the secret') })
  .meta({ id: 'SecretReference' })

export const secretKind = kind({
  name: 'secret',
  prefix: 'sec',
  table: 'secrets',
  missing: 'SECRET_NOT_FOUND',
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Secret,
  computed: { has_value: sql.fragment`true` },
  events: ['created', 'updated', 'deleted'],
  eventNotes: 'as GET shows it; the value is in neither',
})

export type SecretRow = z.output<typeof secretKind.row>

/** The row a secret's value is sealed for. */
export const sealedForSecret = (id: string, projectId: string) => ({ kind: 'secret', id, project_id: projectId })

export const sealedSecretValues = ['sealed_value', 'previous_sealed_value'].map(column =>
  sealedColumn({ table: 'secrets', column, kind: 'secret' }),
)
