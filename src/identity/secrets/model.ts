import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { parseTime } from '#core/api/lists.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { sql } from '#core/db/sql.ts'

const MAX_BYTES = 65_536

const SEGMENT = '[A-Za-z0-9_+=@-][A-Za-z0-9_.+=@-]*'
const PATH = new RegExp(`^${SEGMENT}(?:/${SEGMENT})*(?:#[A-Za-z0-9_.-]{1,128})?$`)

/** Location of a value in an external store. */
export const SecretSource = z
  .strictObject({
    type: z
      .enum(['vault', 'aws_secrets_manager'])
      .describe('Type of the store; the deployment must be configured for it'),
    path: z
      .string()
      .max(512)
      .regex(PATH, 'must be names separated by /, optionally followed by # and a field')
      .describe(
        "Path below the project's folder of the store, for example `openai` or `openai#api_key`. Default field `value` (vault) or the whole text (aws_secrets_manager).",
      ),
  })
  .meta({ id: 'SecretSource' })
export type SecretSource = z.output<typeof SecretSource>

export const Secret = record('Secret', {
  name: z.string(),
  has_value: z.boolean().describe('Whether the secret has a value'),
  source: SecretSource.nullable(),
  value_updated_at: z.string().nullable().describe('Time at which the value was last set'),
  expires_at: z.string().nullable(),
})

const fields = {
  name: z.string().trim().min(1).max(255).describe('Display name; references use the ID'),
  value: z
    .string()
    .min(1)
    .refine(text => Buffer.byteLength(text) <= MAX_BYTES, 'must be at most 64 KiB of UTF-8')
    .describe('Value, stored encrypted and never returned')
    .meta({ 'x-secret': true }),
  source: SecretSource.describe('External store from which the value is read at use; exclusive with `value`'),
  expires_at: z
    .string()
    .refine(value => parseTime(value) !== null, 'must be an ISO 8601 time')
    .transform(value => (parseTime(value) as Date).toISOString())
    .nullable()
    .describe('Expiry time of the value at its provider; an exception is raised 14 days before. Null for no expiry.'),
}

type Value = { value?: string; source?: SecretSource }

const oneValue = (required: boolean) => (body: Value, context: z.core.$RefinementCtx) => {
  const { value, source } = body
  if (value !== undefined && source !== undefined)
    context.addIssue({ code: 'custom', path: ['source'], message: 'cannot be combined with value' })
  if (required && value === undefined && source === undefined)
    context.addIssue({ code: 'custom', path: ['value'], message: 'is required', params: { code: 'REQUIRED' } })
}

export const SecretInput = createBody('SecretInput', fields, ['name'], { name: 'openai', value: 'sk-...' }).superRefine(
  oneValue(true),
)

export const SecretPatch = patchBody('SecretPatch', fields, { name: 'openai' }).superRefine(oneValue(false))

export const SecretReference = z
  .object({ type: z.string(), id: z.string(), field: z.string().describe('Field that references the secret') })
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
  eventNotes: 'as returned by GET, without the value',
})

export type SecretRow = z.output<typeof secretKind.row>

/** Returns the row to which a secret's value is sealed. */
export const sealedForSecret = (id: string, projectId: string) => ({ kind: 'secret', id, project_id: projectId })

export const sealedSecretValues = ['sealed_value', 'previous_sealed_value'].map(column =>
  sealedColumn({ table: 'secrets', column, kind: 'secret' }),
)
