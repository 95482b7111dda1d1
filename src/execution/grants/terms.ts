import { z } from 'zod'

/** Shareable resource kinds with the actions that a share can allow. */
export const SHAREABLE = { tool: ['tools:CallTool'], agent: ['agents:CreateAgentGeneration'] } as const
export const RESOURCE_KINDS = ['tool', 'agent'] as const
export type ResourceKind = (typeof RESOURCE_KINDS)[number]

/** Grantee of a share for all projects. */
export const ALL_PROJECTS = '*'

const CAP_WINDOWS = ['rolling_1m', 'rolling_1h', 'rolling_24h', 'calendar_month'] as const

export const Cap = z
  .strictObject({
    calls: z.int().min(1).max(2_147_483_647).describe('Maximum number of calls by each project in a window'),
    window: z.enum(CAP_WINDOWS).describe('Fixed window in UTC; rolling_1h starts at each full hour'),
  })
  .meta({ id: 'ShareCap' })
export type Cap = z.output<typeof Cap>
