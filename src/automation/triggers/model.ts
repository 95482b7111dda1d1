import { randomBytes } from 'node:crypto'
import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { RecordedFailure, raise } from '#core/base/errors.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { sql } from '#core/db/sql.ts'
import { expressionProblem } from '#core/expressions/evaluate.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'

export const TRIGGER_TYPES = ['manual', 'webhook', 'schedule', 'event'] as const
export type TriggerType = (typeof TRIGGER_TYPES)[number]

export const TARGET_TYPES = ['orchestration', 'agent', 'tool', 'eval', 'playbook', 'formation'] as const
export type TargetType = (typeof TARGET_TYPES)[number]

export const FIRING_STATUSES = ['pending', 'running', 'succeeded', 'failed', 'skipped'] as const

const INPUT_BYTES = 256 * 1024

const id = z.string().min(1).max(255)
const jsonObject = z.record(z.string(), z.unknown())
const nullableTime = z.iso.datetime().nullable()

const expression = (description: string) =>
  z
    .unknown()
    .superRefine((value, context) => {
      const problem = value == null ? null : expressionProblem(value)
      if (problem) context.addIssue({ code: 'custom', message: problem })
    })
    .describe(description)

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name of the trigger, unique in the project'),
  description: z.string().max(2000).nullable().describe('Purpose of the trigger'),
  type: z.enum(TRIGGER_TYPES).describe('What fires the trigger, in addition to fire requests. Cannot be changed.'),
  target_type: z.enum(TARGET_TYPES).describe('Type of the target that the trigger starts'),
  target_id: id.describe(
    'ID of the orchestration, agent, tool, eval, playbook or formation. May be a tool shared with the project.',
  ),
  action: id
    .nullable()
    .describe(
      'Operation of a platform tool, tool name on the server of an mcp tool, or `detect_drift` for a formation. Null for other targets.',
    ),
  input: jsonObject
    .refine(value => Buffer.byteLength(JSON.stringify(value)) <= INPUT_BYTES, 'must be at most 256 KiB')
    .nullable()
    .describe("Default input of every firing. Keys of the firing's own input take precedence."),
  cron: z
    .string()
    .max(255)
    .nullable()
    .describe('Cron expression of a schedule: minute, hour, day of month, month, day of week'),
  event_pattern: z
    .string()
    .max(255)
    .nullable()
    .describe('Events that fire an event trigger: `*`, `prefix.*` or an exact name'),
  active: z.boolean().describe('Whether the trigger can fire. Default true.'),
  policy_id: id
    .nullable()
    .describe('ID of the policy that limits the permissions of firings and the events that an event trigger receives'),
  input_mapping: jsonObject
    .refine(value => expressionProblem(value) === null, 'must be at most 64 KiB and 100 levels')
    .nullable()
    .describe('Expressions over `input`, `trigger` and `firing`. Their results replace the input.'),
  event_filter: expression('Expression over the event. An event trigger fires only if it is truthy.').nullable(),
  timezone: z.string().min(1).max(64).nullable().describe('IANA time zone of cron. Default UTC.'),
  overlap_policy: z
    .enum(['allow', 'skip'])
    .nullable()
    .describe(
      'Handling of an occurrence while a firing is active: allow — fires concurrently; skip — no firing. Default allow.',
    ),
  misfire_policy: z
    .enum(['fire_once', 'skip'])
    .nullable()
    .describe(
      'Handling of missed occurrences: fire_once — one firing for all of them; skip — no firing. Default fire_once.',
    ),
  signature_scheme: z
    .enum(['timestamped', 'body_sha256'])
    .nullable()
    .describe(
      'Signature of webhook calls: timestamped — HMAC of timestamp and body; body_sha256 — HMAC of the body. Default timestamped.',
    ),
  signature_header: z
    .string()
    .regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$/, 'must be a header name')
    .nullable()
    .describe('Name of the signature header. Allowed only with body_sha256. Default the header of timestamped.')
    .meta({ example: 'X-Hub-Signature-256' }),
}

const RunAs = z.object({ kind: z.enum(['user', 'api_key', 'oauth_grant']), id: z.string() })

export const Trigger = record('Trigger', {
  ...fields,
  event_filter: z.unknown().describe('Expression over the event. Null if not set.'),
  next_fire_at: nullableTime.describe(
    'Time of the next scheduled firing. Null for other types and for inactive triggers.',
  ),
  hook_url: z.string().nullable().describe('URL to call a webhook trigger. Null for other types.'),
  run_as: RunAs.describe(
    'Principal whose permissions firings have: the creator, or the last principal to change the effect of firings',
  ),
  created_by: RunAs.describe('Principal that created the trigger'),
})

export const TriggerWithSecret = Trigger.extend({
  secret: z
    .string()
    .optional()
    .describe('Signing secret of a webhook trigger. Absent for other types.')
    .meta({ 'x-secret': true }),
}).meta({ id: 'TriggerWithSecret' })

export const TriggerSecret = z
  .object({ secret: z.string().describe('Signing secret of the trigger').meta({ 'x-secret': true }) })
  .meta({ id: 'TriggerSecret' })

export const TriggerInput = createBody('TriggerInput', fields, ['name', 'type', 'target_type', 'target_id'], {
  name: 'Monday report',
  type: 'schedule',
  cron: '0 9 * * 1',
  timezone: 'Europe/Berlin',
  target_type: 'orchestration',
  target_id: 'orch_01k5p3vd7r9hj2x8m4qcw6tz0e',
})

export const TriggerPatch = patchBody('TriggerPatch', fields, { active: false })

export const RotateTriggerSecretInput = z
  .strictObject({
    keep_previous_seconds: z
      .int()
      .min(0)
      .max(86_400)
      .default(0)
      .describe('Seconds for which the previous secret remains valid. Default 0, at most 86400.'),
  })
  .meta({ id: 'RotateTriggerSecretInput' })

const wait = z.boolean().describe('Whether to respond only after the firing has settled. Default true.')

export const FireInput = z
  .strictObject({
    input: jsonObject
      .refine(value => Buffer.byteLength(JSON.stringify(value)) <= INPUT_BYTES, 'must be at most 256 KiB')
      .nullish()
      .describe("Input of the firing. Its keys take precedence over the trigger's input."),
    wait: wait.nullish(),
  })
  .meta({ id: 'FireTriggerInput', example: { input: { order_id: '1042' } } })

export const TRIGGER_SOURCES = TRIGGER_TYPES

const FiredBy = z.object({ kind: z.enum(['user', 'api_key', 'oauth_grant']), id: z.string() })

export const FiringResult = z
  .object({
    target_type: z.enum(TARGET_TYPES).describe('Type of the target'),
    result_id: z
      .string()
      .nullable()
      .describe('ID of the started run, generation or execution. Null for a tool or formation.'),
    status: z.string().describe('Status of the started work when the firing settled'),
    output: z.unknown().describe('Output of the started work. Long outputs are replaced by a preview.'),
  })
  .meta({ id: 'TriggerFiringResult' })
export type FiringResult = z.output<typeof FiringResult>

export const TriggerFiring = record('TriggerFiring', {
  trigger_id: z.string(),
  source: z.enum(TRIGGER_SOURCES).describe('Source of the firing'),
  status: z.enum(FIRING_STATUSES).describe('`skipped` — the root of its event has reached `EVENT_FANOUT_MAX` firings'),
  input: jsonObject.describe(
    'Effective input. Of a firing by a schedule or event that is still `pending`, the input before its `input_mapping`.',
  ),
  result: FiringResult.nullable().describe('Result of the firing. Null until work has been started.'),
  error: RecordedFailure.nullable(),
  attempts: z.int().describe('Number of attempts'),
  idempotency_key: z.string().nullable().describe('Idempotency key of the firing. Null if it has none.'),
  event_id: z.string().nullable(),
  scheduled_for: nullableTime,
  causation_chain: z
    .array(z.string())
    .describe('IDs of the triggers that led to the firing, oldest first, without its own trigger'),
  fired_by: FiredBy.nullable().describe('Principal that fired the trigger manually'),
  started_at: nullableTime,
  completed_at: nullableTime,
})

export const HookAnswer = z
  .object({ firing_id: z.string(), trigger_id: z.string(), status: z.enum(FIRING_STATUSES) })
  .meta({ id: 'TriggerHookAnswer' })

/** Presents a principal in the API format. An OAuth grant is presented in place of its principal. */
export const presentPrincipal = ({ type, id, via }: PrincipalRecord): z.output<typeof RunAs> =>
  via?.type === 'oauth_grant' ? { kind: 'oauth_grant', id: via.id } : { kind: type, id }

export const triggerKind = kind({
  name: 'trigger',
  prefix: 'trg',
  table: 'triggers',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'policy', column: 'policy_id', on_delete: 'block' },
  ],
  record: Trigger,
  computed: {
    // Depends on the configured base URL; added by the operations.
    hook_url: sql.fragment`null::text`,
    run_as: sql.fragment`case when t.authority -> 'via' ->> 'type' = 'oauth_grant'
      then jsonb_build_object('kind', 'oauth_grant', 'id', t.authority -> 'via' ->> 'id')
      else jsonb_build_object('kind', t.authority ->> 'type', 'id', t.authority ->> 'id') end`,
  },
  hidden: {
    authority: z.custom<PrincipalRecord>(),
    sealed_secret: z.string().nullable(),
    previous_sealed_secret: z.string().nullable(),
    previous_secret_until: nullableTime,
  },
  events: ['created', 'updated', 'deleted'],
  eventNotes: 'the secret is never present',
  unique: { triggers_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})
export type TriggerRow = z.output<typeof triggerKind.row>

export const firingKind = kind({
  name: 'trigger_firing',
  prefix: 'trg_fire',
  table: 'trigger_firings',
  counted: false,
  references: [{ kind: 'trigger', column: 'trigger_id', on_delete: 'cascade' }],
  record: TriggerFiring,
  computed: {
    status: sql.fragment`case t.state when 'queued' then 'pending' when 'started' then 'running' else t.state end`,
    attempts: sql.fragment`t.claims`,
  },
  hidden: {
    state: z.enum(['queued', 'running', 'started', 'succeeded', 'failed', 'skipped']),
    target_type: z.enum(TARGET_TYPES),
    /** Whether `input` has not passed through the `input_mapping` of the trigger. */
    unmapped: z.boolean(),
    /** Event or firing that it counts towards. Null if the firing or its own event is the root. */
    root_id: z.string().nullable(),
    result_id: z.string().nullable(),
    /** Principal that fired it manually, with the limits of its credential. */
    asked_by: z.custom<PrincipalRecord>().nullable(),
    trace_context: z.string().nullable(),
  },
  authorize: ({ trigger_id }) => ({ type: 'trigger', id: trigger_id }),
})
export type FiringRow = z.output<typeof firingKind.row>

export const isFiringTerminal = ({ status }: Pick<FiringRow, 'status'>): boolean =>
  status === 'succeeded' || status === 'failed' || status === 'skipped'

/** Notifies the id of a settled firing. */
export const FIRING_CHANNEL = 'muster_trigger_firings'

/** Returns the identity that the secrets of a trigger are bound to. */
export const sealedForTrigger = (triggerId: string, projectId: string) => ({
  kind: 'trigger_secret',
  id: triggerId,
  project_id: projectId,
})

/** Returns a new secret of 32 random bytes. */
export const newTriggerSecret = (): string => randomBytes(32).toString('hex')

export const sealedTriggerColumns = ['sealed_secret', 'previous_sealed_secret'].map(column =>
  sealedColumn({ table: 'triggers', column, kind: 'trigger_secret' }),
)
