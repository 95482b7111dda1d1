import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { type EventStream, FailedEvent, streamEvent } from '../../core/api/streams.ts'

export const SEVERITIES = ['info', 'warning', 'critical'] as const
export type Severity = (typeof SEVERITIES)[number]

/** What is recorded, with its severity unless the entry says another one. */
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
    kind: z.enum(ACTIVITY_KIND_NAMES).describe('What happened'),
    severity: z.enum(SEVERITIES).describe('How much it matters'),
    summary: z.string().describe('One line for people'),
    detail: z.record(z.string(), z.unknown()).nullable().describe('Facts by kind'),
    orchestration_run_id: reference.describe('Run in which it happened'),
    agent_id: reference.describe('Agent that did it'),
    generation_id: reference.describe('Turn in which it happened'),
    ref_id: reference.describe('What it was about, by kind: tool, approval, exception, trigger, share or agent'),
  },
  { updated: false },
)

/** Written by the platform only, never changed. */
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

/** Announces entries to those who follow the feed: the project. */
export const ACTIVITY_CHANNEL = 'muster_activity'

/** The feed as it is written; ids are cursors. */
export const activityEvents: EventStream = {
  name: 'ActivityEvent',
  events: [streamEvent('ActivityEntryEvent', 'entry', 'The entry', Activity), FailedEvent],
  last: ['error'],
  resume: 'streamActivity',
}
