import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'

const MAX_BYTES = 65_536

/** A secret as the wire shows it; its value is in no answer. */
export const Secret = record('Secret', {
  name: z.string(),
  has_value: z.boolean(),
  value_updated_at: z.string().nullable(),
})

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name to show; references go by id'),
  value: z
    .string()
    .min(1)
    .refine(text => Buffer.byteLength(text) <= MAX_BYTES, 'must be at most 64 KiB of UTF-8')
    .describe('The value, stored encrypted and never shown again'),
}

export const SecretInput = createBody('SecretInput', fields, ['name', 'value'])

export const SecretPatch = patchBody('SecretPatch', fields)

export const SecretReference = z
  .object({ type: z.string(), id: z.string(), field: z.string() })
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
export const sealedFor = (id: string, projectId: string) => ({ kind: 'secret', id, project_id: projectId })

export const sealedValues = ['sealed_value', 'previous_sealed_value'].map(column =>
  sealedColumn({ table: 'secrets', column, kind: 'secret' }),
)
