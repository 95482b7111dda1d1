import { z } from 'zod'
import { canSeeProject } from '#core/api/access.ts'
import { containsFilter, equalsFilter, filterConditions, filterSchema, flagFilter, oneOf } from '#core/api/filters.ts'
import { isIdOf } from '#core/api/kind.ts'
import { booleanQuery, listTable, pageOf, pageResult } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { systemClock } from '#core/base/clock.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { addStarter } from '#core/iam/authority.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import type { Tx } from '#core/writes/writer.ts'
import {
  checkTriggerFields,
  firstFireTime,
  refuseBoundedAgents,
  refuseRecursion,
  validateTrigger,
} from './configure.ts'
import { awaitFiring, fireManually } from './fire-manually.ts'
import { callHook, hookUrl } from './hook.ts'
import {
  FIRING_STATUSES,
  FireInput,
  type FiringRow,
  firingKind,
  newTriggerSecret,
  presentPrincipal,
  RotateTriggerSecretInput,
  sealedForTrigger,
  TARGET_TYPES,
  TRIGGER_SOURCES,
  TRIGGER_TYPES,
  Trigger,
  TriggerFiring,
  TriggerInput,
  TriggerPatch,
  type TriggerRow,
  TriggerSecret,
  TriggerWithSecret,
  triggerKind,
} from './model.ts'

import { countLockedTriggers, rotateTriggerSecret } from './store.ts'

const tag = 'Triggers'

const withHookUrl = (row: TriggerRow, services: Pick<Services, 'config'>): TriggerRow =>
  row.type === 'webhook' ? { ...row, hook_url: hookUrl(services, row.id) } : row

const triggers = resource(triggerKind, {
  path: '/triggers',
  tag,
  complete: async (row, { services }) => withHookUrl(row, services),
})

const firings = resource(firingKind, { path: '/trigger-firings', tag, param: 'firing_id' })

/** Permissions to start the targets. */
const START_ACTIONS = [
  'orchestrations:StartRun',
  'agents:CreateAgentGeneration',
  'tools:CallTool',
  'evaluations:RunEval',
  'playbooks:StartExecution',
]

const validationErrors = [
  'TRIGGER_ACTION_NOT_ALLOWED',
  'INVALID_CRON_EXPRESSION',
  'INVALID_EVENT_PATTERN',
  'TRIGGER_TARGET_NOT_FOUND',
  'POLICY_NOT_FOUND',
  'NAME_CONFLICT',
] as const

const openTriggerSecret = ({ secrets }: Services, { id, project_id, sealed_secret }: TriggerRow): string => {
  if (sealed_secret === null)
    return raise('TRIGGER_ACTION_NOT_ALLOWED', {
      message: `Trigger ${id} is not a webhook trigger and has no secret`,
      meta: { field: 'type' },
    })
  const opened = secrets.open(sealed_secret, sealedForTrigger(id, project_id))
  return opened.ok ? opened.value : raise('SECRET_NOT_DECRYPTABLE', { meta: { id } })
}

const DEFAULTS = {
  description: null,
  action: null,
  input: null,
  cron: null,
  event_pattern: null,
  policy_id: null,
  input_mapping: null,
  event_filter: null,
  timezone: null,
  overlap_policy: null,
  misfire_policy: null,
  signature_scheme: null,
  signature_header: null,
  sealed_secret: null,
  previous_sealed_secret: null,
  previous_secret_until: null,
  next_fire_at: null,
}

async function requireCapacity(tx: Tx, { config }: Services, project: string, type: string): Promise<void> {
  const { TRIGGER_MAX_PER_PROJECT, TRIGGER_EVENT_MAX_PER_PROJECT } = config
  const count = await countLockedTriggers(tx, project)
  const raiseLimit = (message: string) => raiseInvalid({ code: 'LIMIT_REACHED', path: '', message })
  if (count.all >= TRIGGER_MAX_PER_PROJECT)
    raiseLimit(`the project has reached the limit of ${TRIGGER_MAX_PER_PROJECT} triggers`)
  if (type === 'event' && count.events >= TRIGGER_EVENT_MAX_PER_PROJECT)
    raiseLimit(`the project has reached the limit of ${TRIGGER_EVENT_MAX_PER_PROJECT} event triggers`)
}

const readDatabaseTime = async (tx: Tx): Promise<Date> =>
  new Date(await tx.oneFirst(sql.type(z.object({ now: z.string() }))`select now() as now`))

const createTrigger = triggers.create({
  description:
    'Requires the permission to start the target. Firings run with the permissions of the caller, limited by the policy of the trigger. Only this response contains the secret of a webhook trigger.',
  alsoActions: START_ACTIONS,
  body: TriggerInput,
  answers: { 201: TriggerWithSecret },
  raises: [...validationErrors],
  secretAnswer: true,
  admit: refuseBoundedAgents,
  validate: ({ body }) => void checkTriggerFields({ ...DEFAULTS, active: true, ...body }),
  async make({ tx, body, project, services, caller, allow }) {
    await requireCapacity(tx, services, project, body.type)
    const id = newId(triggerKind.prefix)
    const { project_id: _project, active = true, ...fields } = body
    const values = { ...DEFAULTS, ...fields, active, id, project_id: project }
    const { trigger, allow: allowStart } = await validateTrigger(tx, values)
    allowStart(allow)
    const sealed_secret =
      trigger.type === 'webhook' ? services.secrets.seal(newTriggerSecret(), sealedForTrigger(id, project)) : null
    const next_fire_at = trigger.type === 'schedule' ? firstFireTime(trigger, await readDatabaseTime(tx)) : null
    // The clock of events: earlier events do not fire the trigger.
    const created_at = systemClock.now().toISOString()
    const authority = principalRecord(caller)
    return triggerKind.insert(tx, {
      ...trigger,
      authority,
      created_by: presentPrincipal(authority),
      sealed_secret,
      next_fire_at,
      created_at,
      updated_at: created_at,
    })
  },
  show: (row, { services }) => (row.sealed_secret === null ? {} : { secret: openTriggerSecret(services, row) }),
})

const filters = {
  type: oneOf('type', TRIGGER_TYPES),
  target_type: oneOf('target_type', TARGET_TYPES),
  target_id: equalsFilter('target_id'),
  active: flagFilter('active'),
  name: containsFilter('name'),
}

const listTriggers = operation({
  id: 'listTriggers',
  method: 'get',
  path: '/triggers',
  summary: 'List triggers',
  description: 'Schedules include the time of their next firing.',
  tag,
  action: 'triggers:ListTriggers',
  lists: triggerKind,
  query: filterSchema(filters),
  answers: { 200: pageOf(Trigger) },
  // triggers_project serves the order.
  run: context =>
    listTable<TriggerRow>(context, {
      table: triggerKind.table,
      columns: triggerKind.columns,
      filters: filterConditions(filters, context.query),
      present: row => triggerKind.present(withHookUrl(row, context.services)),
    }),
})

/** Fields that determine the effect of firings. Changing them requires the start permission and changes `run_as`. */
const EFFECT_FIELDS = ['target_type', 'target_id', 'action', 'input', 'input_mapping', 'policy_id'] as const

/** Fields that determine when a schedule fires. */
const TIMING_FIELDS = ['cron', 'timezone', 'active'] as const

const anyFieldChanged = (fields: readonly (keyof TriggerRow)[], before: TriggerRow, after: TriggerRow): boolean =>
  fields.some(field => JSON.stringify(before[field]) !== JSON.stringify(after[field]))

const updateTrigger = triggers.update({
  description:
    'Validates the resulting trigger as a whole. Changing target, action, input or policy requires the permission to start the target; later firings then run with the permissions of the caller. Changing or removing the policy also requires triggers:CreateTrigger. Activating or rescheduling a schedule computes its next firing from the current time.',
  alsoActions: [...START_ACTIONS, 'triggers:CreateTrigger'],
  body: TriggerPatch,
  quiet: true,
  raises: [...validationErrors, 'TRIGGER_TYPE_IMMUTABLE'],
  admit: refuseBoundedAgents,
  async change(next, { stored, tx, allow, caller }) {
    if (next.type !== stored.type)
      raise('TRIGGER_TYPE_IMMUTABLE', { meta: { field: 'type', type: stored.type, requested: next.type } })
    const { trigger, allow: allowStart } = await validateTrigger(tx, next)
    const next_fire_at = anyFieldChanged(TIMING_FIELDS, stored, trigger)
      ? firstFireTime(trigger, await readDatabaseTime(tx))
      : trigger.next_fire_at
    if (!anyFieldChanged(EFFECT_FIELDS, stored, trigger)) return { ...trigger, next_fire_at }
    allowStart(allow)
    // The policy limits the trigger's permissions: changing it requires the permission to create such a trigger.
    if (anyFieldChanged(['policy_id'], stored, trigger))
      allow('triggers:CreateTrigger', { kind: triggerKind, project_id: stored.project_id })
    // The previous authority also limits the result, because its input and mapping may remain.
    const authority = addStarter(principalRecord(caller), stored.authority)
    return { ...trigger, next_fire_at, authority }
  },
})

const WaitQuery = z.object({
  wait: booleanQuery.optional().describe('Whether to respond only after the firing has settled. Default true.'),
})

const fireTrigger = triggers.action('fire', {
  summary: 'Fire a trigger',
  description:
    'Fires a trigger of any type. Waits at most TRIGGER_FIRE_WAIT_MAX_MS for the firing to settle; with `wait` false, returns 202 immediately. The firing runs with the permissions in `run_as`; the caller needs no permission on the target.',
  query: WaitQuery,
  waiting: {
    default: true,
    running: ['pending', 'running'],
    done: ['succeeded'],
    failed: ['failed', 'skipped'],
    paused: [],
    poll: 'getTriggerFiring',
  },
  body: FireInput,
  bodyOptional: true,
  answers: { 200: TriggerFiring, 202: TriggerFiring },
  raises: [
    'TRIGGER_RECURSION_FORBIDDEN',
    'TRIGGER_INPUT_INVALID',
    'TRIGGER_NOT_ACTIVE',
    'TRIGGER_CREATOR_UNAVAILABLE',
    'TRIGGER_TARGET_NOT_FOUND',
    'SYSTEM_MESSAGE_NOT_ALLOWED',
    'PROJECT_PAUSED',
  ],
  transaction: false,
  admit: refuseRecursion,
  run: context => {
    const { query, body } = context
    return fireManually(context as never, body?.input ?? {}, query.wait ?? body?.wait ?? true)
  },
  again: (context, { firing_id }) => awaitFiring(context, firing_id as string),
})

const getSecret = itemOperation(triggerKind, {
  id: 'getTriggerSecret',
  command: ['triggers', 'get-secret'],
  method: 'get',
  path: '/triggers/{trigger_id}/secret',
  summary: 'Get the secret of a webhook trigger',
  tag,
  description: 'Every read is recorded in the audit log.',
  action: 'triggers:GetTriggerSecret',
  answers: { 200: TriggerSecret },
  raises: ['TRIGGER_ACTION_NOT_ALLOWED', 'SECRET_NOT_DECRYPTABLE'],
  // Audited like a write, even if the project does not audit reads.
  reads: false,
  run: async ({ resource: trigger, services }) => ({ secret: openTriggerSecret(services, trigger) }),
})

const rotateSecret = triggers.action('rotate-secret', {
  id: 'rotateTriggerSecret',
  summary: 'Rotate the secret of a webhook trigger',
  description: 'Takes effect immediately. The previous secret remains valid for `keep_previous_seconds`.',
  action: 'triggers:RotateTriggerSecret',
  body: RotateTriggerSecretInput,
  bodyOptional: true,
  answers: { 200: TriggerWithSecret },
  raises: ['TRIGGER_ACTION_NOT_ALLOWED'],
  secretAnswer: true,
  async run({ tx, body, resource: { id, type, project_id }, services }) {
    if (type !== 'webhook')
      raise('TRIGGER_ACTION_NOT_ALLOWED', {
        message: `Trigger ${id} is not a webhook trigger and has no secret`,
        meta: { field: 'type' },
      })
    const secret = newTriggerSecret()
    const sealed = services.secrets.seal(secret, sealedForTrigger(id, project_id))
    const rotated = await rotateTriggerSecret(tx, id, sealed, body?.keep_previous_seconds ?? 0)
    if (!rotated) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
    const row = withHookUrl(rotated, services)
    tx.emit(triggerKind, 'updated', row)
    return { ...triggerKind.present(row), secret }
  },
})

const STATES_BY_STATUS: Record<(typeof FIRING_STATUSES)[number], readonly string[]> = {
  pending: ['queued'],
  running: ['running', 'started'],
  succeeded: ['succeeded'],
  failed: ['failed'],
  skipped: ['skipped'],
}

const statusFilter = oneOf('status', FIRING_STATUSES)

const firingFilters = {
  status: {
    ...statusFilter,
    where: (values: readonly (keyof typeof STATES_BY_STATUS)[]): Fragment =>
      sql.fragment`t.state = any(${sql.array(
        values.flatMap(value => STATES_BY_STATUS[value]),
        'text',
      )})`,
  },
  source: oneOf('source', TRIGGER_SOURCES),
}

const listFirings = operation({
  id: 'listTriggerFirings',
  method: 'get',
  path: '/trigger-firings',
  summary: 'List the firings of a trigger',
  description: 'Includes the input, status and result of each firing.',
  tag,
  action: 'triggers:ListTriggerFirings',
  lists: triggerKind,
  across: null,
  query: filterSchema(firingFilters).extend({ trigger_id: z.string().describe('ID of the trigger') }),
  answers: { 200: pageOf(TriggerFiring) },
  async run(context) {
    const { query, db, caller } = context
    const owner = isIdOf(triggerKind, query.trigger_id) ? await triggerKind.find(db, query.trigger_id) : null
    if (!owner || !canSeeProject(caller, owner.project_id))
      return raise('RESOURCE_NOT_FOUND', { meta: { id: query.trigger_id } })
    context.allow('triggers:ListTriggerFirings', { kind: triggerKind, row: owner })
    // Index trigger_firings_trigger.
    return pageResult<FiringRow>(context, {
      columns: firingKind.columns,
      from: sql.fragment`trigger_firings t`,
      rows: sql.fragment`t.trigger_id = ${owner.id}`,
      filters: [
        context.project !== null && context.project !== owner.project_id && sql.fragment`false`,
        ...filterConditions(firingFilters, query),
      ],
      time: sql.fragment`t.created_at`,
      order: sql.fragment`t.created_at desc, t.id desc`,
      key: sql.fragment`t.id`,
      present: firingKind.present,
    })
  },
})

export const triggerOperations: Operation[] = [
  createTrigger,
  listTriggers,
  triggers.get(),
  updateTrigger,
  triggers.remove({
    description: 'Deletes the trigger and its firings. Waiting firings are discarded; work already started continues.',
  }),
  fireTrigger,
  getSecret,
  rotateSecret,
  listFirings,
  firings.get({ summary: 'Get a trigger firing', action: 'triggers:GetTriggerFiring' }),
  callHook,
]
