import ipaddr from 'ipaddr.js'
import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { parseTime } from '#core/api/lists.ts'
import { record } from '#core/api/record.ts'
import { sql } from '#core/db/sql.ts'

export const ProjectKey = record(
  'ProjectKey',
  {
    name: z.string().nullable(),
    key_prefix: z.string().describe('First 11 characters of the key'),
    user_id: z.string(),
    project_id: z.string().nullable(),
    policy_ids: z.array(z.string()),
    allowed_ips: z
      .array(z.string())
      .nullable()
      .describe('Addresses and CIDR ranges from which the key is accepted. Null for any.'),
    expires_at: z.string().nullable(),
    last_used_at: z.string().nullable(),
    rotated_at: z.string().nullable(),
  },
  { project: false },
)

/** Response of create and rotate, the only operations that return the key. */
export const ProjectKeyWithSecret = ProjectKey.extend({
  secret: z.string().describe('Key string; returned only once').meta({ 'x-secret': true }),
  key: z.string().describe('Same as secret').meta({ 'x-secret': true }),
}).meta({ id: 'ProjectKeyWithSecret' })

export const KeyUsage = z
  .object({
    days: z
      .array(z.object({ date: z.string().describe('Day in UTC'), requests: z.int().describe('Number of requests') }))
      .describe('Requests per day'),
    last_action: z
      .object({ action: z.string(), status: z.int(), at: z.string() })
      .nullable()
      .describe('Last audited action of the key'),
    last_used_at: z.string().nullable(),
  })
  .meta({ id: 'ProjectKeyUsage' })

const MAX_POLICIES = 20

export const isoTime = z.string().refine(value => parseTime(value) !== null, 'must be an ISO 8601 time')
const address = z
  .string()
  .max(64)
  .refine(value => ipaddr.isValidCIDR(value) || ipaddr.isValid(value), 'must be an IP address or a CIDR range')
const project = z.string().min(1).max(64).nullable()
const policies = z
  .array(z.string().min(1).max(64))
  .transform(ids => [...new Set(ids)])
  .refine(ids => ids.length <= MAX_POLICIES, `must have at most ${MAX_POLICIES} items`)

const fields = {
  name: z.string().trim().min(1).max(255).nullable().describe('Display name'),
  project_id: project.describe('ID of the project to which the key is bound. Null for all projects of its owner.'),
  policy_ids: policies.describe(
    `Boundary policies; without any, the key has its owner's permissions. At most ${MAX_POLICIES}.`,
  ),
  allowed_ips: z
    .array(address)
    .max(50)
    .nullable()
    .describe('Addresses and CIDR ranges from which the key is accepted. Null for any.'),
  expires_at: isoTime.nullable().describe('Expiry time. Null for no expiry.'),
}

/** Further names of fields. */
const ALIASES = {
  projectPublicId: 'project_id',
  projectId: 'project_id',
  policyIds: 'policy_ids',
  expiresAt: 'expires_at',
} as const

const aliases = Object.fromEntries(
  Object.entries(ALIASES).map(([alias, name]) => [
    alias,
    fields[name].describe(`Same as ${name}`).meta({ 'x-alias-of': name }),
  ]),
) as { [Alias in keyof typeof ALIASES]: (typeof fields)[(typeof ALIASES)[Alias]] }

export type KeyFields = Partial<{ [Name in keyof typeof fields]: z.output<(typeof fields)[Name]> }>

type KeyBody = KeyFields & Partial<Record<keyof typeof ALIASES, unknown>>

/** Maps camelCase aliases to their fields; a field and its alias must have equal values. */
function foldAliases(body: KeyBody, context: z.core.$RefinementCtx): KeyFields {
  const folded: Record<string, unknown> = { ...body }
  for (const [alias, name] of Object.entries(ALIASES)) {
    if (folded[alias] === undefined) continue
    if (folded[name] !== undefined && JSON.stringify(folded[name]) !== JSON.stringify(folded[alias]))
      context.addIssue({ code: 'custom', path: [alias], message: `conflicts with ${name}` })
    folded[name] = folded[alias]
    delete folded[alias]
  }
  if (body.allowed_ips?.length === 0) folded.allowed_ips = null
  return folded as KeyFields
}

const body = z
  .strictObject({ ...fields, ...aliases })
  .partial()
  .transform(foldAliases)

export const KeyInput = body.meta({
  id: 'ProjectKeyInput',
  example: { name: 'shop back end', project_id: 'proj_01k5p3vd7r9hj2x8m4qcw6tz0e' },
})

export const KeyPatch = body.meta({ id: 'ProjectKeyPatch', example: { name: 'shop back end' } })

export const RotateInput = z
  .strictObject({
    grace_seconds: z
      .int()
      .min(0)
      .max(604_800)
      .default(0)
      .describe('Seconds for which the old key remains valid. Default 0, at most 604,800.'),
  })
  .meta({ id: 'ProjectKeyRotateInput' })

export const projectKeyKind = kind({
  name: 'project_key',
  prefix: 'key',
  table: 'project_keys',
  counted: false,
  references: [
    { kind: 'user', column: 'user_id', on_delete: 'cascade' },
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
  ],
  record: ProjectKey,
  computed: {
    policy_ids: sql.fragment`array(select p.policy_id from project_key_policies p where p.key_id = t.id order by p.position)`,
  },
  events: ['created', 'updated', 'deleted'],
  eventNotes: 'the key string is never present',
})

export type KeyRow = z.output<typeof projectKeyKind.row>
