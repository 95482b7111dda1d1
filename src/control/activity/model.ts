import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { record } from '#core/api/record.ts'
import { type EventStream, FailedEvent, streamEvent } from '#core/api/streams.ts'

export const SEVERITIES = ['info', 'warning', 'critical'] as const
export type Severity = (typeof SEVERITIES)[number]

/** Kinds of entries with their default severity. */
export const ACTIVITY_KINDS = {
  action_executed: 'info',
  approval_created: 'info',
  approval_resolved: 'info',
  exception_created: 'warning',
  schedule_fired: 'info',
  share_cap_exceeded: 'warning',
  share_resumed: 'info',
  share_revoked: 'warning',
  share_suspended: 'warning',
  tool_resolution_failed: 'warning',
  usage_quantity_invalid: 'warning',
} as const satisfies Record<string, Severity>
export type ActivityKind = keyof typeof ACTIVITY_KINDS

export const ACTIVITY_KIND_NAMES = Object.keys(ACTIVITY_KINDS) as [ActivityKind, ...ActivityKind[]]

const reference = z.string().nullable()

export const Activity = record(
  'ActivityEntry',
  {
    kind: z.enum(ACTIVITY_KIND_NAMES).describe('Type of the entry'),
    severity: z.enum(SEVERITIES).describe('Severity of the entry'),
    summary: z.string().describe('One-line text for display'),
    detail: z.record(z.string(), z.unknown()).nullable().describe('Additional data; its fields depend on `kind`'),
    orchestration_run_id: reference.describe('ID of the orchestration run'),
    agent_id: reference.describe('ID of the agent'),
    generation_id: reference.describe('ID of the generation'),
    ref_id: reference.describe(
      'ID of the tool, approval, exception, trigger, share or agent concerned, depending on `kind`',
    ),
  },
  { updated: false },
)

/** Only the platform writes entries; they never change. */
export const activityKind = kind({
  name: 'activity',
  plural: 'activity',
  prefix: 'acte',
  table: 'activity_entries',
  counted: false,
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Activity,
})
export type ActivityRow = z.output<typeof activityKind.row>

/** Notification channel for new entries; the payload is the project id. */
export const ACTIVITY_CHANNEL = 'muster_activity'

/** Live stream of the feed; event ids are cursors. */
export const activityEvents: EventStream = {
  name: 'ActivityEvent',
  events: [streamEvent('ActivityEntryEvent', 'entry', 'An activity entry', Activity), FailedEvent],
  last: ['error'],
  resume: 'streamActivity',
}
