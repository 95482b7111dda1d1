import { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import {
  containsFilter,
  equalsFilter,
  filterConditions,
  filterSchema,
  flagFilter,
  oneOf,
} from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { booleanQuery, listTable, pageOf, pageResult } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { type Fragment, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { canSeeProject } from '../../core/iam/access.ts'
import { startedAlsoBy } from '../../core/iam/authority.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { firstFire, refuseBoundedAgents, refuseRecursion, validateTrigger } from './configure.ts'
import { firedAgain, fireManually } from './fire-manually.ts'
import { callHook, hookUrl } from './hook.ts'
import {
  FIRING_STATUSES,
  FireInput,
  type FiringRow,
  firingKind,
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
import { newTriggerSecret } from './secret.ts'
import { countLockedTriggers, rotateTriggerSecret } from './store.ts'

const tag = 'Triggers'

/** A trigger with the address at which it is called. */
const withUrl = (row: TriggerRow, services: Pick<Services, 'config'>): TriggerRow =>
  row.type === 'webhook' ? { ...row, hook_url: hookUrl(services, row.id) } : row

const triggers = resource(triggerKind, {
  path: '/triggers',
  tag,
  complete: async (row, { services }) => withUrl(row, services),
})

const firings = resource(firingKind, { path: '/trigger-firings', tag, param: 'firing_id' })

/** What is started needs a right of its own. */
const RIGHTS = [
  'orchestrations:StartRun',
  'agents:CreateAgentGeneration',
  'tools:CallTool',
  'evaluations:RunEval',
  'playbooks:StartExecution',
]

const refusals = [
  'TRIGGER_ACTION_NOT_ALLOWED',
  'INVALID_CRON_EXPRESSION',
  'INVALID_EVENT_PATTERN',
  'TRIGGER_TARGET_NOT_FOUND',
  'POLICY_NOT_FOUND',
  'NAME_CONFLICT',
] as const

const secretOf = ({ secrets }: Services, { id, project_id, sealed_secret }: TriggerRow): string => {
  if (sealed_secret === null)
    return raise('TRIGGER_ACTION_NOT_ALLOWED', {
      message: 'Webhook triggers alone have a secret',
      meta: { field: 'type' },
    })
  const opened = secrets.open(sealed_secret, sealedForTrigger(id, project_id))
  return opened.ok ? opened.value : raise('SECRET_NOT_DECRYPTABLE', { meta: { id } })
}

const UNSET = {
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

async function requireRoom(tx: Tx, { config }: Services, project: string, type: string): Promise<void> {
  const { TRIGGER_MAX_PER_PROJECT, TRIGGER_EVENT_MAX_PER_PROJECT } = config
  const count = await countLockedTriggers(tx, project)
  const full = (message: string) => raiseInvalid({ code: 'LIMIT_REACHED', path: '', message })
  if (count.all >= TRIGGER_MAX_PER_PROJECT) full(`a project has at most ${TRIGGER_MAX_PER_PROJECT} triggers`)
  if (type === 'event' && count.events >= TRIGGER_EVENT_MAX_PER_PROJECT)
    full(`a project has at most ${TRIGGER_EVENT_MAX_PER_PROJECT} event triggers`)
}

const databaseTime = async (tx: Tx): Promise<Date> =>
  new Date(await tx.oneFirst(sql.type(z.object({ now: z.string() }))`select now() as now`))

const createTrigger = triggers.create({
  description:
    'Needs the right to start the target, which the firings have from whoever creates the trigger, within its policy. The answer is the only record that shows the secret of a webhook trigger.',
  alsoActions: RIGHTS,
  body: TriggerInput,
  answers: { 201: TriggerWithSecret },
  raises: [...refusals],
  secretAnswer: true,
  admit: refuseBoundedAgents,
  async make({ tx, body, project, services, caller, allow }) {
    await requireRoom(tx, services, project, body.type)
    const id = newId(triggerKind.prefix)
    const { project_id: _named, active = true, ...given } = body
    const values = { ...UNSET, ...given, active, id, project_id: project }
    const { trigger, allow: allowStart } = await validateTrigger(tx, values)
    allowStart(allow)
    const sealed_secret =
      trigger.type === 'webhook' ? services.secrets.seal(newTriggerSecret(), sealedForTrigger(id, project)) : null
    const next_fire_at = trigger.type === 'schedule' ? firstFire(trigger, await databaseTime(tx)) : null
    // The clock of events: what happened before does not concern the trigger.
    const created_at = new Date().toISOString()
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
  show: (row, { services }) => (row.sealed_secret === null ? {} : { secret: secretOf(services, row) }),
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
  description: 'Each with its state and, for schedules, when it fires next.',
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
      present: row => triggerKind.present(withUrl(row, context.services)),
    }),
})

/** Fields that say what firings do: their change needs the right to start the target, and makes the trigger act as who changes it. */
const BINDING = ['target_type', 'target_id', 'action', 'input', 'input_mapping', 'policy_id'] as const

/** Fields that say when a schedule fires. */
const TIMING = ['cron', 'timezone', 'active'] as const

const differs = (fields: readonly (keyof TriggerRow)[], before: TriggerRow, after: TriggerRow): boolean =>
  fields.some(field => JSON.stringify(before[field]) !== JSON.stringify(after[field]))

const updateTrigger = triggers.update({
  description:
    'Checked as it stands then. Another target, action, input or policy needs the right to start the target, and has the firings act as the caller from then on; another policy or none also needs triggers:CreateTrigger. A schedule that is switched on or gets another time fires next from now.',
  alsoActions: [...RIGHTS, 'triggers:CreateTrigger'],
  body: TriggerPatch,
  quiet: true,
  raises: [...refusals, 'TRIGGER_TYPE_IMMUTABLE'],
  admit: refuseBoundedAgents,
  async change(next, { stored, tx, allow, caller }) {
    if (next.type !== stored.type)
      raise('TRIGGER_TYPE_IMMUTABLE', { meta: { field: 'type', type: stored.type, requested: next.type } })
    const { trigger, allow: allowStart } = await validateTrigger(tx, next)
    const next_fire_at = differs(TIMING, stored, trigger)
      ? firstFire(trigger, await databaseTime(tx))
      : trigger.next_fire_at
    if (!differs(BINDING, stored, trigger)) return { ...trigger, next_fire_at }
    allowStart(allow)
    // The policy bounds whom the trigger acts as: it is another one for those alone who could make the trigger without it.
    if (differs(['policy_id'], stored, trigger))
      allow('triggers:CreateTrigger', { kind: triggerKind, project_id: stored.project_id })
    // Who wrote it before had a part in what it starts.
    const authority = startedAlsoBy(principalRecord(caller), stored.authority)
    return { ...trigger, next_fire_at, authority }
  },
})

const WaitQuery = z.object({
  wait: booleanQuery.optional().describe('Answer once the firing has ended, not at once; default true'),
})

const fireTrigger = triggers.action('fire', {
  summary: 'Fire a trigger by hand',
  description:
    'Of any type. Waits for the end of the firing, TRIGGER_FIRE_WAIT_MAX_MS at most; with `wait` false it answers 202 at once. The firing acts as who created the trigger: its caller needs no right to the target.',
  query: WaitQuery,
  waiting: { default: true, done: ['succeeded'], failed: ['failed', 'skipped'], paused: [], poll: 'getTriggerFiring' },
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
  again: (context, { firing_id }) => firedAgain(context, firing_id as string),
})

const getSecret = itemOperation(triggerKind, {
  id: 'getTriggerSecret',
  command: ['triggers', 'get-secret'],
  method: 'get',
  path: '/triggers/{trigger_id}/secret',
  summary: 'Read the secret that signs calls of a webhook trigger',
  tag,
  description: 'Each read is in the audit log.',
  action: 'triggers:GetTriggerSecret',
  answers: { 200: TriggerSecret },
  raises: ['TRIGGER_ACTION_NOT_ALLOWED', 'SECRET_NOT_DECRYPTABLE'],
  // Audited as changes are, whatever the project says of reads.
  reads: false,
  run: async ({ resource: trigger, services }) => ({ secret: secretOf(services, trigger) }),
})

const rotate = triggers.action('rotate-secret', {
  id: 'rotateTriggerSecret',
  summary: 'Replace the secret of a webhook trigger',
  description: 'At once; for `keep_previous_seconds` calls that are signed with the old one are taken too.',
  action: 'triggers:RotateTriggerSecret',
  body: RotateTriggerSecretInput,
  bodyOptional: true,
  answers: { 200: TriggerWithSecret },
  raises: ['TRIGGER_ACTION_NOT_ALLOWED'],
  secretAnswer: true,
  async run({ tx, body, resource: { id, type, project_id }, services }) {
    if (type !== 'webhook')
      raise('TRIGGER_ACTION_NOT_ALLOWED', { message: 'Webhook triggers alone have a secret', meta: { field: 'type' } })
    const secret = newTriggerSecret()
    const sealed = services.secrets.seal(secret, sealedForTrigger(id, project_id))
    const rotated = await rotateTriggerSecret(tx, id, sealed, body?.keep_previous_seconds ?? 0)
    if (!rotated) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
    const row = withUrl(rotated, services)
    tx.emit(triggerKind, 'updated', row)
    return { ...triggerKind.present(row), secret }
  },
})

const STATES: Record<(typeof FIRING_STATUSES)[number], readonly string[]> = {
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
    where: (values: readonly (keyof typeof STATES)[]): Fragment =>
      sql.fragment`t.state = any(${sql.array(
        values.flatMap(value => STATES[value]),
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
  description: 'Each with its input, its state and what it started.',
  tag,
  action: 'triggers:ListTriggerFirings',
  lists: triggerKind,
  query: filterSchema(firingFilters).extend({ trigger_id: z.string().describe('Trigger whose firings are listed') }),
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
    description: 'With its firings: those that wait are dropped, and what was started goes on.',
  }),
  fireTrigger,
  getSecret,
  rotate,
  listFirings,
  firings.get({ summary: 'Read a firing of a trigger', action: 'triggers:GetTriggerFiring' }),
  callHook,
]
