import type { UsageDraft } from '#control/usage/meter.ts'
import { requirePermitted } from '#core/api/access.ts'
import { isIdOf, type Kind, type KindRow, kinds } from '#core/api/kind.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { coalescedReads } from '#core/db/coalesced-reads.ts'
import type { Queryable } from '#core/db/sql.ts'
import { narrowToRequester } from '#core/iam/authority.ts'
import type { Caller, PrincipalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { chainOfFiring, type FiringOrigin } from './fanout.ts'
import type { FiringRow, TargetType, TriggerRow } from './model.ts'

/** Validated firing with its authority, target and input. */
export type FiringToStart = {
  trigger: TriggerRow
  authority: PrincipalRecord
  caller: Caller
  target: KindRow
  input: Record<string, unknown>
}

/** Started work. `over`: whether the firing has already succeeded; else it settles with the work. */
export type StartedWork = { result_id: string; status: string; over: boolean }

/** Type of trigger target, registered by the module that starts it. */
export type TriggerTarget = {
  type: TargetType
  /** Kind of the target rows. Targets exist only if a module declares the kind. */
  kind: string
  /** Action on the target that the creator of the trigger must be allowed, at creation and at each firing. */
  action: string
  /** Finds a target of a project. Default: a row of the kind that belongs to the project. */
  find?(db: Queryable, projectId: string, id: string): Promise<KindRow | null>
  /** Validates the trigger for the target. Default: refuses an `action`. @throws TRIGGER_ACTION_NOT_ALLOWED */
  configure?(target: KindRow, trigger: Pick<TriggerRow, 'action'>): void
  /**
   * Validates the input outside the transaction, before anything is written. Its result is passed to `start`.
   * @throws TRIGGER_INPUT_INVALID and other errors that refuse the firing
   */
  prepare(services: Services, firing: FiringToStart): Promise<unknown>
  /** Kind of the started work, which settles the firing by `settleStarted`. */
  starts?: string
  /** Starts the work in the transaction that records it in the firing. */
  start?(tx: Tx, services: Services, firing: FiringToStart & { id: string; prepared: unknown }): Promise<StartedWork>
  /** Alternative to `start`: does the work under the claim of the firing. A retry repeats it with the same id. */
  call?(services: Services, firing: FiringToStart & { id: string; signal: AbortSignal }): Promise<unknown>
  /** Records effects of a successful call in the transaction that settles the firing. */
  called?(tx: Tx, firing: FiringToStart & { id: string }, output: unknown): Promise<void> | void
  /** Returns the usage of a call whose workers were all lost. */
  lost?(db: Queryable, trigger: TriggerRow, firing: Pick<FiringRow, 'id' | 'input'>): Promise<UsageDraft | null>
}

export const triggerTargets = extensionPoint<TriggerTarget>({
  name: 'trigger targets',
  folder: 'automation/triggers',
  description: 'Checks and starts what a trigger of one type of target starts',
})

type TargetRef = Pick<TriggerRow, 'project_id' | 'target_type' | 'target_id'>

const raiseTargetNotFound = ({ target_type, target_id }: TargetRef): never =>
  raise('TRIGGER_TARGET_NOT_FOUND', { meta: { target_type, target_id } })

/** Returns the registered target type. @throws TRIGGER_TARGET_NOT_FOUND for a type that no module registers */
export function requireTargetType(ref: TargetRef): { target: TriggerTarget; kind: Kind } {
  const target = triggerTargets.all().find(({ type }) => type === ref.target_type)
  const kind = target && kinds.find(target.kind)
  return target && kind ? { target, kind } : raiseTargetNotFound(ref)
}

async function findOwnTarget(db: Queryable, kind: Kind, { project_id, target_id }: TargetRef): Promise<KindRow | null> {
  const row: KindRow | null = isIdOf(kind, target_id) ? await kind.find(db, target_id) : null
  return row?.project_id === project_id ? row : null
}

type FoundTarget = { target: TriggerTarget; kind: Kind; row: KindRow }

/** Concurrent firings of a target share one read. */
const targetReads = processSingleton(() => coalescedReads<FoundTarget>())

/** Returns the target of a trigger. @throws TRIGGER_TARGET_NOT_FOUND */
export async function requireTriggerTarget(db: Queryable, ref: TargetRef): Promise<FoundTarget> {
  const { target, kind } = requireTargetType(ref)
  const row = target.find ? await target.find(db, ref.project_id, ref.target_id) : await findOwnTarget(db, kind, ref)
  return row ? { target, kind, row } : raiseTargetNotFound(ref)
}

/** Fields of a firing that determine its authority. */
type FiringRequest = FiringOrigin & Pick<FiringRow, 'asked_by'>

/**
 * Returns the authority of a firing: the trigger's authority, limited by its policy and by the credential of a manual
 * caller, with the trigger chain.
 */
export function authorityOf(
  { id, policy_id, authority }: Pick<TriggerRow, 'id' | 'policy_id' | 'authority'>,
  request: FiringRequest,
): PrincipalRecord {
  const own: PrincipalRecord = {
    ...authority,
    via: { type: 'trigger', id, policy_id, chain: chainOfFiring(request, id) },
  }
  return request.asked_by ? narrowToRequester(own, request.asked_by) : own
}

/**
 * Validates a firing: the trigger's principal must exist and be allowed to start the target, and the target must accept
 * the input.
 * @throws TRIGGER_CREATOR_UNAVAILABLE, TRIGGER_TARGET_NOT_FOUND, FORBIDDEN, TRIGGER_INPUT_INVALID
 */
export async function checkFiring(
  services: Services,
  trigger: TriggerRow,
  request: FiringRequest & Pick<FiringRow, 'input'>,
): Promise<{ target: TriggerTarget; firing: FiringToStart; prepared: unknown }> {
  const { id, project_id } = trigger
  const { input } = request
  const authority = authorityOf(trigger, request)
  const caller = (await hasCreator(services, trigger))
    ? await callerForPrincipal(services, authority, project_id)
    : null
  if (!caller) return raise('TRIGGER_CREATOR_UNAVAILABLE', { meta: { trigger_id: id } })
  const key = `${project_id} ${trigger.target_type} ${trigger.target_id}`
  const { target, kind, row } = await targetReads(services)(key, () => requireTriggerTarget(services.pool, trigger))
  requirePermitted(caller, target.action, { kind, row })
  const firing = { trigger, authority, caller, target: row, input }
  return { target, firing, prepared: await target.prepare(services, firing) }
}

/**
 * Whether the credential that a trigger was written with still exists. An OAuth grant may be revoked before its
 * principal.
 */
async function hasCreator(services: Services, { authority, project_id }: TriggerRow): Promise<boolean> {
  const { via } = authority
  if (via === null) return true
  return via.type === 'oauth_grant' && (await callerForPrincipal(services, authority, project_id)) !== null
}

/** Refuses an input, with the problems of `cause` in `meta.problems`. */
export function inputInvalid(message: string, cause?: Error): never {
  const problems = cause instanceof AppError ? cause.meta?.problems : undefined
  return raise('TRIGGER_INPUT_INVALID', { message, meta: problems ? { problems } : {}, cause })
}
