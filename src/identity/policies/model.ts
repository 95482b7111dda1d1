import { z } from 'zod'
import { policyCatalogue } from '#core/api/catalogue.ts'
import { kind } from '#core/api/kind.ts'
import { operations } from '#core/api/operation.ts'
import { record } from '#core/api/record.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { checkPolicyDocument, type PolicyDocument } from '#core/iam/policy.ts'

const strings = z.array(z.string().min(1)).min(1).max(100)

const PolicyDocumentSchema = z
  .object({
    statement: z
      .array(
        z.object({
          effect: z.enum(['Allow', 'Deny']).describe('Effect of the statement; a matching Deny overrides every Allow'),
          action: strings.describe('`*`, `<module>:*`, `<module>:<Action>`, `<module>:<Prefix>*` or an event pattern'),
          resource: strings.optional().describe('`*` or `srn:<project>:<type>:<id>`. Default `*`.'),
          condition: z
            .record(z.string(), z.record(z.string(), z.union([z.string(), z.array(z.string()).min(1).max(50)])))
            .optional()
            .describe('Conditions as operator -> key -> value or values'),
        }),
      )
      .min(1)
      .max(100)
      .describe('Statements; everything that no statement allows is denied. At most 100.'),
  })
  .meta({ id: 'PolicyDocument', description: 'Actions that a policy allows and denies' })

export const Policy = record(
  'Policy',
  {
    name: z.string().nullable(),
    description: z.string().nullable(),
    document: PolicyDocumentSchema,
    version: z.int().describe('Version number, incremented with every change'),
    managed: z.boolean().describe('Whether the policy ships with the deployment and cannot be changed'),
  },
  { project: false },
)

export const PolicyVersion = z
  .object({
    policy_id: z.string(),
    version: z.int(),
    name: z.string().nullable(),
    description: z.string().nullable(),
    document: PolicyDocumentSchema,
    created_by: z
      .string()
      .nullable()
      .describe('ID of the user or key that wrote the version. Null for the deployment.'),
    created_at: z.string(),
  })
  .meta({ id: 'PolicyVersion' })
export type PolicyVersion = z.output<typeof PolicyVersion>

export const PolicyAttachment = z.object({ type: z.string(), id: z.string() }).meta({ id: 'PolicyAttachment' })

/** The text of a policy. The permission engine validates it with specific problem codes, which a schema here would hide. */
export const policyText = z.unknown().meta({ $ref: '#/$defs/PolicyDocument' })

const fields = {
  name: z.string().max(255).nullable().optional().describe('Display name'),
  description: z.string().max(2000).nullable().optional().describe('Purpose of the policy'),
  document: policyText.meta({
    $ref: '#/$defs/PolicyDocument',
    description: 'Actions that the policy allows and denies',
  }),
}

export const PolicyInput = z.strictObject(fields).meta({
  id: 'PolicyInput',
  example: {
    name: 'Read agents',
    document: { statement: [{ effect: 'Allow', action: ['agents:GetAgent', 'agents:ListAgents'], resource: ['*'] }] },
  },
})
export const PolicyPatch = z
  .strictObject({ ...fields, document: fields.document.optional() })
  .meta({ id: 'PolicyPatch', example: { name: 'Read agents' } })

/** Maximum number of policies per user. */
export const MAX_USER_POLICIES = 50

export const UserPoliciesInput = z
  .strictObject({
    policy_ids: z
      .array(z.string())
      .describe(`Ordered IDs of the policies; replaces the current list. At most ${MAX_USER_POLICIES}.`),
  })
  .meta({ id: 'UserPoliciesInput' })

/**
 * Validates a document, as written by its author, against the actions and types of this deployment.
 * @param path of the field with the document
 * @throws VALIDATION_FAILED
 */
export function policyDocumentProblems(document: unknown, path = 'document'): PolicyDocument {
  const problems = checkPolicyDocument(document, policyCatalogue(operations.all()), path)
  if (problems.length > 0) raiseInvalid(problems)
  return document as PolicyDocument
}

/** IDs of the policies that ship with the deployment. */
export const managedIds = ['pol_managed_read_only', 'pol_managed_project_admin', 'pol_managed_agent_runner'] as const

export const policyKind = kind({
  name: 'policy',
  plural: 'policies',
  prefix: 'pol',
  table: 'policies',
  global: true,
  missing: 'POLICY_NOT_FOUND',
  fixedIds: managedIds,
  record: Policy,
  hidden: { project_id: z.null() },
  computed: { project_id: sql.fragment`null::text` },
})

export type PolicyRow = z.output<typeof policyKind.row>
