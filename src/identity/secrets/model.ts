import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'

const MAX_BYTES = 65_536

/** A secret as the wire shows it; its value is in no answer (identity, 9.1). */
export const Secret = record('Secret', {
  name: z.string(),
  has_value: z.boolean(),
  value_updated_at: z.string().nullable(),
})
export type Secret = z.output<typeof Secret>

const name = z.string().trim().min(1).max(255)
const value = z
  .string()
  .min(1)
  .refine(text => Buffer.byteLength(text) <= MAX_BYTES, 'must be at most 64 KiB of UTF-8')
  .describe('Write-only')

export const SecretInput = z
  .strictObject({ project_id: z.string().nullable().optional(), name, value })
  .meta({ id: 'SecretInput' })

export const SecretPatch = z
  .strictObject({ name, value })
  .partial()
  .refine(patch => Object.keys(patch).length > 0, 'must name at least one field')
  .meta({ id: 'SecretPatch' })

export const SecretReference = z
  .object({ type: z.string(), id: z.string(), field: z.string() })
  .meta({ id: 'SecretReference' })

export type SecretRow = Secret

export const secret = kind({
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

/** The row a secret's value is sealed for. */
export const sealedFor = (id: string, projectId: string) => ({ kind: 'secret', id, project_id: projectId })

export const sealedValues = ['sealed_value', 'previous_sealed_value'].map(column =>
  sealedColumn({ table: 'secrets', column, kind: 'secret' }),
)
