import { z } from 'zod'
import { projectField, record } from '#core/api/record.ts'
import { AgentProjection } from '../agents/model.ts'
import { Cap } from '../grants/terms.ts'
import { ToolProjection } from '../tools/projection.ts'

const time = z.iso.datetime()

export const ACCEPTANCE_STATUSES = ['active', 'revoked'] as const

export const ShareAcceptance = record('ShareAcceptance', {
  share_id: z.string(),
  status: z.enum(ACCEPTANCE_STATUSES),
  revoked_by: z
    .enum(['publisher', 'consumer'])
    .nullable()
    .describe('Party that revoked the acceptance; null while active'),
  accepted_at: time.describe('Time of the acceptance'),
  revoked_at: time.nullable(),
})
export type ShareAcceptance = z.output<typeof ShareAcceptance>

export const Share = record('Share', {
  resource: z
    .string()
    .describe('Resource name of the tool or agent, `srn:<project>:tool:<id>` or `srn:<project>:agent:<id>`'),
  actions: z.array(z.string()),
  grantee: z.string().describe('ID of the grantee project; `*` for all projects'),
  cap: Cap.nullable().describe('Call limit; null for none'),
  expires_at: time.nullable().describe('Time after which the share is revoked'),
  suspended_at: time.nullable().describe('Time of the suspension; null while not suspended'),
  revoked_at: time.nullable(),
  acceptance: ShareAcceptance.nullable().describe(
    'Acceptance of the requesting grantee project; null for the publisher',
  ),
  projection: z
    .union([ToolProjection, AgentProjection])
    .nullable()
    .describe('Visible fields of the tool or agent; null in lists and after its deletion'),
})

const cap = Cap.nullable().describe('Call limit of each accepting project; null for none')
const expires_at = time.nullable().describe('Expiry time, in the future; null for none')

/** Cross-field checks of `resource` and `actions` are made in checkShare. */
export const ShareInput = z
  .strictObject({
    project_id: projectField,
    resource: z
      .string()
      .min(1)
      .max(512)
      .describe(
        'Resource name of a tool or agent of the project, `srn:<project>:tool:<id>` or `srn:<project>:agent:<id>`',
      ),
    actions: z
      .array(z.string().min(1).max(255))
      .min(1)
      .max(20)
      .describe('`tools:CallTool` for a tool, `agents:CreateAgentGeneration` for an agent'),
    grantee: z
      .string()
      .min(1)
      .max(255)
      .describe('ID of the project that may accept the share, or `*` for all projects if the deployment allows it'),
    cap: cap.optional(),
    expires_at: expires_at.optional(),
  })
  .meta({
    id: 'ShareInput',
    example: {
      resource: 'srn:proj_01k5p3vd7r9hj2x8m4qcw6tz0e:tool:tool_01k5p3vd7r9hj2x8m4qcw6tz0e',
      actions: ['tools:CallTool'],
      grantee: 'proj_01k5p3vd7r9hj2x8m4qcw6tz0e',
    },
  })
export type ShareInput = z.output<typeof ShareInput>

export const SharePatch = z.strictObject({ cap, expires_at }).partial().meta({ id: 'SharePatch' })

/** Grantee project of a request whose credential is not bound to one. */
const granteeProject = z
  .string()
  .nullish()
  .describe('ID of the grantee project; optional for credentials that are bound to one')

export const ActingInput = z.strictObject({ project_id: granteeProject }).meta({ id: 'ShareActingInput' })

export const ActingQuery = z.object({ project_id: granteeProject })

export const ShareReference = z
  .object({ type: z.string().describe('Resource type, such as agent or ingestion_rule'), id: z.string() })
  .meta({ id: 'ShareReference' })
export type ShareReference = z.output<typeof ShareReference>

export const ShareUsage = z
  .object({
    project_id: z.string().describe('ID of the calling project'),
    calls: z.int().describe('Number of calls and turns'),
    refused: z.int().describe('Number of calls and turns refused by the cap'),
  })
  .meta({ id: 'ShareUsage' })
