import { raise } from '../../core/api/errors.ts'
import type { KindRow } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { isTimezone, nextOccurrence, parseCron } from './cron.ts'
import { checkPattern } from './events.ts'
import type { TriggerRow, TriggerType } from './model.ts'
import { requireTriggerTarget } from './targets.ts'

/** What goes with what in a trigger. */

/** Fields that belong to triggers of one type, whether they are required there, and what they are without a value. */
const OWN: readonly { field: keyof TriggerRow; type: TriggerType; required?: true; fallback?: string }[] = [
  { field: 'cron', type: 'schedule', required: true },
  { field: 'timezone', type: 'schedule', fallback: 'UTC' },
  { field: 'overlap_policy', type: 'schedule', fallback: 'allow' },
  { field: 'misfire_policy', type: 'schedule', fallback: 'fire_once' },
  { field: 'event_pattern', type: 'event', required: true },
  { field: 'event_filter', type: 'event' },
  { field: 'signature_scheme', type: 'webhook', fallback: 'timestamped' },
  { field: 'signature_header', type: 'webhook' },
]

const refuse = (field: string, message: string): never =>
  raise('TRIGGER_ACTION_NOT_ALLOWED', { message, meta: { field } })

type Fields = Omit<
  TriggerRow,
  'id' | 'project_id' | 'created_at' | 'updated_at' | 'hook_url' | 'run_as' | 'created_by' | 'authority'
>

/** The fields of a type with their defaults. @throws TRIGGER_ACTION_NOT_ALLOWED for those that belong to another type */
function ownFields(trigger: Fields): Partial<Fields> {
  const found: Record<string, unknown> = {}
  for (const { field, type, required, fallback } of OWN) {
    const value = trigger[field as keyof Fields] ?? null
    if (trigger.type !== type && value !== null) refuse(field, `${field} belongs to triggers of type ${type}`)
    if (trigger.type === type && required && value === null) refuse(field, `A trigger of type ${type} needs ${field}`)
    found[field] = value ?? (trigger.type === type ? (fallback ?? null) : null)
  }
  return found as Partial<Fields>
}

/**
 * A trigger as it is stored, checked as a whole; and its target.
 * @throws TRIGGER_ACTION_NOT_ALLOWED, INVALID_CRON_EXPRESSION, INVALID_EVENT_PATTERN, TRIGGER_TARGET_NOT_FOUND
 */
export async function validateTrigger<T extends Fields & { project_id: string }>(
  db: Queryable,
  trigger: T,
): Promise<{ trigger: T; allow: (allow: Context['allow']) => void }> {
  const next = { ...trigger, ...ownFields(trigger) }
  if (next.signature_header !== null && next.signature_scheme !== 'body_sha256')
    refuse('signature_header', 'signature_header goes with the scheme body_sha256')
  if (next.cron !== null) {
    parseCron(next.cron)
    if (!isTimezone(next.timezone as string)) refuse('timezone', 'timezone must be the IANA name of a time zone')
  }
  if (next.event_pattern !== null) checkPattern(next.event_pattern)
  const { target, kind, row } = await requireTriggerTarget(db, next)
  if (target.configure) target.configure(row, next)
  else if (next.action !== null) refuse('action', `An action does not go with a target of type ${target.type}`)
  return { trigger: next, allow: allow => allow(target.action, { kind, row: row as KindRow }) }
}

/** When a schedule fires first after a moment; null for what does not fire by the clock now. */
export const firstFire = (
  { type, active, cron, timezone }: Pick<TriggerRow, 'type' | 'active' | 'cron' | 'timezone'>,
  now: Date,
): string | null => (type === 'schedule' && active ? nextOccurrence(cron as string, timezone, now).toISOString() : null)

/**
 * Work of a trigger configures none: it could shed what bounds it. Nor does an agent within a boundary, which would not
 * bind what its trigger starts. Raises FORBIDDEN.
 */
export function refuseBoundedAgents({ run, layers }: Pick<Caller, 'run' | 'layers'>): void {
  if (run?.trigger_id) raise('FORBIDDEN', { message: 'Work that a trigger started may not create or change triggers' })
  if (layers.some(({ kind }) => kind === 'agent'))
    raise('FORBIDDEN', { message: 'An agent with a boundary policy may not create or change triggers' })
}

/** Raises TRIGGER_RECURSION_FORBIDDEN for work that a trigger started. */
export function refuseRecursion({ run }: Pick<Caller, 'run'>): void {
  if (run?.trigger_id) raise('TRIGGER_RECURSION_FORBIDDEN', { meta: { trigger_id: run.trigger_id } })
}
