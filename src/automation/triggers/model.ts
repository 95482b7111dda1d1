import { z } from 'zod'
import { RecordedFailure, raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { expressionProblem } from '../../core/expressions/evaluate.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'

/** A trigger starts work by hand, by clock, by a signed call or by an event; a firing is one such start. */

export const TRIGGER_TYPES = ['manual', 'webhook', 'schedule', 'event'] as const
export type TriggerType = (typeof TRIGGER_TYPES)[number]

export const TARGET_TYPES = ['orchestration', 'agent', 'tool', 'eval', 'playbook', 'formation'] as const
export type TargetType = (typeof TARGET_TYPES)[number]

export const FIRING_STATUSES = ['pending', 'running', 'succeeded', 'failed', 'skipped'] as const

const INPUT_BYTES = 256 * 1024

const id = z.string().min(1).max(255)
const anObject = z.record(z.string(), z.unknown())
const time = z.iso.datetime().nullable()

const expression = (text: string) =>
  z
    .unknown()
    .superRefine((value, context) => {
      const problem = value == null ? null : expressionProblem(value)
      if (problem) context.addIssue({ code: 'custom', message: problem })
    })
    .describe(text)

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(2000).nullable().describe('What it is for'),
  type: z.enum(TRIGGER_TYPES).describe('What fires it beside a call of `fire`; it cannot be changed'),
  target_type: z.enum(TARGET_TYPES).describe('What it starts'),
  target_id: id.describe(
    'The orchestration, agent, tool, eval, playbook or formation; a tool may be one that is shared with the project',
  ),
  action: id
    .nullable()
    .describe(
      'Operation of a platform tool, tool of the server of an mcp tool, `detect_drift` of a formation; other targets have none',
    ),
  input: anObject
    .refine(value => Buffer.byteLength(JSON.stringify(value)) <= INPUT_BYTES, 'must be at most 256 KiB')
    .nullable()
    .describe('What every firing is given; what came with the firing goes over it, key by key'),
  cron: z
    .string()
    .max(255)
    .nullable()
    .describe('When a schedule fires: minute, hour, day of the month, month, day of the week'),
  event_pattern: z
    .string()
    .max(255)
    .nullable()
    .describe('Which events fire an event trigger: `*`, `prefix.*` or an exact name'),
  active: z.boolean().describe('Whether it fires; default true'),
  policy_id: id
    .nullable()
    .describe('Policy that bounds what its firings may do, and of an event trigger which events it sees'),
  input_mapping: anObject
    .refine(value => expressionProblem(value) === null, 'must be at most 64 KiB and 100 levels')
    .nullable()
    .describe('Expressions over `input`, `trigger` and `firing`, whose results take the place of the input'),
  event_filter: expression('Expression over the event; an event trigger fires where it is truthy').nullable(),
  timezone: z.string().min(1).max(64).nullable().describe('Time zone of cron, by its IANA name; default UTC'),
  overlap_policy: z
    .enum(['allow', 'skip'])
    .nullable()
    .describe('`skip` leaves out an occurrence while a firing is under way; default allow'),
  misfire_policy: z
    .enum(['fire_once', 'skip'])
    .nullable()
    .describe('`skip` leaves out an occurrence whose follower is due as well; default fire_once'),
  signature_scheme: z
    .enum(['timestamped', 'body_sha256'])
    .nullable()
    .describe('How calls of a webhook trigger are signed; default timestamped'),
  signature_header: z
    .string()
    .regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$/, 'must be the name of a header')
    .nullable()
    .describe('Header that has the signature, with body_sha256; default that of timestamped')
    .meta({ example: 'X-Hub-Signature-256' }),
}

const RunAs = z.object({ kind: z.enum(['user', 'api_key', 'oauth_grant']), id: z.string() })

export const Trigger = record('Trigger', {
  ...fields,
  event_filter: z.unknown().describe('Expression over the event; null without one'),
  next_fire_at: time.describe('When a schedule fires next; null for others and while it is not active'),
  hook_url: z.string().nullable().describe('Where a webhook trigger is called'),
  run_as: RunAs.describe('Whose rights its firings have: who made it, or changed what it does last'),
  created_by: RunAs.describe('Who made it'),
})

export const TriggerWithSecret = Trigger.extend({
  secret: z.string().optional().describe('Signs the calls of a webhook trigger').meta({ 'x-secret': true }),
}).meta({ id: 'TriggerWithSecret' })

export const TriggerSecret = z
  .object({ secret: z.string().describe('Signs the calls of the trigger').meta({ 'x-secret': true }) })
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
      .describe('How long calls that are signed with the old secret are taken too'),
  })
  .meta({ id: 'RotateTriggerSecretInput' })

const wait = z.boolean().describe('Answer once the firing has ended, not at once; default true')

export const FireInput = z
  .strictObject({
    input: anObject
      .refine(value => Buffer.byteLength(JSON.stringify(value)) <= INPUT_BYTES, 'must be at most 256 KiB')
      .nullish()
      .describe('Goes over the input of the trigger, key by key'),
    wait: wait.nullish(),
  })
  .meta({ id: 'FireTriggerInput', example: { input: { order_id: '1042' } } })

export const TRIGGER_SOURCES = TRIGGER_TYPES

const FiredBy = z.object({ kind: z.enum(['user', 'api_key', 'oauth_grant']), id: z.string() })

export const FiringResult = z
  .object({
    target_type: z.enum(TARGET_TYPES).describe('What the trigger starts'),
    result_id: z
      .string()
      .nullable()
      .describe('The run, turn or execution that was started; null for a tool or a formation'),
    status: z.string().describe('How that stood when the firing ended'),
    output: z.unknown().describe('What came of it; of a long one a preview'),
  })
  .meta({ id: 'TriggerFiringResult' })
export type FiringResult = z.output<typeof FiringResult>

export const TriggerFiring = record('TriggerFiring', {
  trigger_id: z.string(),
  source: z.enum(TRIGGER_SOURCES).describe('What fired the trigger'),
  status: z
    .enum(FIRING_STATUSES)
    .describe('`skipped` — what its event began with has led to `EVENT_FANOUT_MAX` firings'),
  input: anObject.describe('The effective input'),
  result: FiringResult.nullable().describe('Set once something was started'),
  error: RecordedFailure.nullable(),
  attempts: z.int().describe('How often a worker took it up'),
  idempotency_key: z.string().nullable().describe('Key under which it was fired; null without'),
  event_id: z.string().nullable(),
  scheduled_for: time,
  causation_chain: z.array(z.string()).describe('Triggers that led here, oldest first, without its own'),
  fired_by: FiredBy.nullable().describe('Who fired it by hand'),
  started_at: time,
  completed_at: time,
})

export const HookAnswer = z
  .object({ firing_id: z.string(), trigger_id: z.string(), status: z.enum(FIRING_STATUSES) })
  .meta({ id: 'TriggerHookAnswer' })

/** Who a principal is, as the wire names it. A bounded authority is named by its bound. */
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
    // Where the deployment is reached is in no row.
    hook_url: sql.fragment`null::text`,
    run_as: sql.fragment`case when t.authority -> 'via' ->> 'type' = 'oauth_grant'
      then jsonb_build_object('kind', 'oauth_grant', 'id', t.authority -> 'via' ->> 'id')
      else jsonb_build_object('kind', t.authority ->> 'type', 'id', t.authority ->> 'id') end`,
  },
  hidden: {
    authority: z.custom<PrincipalRecord>(),
    sealed_secret: z.string().nullable(),
    previous_sealed_secret: z.string().nullable(),
    previous_secret_until: time,
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
    /** What it counts to: an event or a firing; null for one that began by itself or by its event. */
    root_id: z.string().nullable(),
    result_id: z.string().nullable(),
    /** Who fired it by hand, with what narrows them. */
    asked_by: z.custom<PrincipalRecord>().nullable(),
  },
  authorize: ({ trigger_id }) => ({ type: 'trigger', id: trigger_id }),
})
export type FiringRow = z.output<typeof firingKind.row>

export const isFiringTerminal = ({ status }: Pick<FiringRow, 'status'>): boolean =>
  status === 'succeeded' || status === 'failed' || status === 'skipped'

/** Carries the id of a firing that has ended. */
export const FIRING_CHANNEL = 'muster_trigger_firings'

/** The row that the secrets of a trigger are sealed for. */
export const sealedForTrigger = (triggerId: string, projectId: string) => ({
  kind: 'trigger_secret',
  id: triggerId,
  project_id: projectId,
})

export const triggerSecrets = ['sealed_secret', 'previous_sealed_secret'].map(column =>
  sealedColumn({ table: 'triggers', column, kind: 'trigger_secret' }),
)
