import { z } from 'zod'
import { projectField, record } from '../../core/api/record.ts'
import { AgentProjection } from '../agents/model.ts'
import { ToolProjection } from '../tools/projection.ts'
import { Cap } from './terms.ts'

const time = z.iso.datetime()

export const ACCEPTANCE_STATUSES = ['active', 'revoked'] as const

export const ShareAcceptance = record('ShareAcceptance', {
  share_id: z.string(),
  status: z.enum(ACCEPTANCE_STATUSES),
  revoked_by: z.enum(['publisher', 'consumer']).nullable().describe('Who revoked it; null while it is active'),
  accepted_at: time.describe('When it was accepted'),
  revoked_at: time.nullable(),
})
export type ShareAcceptance = z.output<typeof ShareAcceptance>

export const Share = record('Share', {
  resource: z.string().describe('Name of the tool or agent, `srn:<project>:tool:<id>` or `srn:<project>:agent:<id>`'),
  actions: z.array(z.string()),
  grantee: z.string().describe('The project that it is for; `*` is every one'),
  cap: Cap.nullable().describe('Most that the share may use; null for no limit'),
  expires_at: time.nullable().describe('From then on it is revoked'),
  suspended_at: time.nullable().describe('When it was suspended; null while it holds'),
  revoked_at: time.nullable(),
  acceptance: ShareAcceptance.nullable().describe(
    "The acceptance of the project that reads it; null on the publisher's",
  ),
  projection: z
    .union([ToolProjection, AgentProjection])
    .nullable()
    .describe('What others are shown of the tool or agent; null in lists, and once it is gone'),
})

const cap = Cap.nullable().describe('Bounds the calls of each project that accepts; null for no bound')
const expires_at = time.nullable().describe('When the share ends by itself; in the future')

/** The checks of `resource` and `actions` need each other and are made together. */
export const ShareInput = z
  .strictObject({
    project_id: projectField,
    resource: z
      .string()
      .min(1)
      .max(512)
      .describe('Name of a tool or agent of the project, `srn:<project>:tool:<id>` or `srn:<project>:agent:<id>`'),
    actions: z
      .array(z.string().min(1).max(255))
      .min(1)
      .max(20)
      .describe('`tools:CallTool` for a tool, `agents:CreateAgentGeneration` for an agent'),
    grantee: z
      .string()
      .min(1)
      .max(255)
      .describe('Project that may accept the share, or `*` for every one where the deployment allows it'),
    cap: cap.optional(),
    expires_at: expires_at.optional(),
  })
  .meta({ id: 'ShareInput' })
export type ShareInput = z.output<typeof ShareInput>

export const SharePatch = z.strictObject({ cap, expires_at }).partial().meta({ id: 'SharePatch' })

/** The project that acts, where the credential is not bound to it. */
const acting = z.string().nullish().describe('Project that acts; a credential that is bound to one needs none')

export const ActingInput = z.strictObject({ project_id: acting }).meta({ id: 'ShareActingInput' })

export const ActingQuery = z.object({ project_id: acting })

export const ShareReference = z
  .object({ type: z.string().describe('Kind of the resource, such as agent or ingestion_rule'), id: z.string() })
  .meta({ id: 'ShareReference' })
export type ShareReference = z.output<typeof ShareReference>

export const ShareUsage = z
  .object({
    project_id: z.string().describe('Project that called'),
    calls: z.int().describe('Calls and turns that were made'),
    refused: z.int().describe('Calls and turns that the cap refused'),
  })
  .meta({ id: 'ShareUsage' })
