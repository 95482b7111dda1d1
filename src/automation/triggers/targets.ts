import type { UsageDraft } from '../../control/usage/meter.ts'
import { type AppError, raise } from '../../core/api/errors.ts'
import { isIdOf, type Kind, type KindRow, kinds } from '../../core/api/kind.ts'
import { coalescedReads } from '../../core/db/coalesced-reads.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import { requirePermitted } from '../../core/iam/access.ts'
import { askedForBy } from '../../core/iam/authority.ts'
import type { Caller, PrincipalRecord } from '../../core/iam/caller.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import { type Begun, chainBehind } from './fanout.ts'
import type { FiringRow, TargetType, TriggerRow } from './model.ts'

/** What a firing goes by: in whose name, with what. */
export type FiringToStart = {
  trigger: TriggerRow
  authority: PrincipalRecord
  caller: Caller
  target: KindRow
  input: Record<string, unknown>
}

/** What was started. `over`: the firing has succeeded with it; else it ends when that ends. */
export type StartedWork = { result_id: string; status: string; over: boolean }

/** A type of target, declared by the module that has the targets or knows how to start them. */
export type TriggerTarget = {
  type: TargetType
  /** Kind of its rows; while no module declares it there are no such targets. */
  kind: string
  /** What whoever makes the trigger must be allowed to do with the target, and its creator at each firing. */
  action: string
  /** A target of a project; null for none. Default: a row of the kind that is the project's own. */
  find?(db: Queryable, projectId: string, id: string): Promise<KindRow | null>
  /** Refuses what does not go with the target. Default: an `action` does not. @throws TRIGGER_ACTION_NOT_ALLOWED */
  configure?(target: KindRow, trigger: Pick<TriggerRow, 'action'>): void
  /**
   * Checks the input before anything is written, outside of a transaction; what it returns is given to `start`.
   * @throws TRIGGER_INPUT_INVALID and what else refuses the firing
   */
  prepare(services: Services, firing: FiringToStart): Promise<unknown>
  /** Kind of what it starts, which ends the firing by `settleStarted`. */
  starts?: string
  /** Starts the work in the transaction that moves the firing on. */
  start?(tx: Tx, services: Services, firing: FiringToStart & { id: string; prepared: unknown }): Promise<StartedWork>
  /** In place of `start`: does the work while the worker keeps the firing. Repeated under the firing's id. */
  call?(services: Services, firing: FiringToStart & { id: string; signal: AbortSignal }): Promise<unknown>
  /** What follows from a call, in the transaction that ends the firing with what it gave. */
  called?(tx: Tx, firing: FiringToStart & { id: string }, output: unknown): Promise<void> | void
  /** What such work has used whose workers were all lost. */
  lost?(db: Queryable, trigger: TriggerRow, firing: Pick<FiringRow, 'id' | 'input'>): Promise<UsageDraft | null>
}

export const triggerTargets = extensionPoint<TriggerTarget>('targets of triggers')

/** Modules that follow firings. Called in the transaction in which one ends. */
export const firingWatchers = extensionPoint<(tx: Tx, firing: FiringRow) => Promise<void>>('watchers of firings')

type Aim = Pick<TriggerRow, 'project_id' | 'target_type' | 'target_id'>

const targetMissing = ({ target_type, target_id }: Aim): never =>
  raise('TRIGGER_TARGET_NOT_FOUND', {
    message: `The project has no ${target_type} ${target_id}`,
    meta: { target_type, target_id },
  })

/** How targets of a type are started. @throws TRIGGER_TARGET_NOT_FOUND for a type that nobody has yet */
export function targetOf(aim: Aim): { target: TriggerTarget; kind: Kind } {
  const target = triggerTargets.all().find(({ type }) => type === aim.target_type)
  const kind = target && kinds.find(target.kind)
  return target && kind ? { target, kind } : targetMissing(aim)
}

async function ownTarget(db: Queryable, kind: Kind, { project_id, target_id }: Aim): Promise<KindRow | null> {
  const row: KindRow | null = isIdOf(kind, target_id) ? await kind.find(db, target_id) : null
  return row?.project_id === project_id ? row : null
}

type FoundTarget = { target: TriggerTarget; kind: Kind; row: KindRow }

/** Firings of one target come together. */
const targetReads = processSingleton(() => coalescedReads<FoundTarget>())

/** The target of a trigger. @throws TRIGGER_TARGET_NOT_FOUND */
export async function requireTriggerTarget(db: Queryable, aim: Aim): Promise<FoundTarget> {
  const { target, kind } = targetOf(aim)
  const row = target.find ? await target.find(db, aim.project_id, aim.target_id) : await ownTarget(db, kind, aim)
  return row ? { target, kind, row } : targetMissing(aim)
}

/** As much of a firing as says whose rights it has. */
type Asked = Begun & Pick<FiringRow, 'asked_by'>

/**
 * Whose rights the firings of a trigger have: those of who wrote it, within its policy and what narrows who fires it by hand,
 * with the triggers that led to it.
 */
export function authorityOf(
  { id, policy_id, authority }: Pick<TriggerRow, 'id' | 'policy_id' | 'authority'>,
  asked: Asked,
): PrincipalRecord {
  const own: PrincipalRecord = {
    ...authority,
    via: { type: 'trigger', id, policy_id, chain: chainBehind(asked, id) },
  }
  return asked.asked_by ? askedForBy(own, asked.asked_by) : own
}

/**
 * Checks that a trigger may fire with an input: whom it acts as is there and may start the target, which takes the input.
 * Returns what the firing goes by.
 * @throws TRIGGER_CREATOR_UNAVAILABLE, TRIGGER_TARGET_NOT_FOUND, FORBIDDEN, TRIGGER_INPUT_INVALID
 */
export async function checkFiring(
  services: Services,
  trigger: TriggerRow,
  asked: Asked & Pick<FiringRow, 'input'>,
): Promise<{ target: TriggerTarget; firing: FiringToStart; prepared: unknown }> {
  const { id, project_id } = trigger
  const { input } = asked
  const authority = authorityOf(trigger, asked)
  const caller = (await hasCreator(services, trigger))
    ? await callerForPrincipal(services, authority, project_id)
    : null
  if (!caller) return raise('TRIGGER_CREATOR_UNAVAILABLE', { meta: { trigger_id: id } })
  const name = `${project_id} ${trigger.target_type} ${trigger.target_id}`
  const { target, kind, row } = await targetReads(services)(name, () => requireTriggerTarget(services.pool, trigger))
  requirePermitted(caller, target.action, { kind, row })
  const firing = { trigger, authority, caller, target: row, input }
  return { target, firing, prepared: await target.prepare(services, firing) }
}

/** Whether the credential that a trigger was written with is there: of a grant its principal alone does not tell. */
async function hasCreator(services: Services, { authority, project_id }: TriggerRow): Promise<boolean> {
  const { via } = authority
  if (via === null) return true
  return via.type === 'oauth_grant' && (await callerForPrincipal(services, authority, project_id)) !== null
}

/** Refuses an input. What was wrong with it in the words of another check is in `meta.problems`. */
export function inputInvalid(message: string, cause?: AppError): never {
  const problems = cause?.meta?.problems
  return raise('TRIGGER_INPUT_INVALID', { message, meta: problems ? { problems } : {} })
}
