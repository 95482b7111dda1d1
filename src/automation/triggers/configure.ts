import type { KindRow } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { isTimezone, nextOccurrence, parseCron } from './cron.ts'
import { checkPattern } from './events.ts'
import type { TriggerRow, TriggerType } from './model.ts'
import { requireTriggerTarget } from './targets.ts'

/** Fields that are allowed for one trigger type only, with their defaults. */
const TYPE_FIELDS: readonly { field: keyof TriggerRow; type: TriggerType; required?: true; fallback?: string }[] = [
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

/** Returns the type-specific fields with defaults. @throws TRIGGER_ACTION_NOT_ALLOWED for a missing or foreign field */
function typeFields(trigger: Fields): Partial<Fields> {
  const values: Record<string, unknown> = {}
  for (const { field, type, required, fallback } of TYPE_FIELDS) {
    const value = trigger[field as keyof Fields] ?? null
    if (trigger.type !== type && value !== null) refuse(field, `${field} is allowed only for triggers of type ${type}`)
    if (trigger.type === type && required && value === null)
      refuse(field, `${field} is required for triggers of type ${type}`)
    values[field] = value ?? (trigger.type === type ? (fallback ?? null) : null)
  }
  return values as Partial<Fields>
}

/**
 * Validates a trigger as a whole. Returns it with defaults, and the permission check for starting its target.
 * @throws TRIGGER_ACTION_NOT_ALLOWED, INVALID_CRON_EXPRESSION, INVALID_EVENT_PATTERN, TRIGGER_TARGET_NOT_FOUND
 */
export async function validateTrigger<T extends Fields & { project_id: string }>(
  db: Queryable,
  trigger: T,
): Promise<{ trigger: T; allow: (allow: Context['allow']) => void }> {
  const next = { ...trigger, ...checkTriggerFields(trigger) }
  const { target, kind, row } = await requireTriggerTarget(db, next)
  if (target.configure) target.configure(row, next)
  else if (next.action !== null) refuse('action', `action is not allowed for targets of type ${target.type}`)
  return { trigger: next, allow: allow => allow(target.action, { kind, row: row as KindRow }) }
}

/**
 * Validates the fields of a trigger without its target. Returns the type-specific fields with defaults.
 * @throws TRIGGER_ACTION_NOT_ALLOWED, INVALID_CRON_EXPRESSION, INVALID_EVENT_PATTERN
 */
export function checkTriggerFields(trigger: Fields): Partial<Fields> {
  const own = typeFields(trigger)
  const next = { ...trigger, ...own }
  if (next.signature_header !== null && next.signature_scheme !== 'body_sha256')
    refuse('signature_header', 'signature_header is allowed only with signature_scheme body_sha256')
  if (next.cron !== null) {
    parseCron(next.cron)
    if (!isTimezone(next.timezone as string)) refuse('timezone', 'timezone must be an IANA time zone name')
  }
  if (next.event_pattern !== null) checkPattern(next.event_pattern)
  return own
}

/** Returns the first occurrence of an active schedule after `now`. Null for other triggers. */
export const firstFireTime = (
  { type, active, cron, timezone }: Pick<TriggerRow, 'type' | 'active' | 'cron' | 'timezone'>,
  now: Date,
): string | null => (type === 'schedule' && active ? nextOccurrence(cron as string, timezone, now).toISOString() : null)

/**
 * Refuses callers that could escape a boundary by a trigger: work that a trigger started, and agents with a boundary
 * policy, which does not apply to the work of their triggers.
 * @throws FORBIDDEN
 */
export function refuseBoundedAgents({ run, layers }: Pick<Caller, 'run' | 'layers'>): void {
  if (run?.trigger_id) raise('FORBIDDEN', { message: 'Work started by a trigger may not create or change triggers' })
  if (layers.some(({ kind }) => kind === 'agent'))
    raise('FORBIDDEN', { message: 'An agent with a boundary policy may not create or change triggers' })
}

/** Refuses work that a trigger started. @throws TRIGGER_RECURSION_FORBIDDEN */
export function refuseRecursion({ run }: Pick<Caller, 'run'>): void {
  if (run?.trigger_id) raise('TRIGGER_RECURSION_FORBIDDEN', { meta: { trigger_id: run.trigger_id } })
}
