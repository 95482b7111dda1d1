import { type RecordedFailure, recordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { sql, voidStatement } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { WorkAttempt } from '#core/work/attempt.ts'
import { ClaimLostError } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { openAnswer, sealAnswer } from '../plans/sealed.ts'
import type { EventAction, FormationRow } from '../records/model.ts'
import { notifyFormation } from '../records/notifications.ts'
import {
  claimedOperation,
  type FormationEventRow,
  insertEvents,
  isClaimLost,
  type NewEvent,
  type OperationRow,
  type OperationWorkColumns,
  type ResourceChange,
  storeSealedAnswer,
  type TrackedRow,
  updateTracked,
} from '../records/store.ts'

/** One attempt at an operation of a formation: its callers, its events, and its writes. */
export class OperationAttempt {
  readonly services: Services
  readonly formation: FormationRow
  readonly operation: OperationRow
  readonly caller: Caller
  /** The caller without the binding to the project, for operations of deployment admins. */
  readonly unbound: Caller
  readonly workAttempt: WorkAttempt<FormationRow, OperationWorkColumns>
  /** Events of the operation, including earlier attempts. */
  readonly events: NewEvent[]
  /** Values that are returned only in the response of the request, by `<logical id>.<attribute>`. */
  readonly once: Map<string, string>
  /** Events that are written by the next transaction. */
  #pending: NewEvent[] = []
  #seq: number
  /** Number of stored values of `once`. */
  #storedOnce: number

  constructor(options: {
    workAttempt: WorkAttempt<FormationRow, OperationWorkColumns>
    operation: OperationRow
    caller: Caller
    unbound: Caller
    events: readonly FormationEventRow[]
  }) {
    this.workAttempt = options.workAttempt
    this.services = options.workAttempt.services
    this.formation = options.workAttempt.entity
    this.operation = options.operation
    this.caller = options.caller
    this.unbound = options.unbound
    this.events = [...options.events]
    this.#seq = options.events.at(-1)?.seq ?? 0
    const { services, operation, projectId } = this
    const { sealed_answer } = operation
    this.once = new Map(
      sealed_answer === null ? [] : Object.entries(openAnswer(services, operation.id, projectId, sealed_answer)),
    )
    this.#storedOnce = this.once.size
  }

  get projectId(): string {
    return this.formation.project_id
  }

  get signal(): AbortSignal {
    return this.workAttempt.signal
  }

  /**
   * Runs a transaction under the claim of the attempt. Events of `addEvent` are inserted by its last statement, which is the
   * fence. The transaction is not repeated when its connection is lost, because it may have been committed: the next attempt
   * reads the stored state.
   * @throws ClaimLostError
   */
  async write<T>(work: (tx: Tx, addEvent: AddEvent) => Promise<T>): Promise<T> {
    const { services, workAttempt, operation, formation } = this
    workAttempt.signal.throwIfAborted()
    const added: NewEvent[] = []
    let value: T
    try {
      value = await services.write(async tx => {
        added.length = 0
        const result = await work(tx, (event, change) => {
          added.push(event)
          if (change) tx.alongside(guard => updateTracked(change.id, change.values, guard))
        })
        const events = [...this.#pending, ...added]
        if (events.length > 0) {
          tx.alongside(guard => insertEvents(claimedOperation(workAttempt.claim), this.#seq + 1, events, guard))
          notifyFormation(tx, formation.id)
        } else await workAttempt.fence(tx)
        if (this.once.size > this.#storedOnce) {
          const sealed = sealAnswer(this, Object.fromEntries(this.once))
          tx.alongside(guard => storeSealedAnswer(operation.id, sealed, guard))
        }
        return result
      })
    } catch (error) {
      throw isClaimLost(error) ? new ClaimLostError() : error
    }
    this.#seq += this.#pending.length + added.length
    this.#pending = []
    this.#storedOnce = this.once.size
    this.events.push(...added)
    return value
  }

  /** Settles the operation and writes its pending events. Raises ClaimLostError. */
  async settle(work: (tx: Tx) => Promise<void>): Promise<void> {
    const { workAttempt, formation, operation } = this
    await workAttempt.settle(async tx => {
      if (this.#pending.length > 0)
        await tx.query(
          voidStatement`${insertEvents(sql.fragment`${operation.id}::text`, this.#seq + 1, this.#pending)}`,
        )
      await work(tx)
      notifyFormation(tx, formation.id, true)
    })
  }

  /** Adds an event that the next transaction writes. */
  addPending(event: NewEvent): void {
    this.events.push(event)
    this.#pending.push(event)
  }

  /** Whether the operation has an event of one of some actions on a resource. */
  hasEvent(tracked: Pick<TrackedRow, 'logical_id' | 'resource_type'>, ...actions: readonly EventAction[]): boolean {
    return this.events.some(
      ({ action, logical_id, resource_type }) =>
        actions.includes(action) && logical_id === tracked.logical_id && resource_type === tracked.resource_type,
    )
  }
}

/** Adds an event to a transaction, with the change of the tracked resource. */
export type AddEvent = (event: NewEvent, change?: { id: string; values: ResourceChange }) => void

export const eventOf = (
  { logical_id, resource_type }: Pick<TrackedRow, 'logical_id' | 'resource_type'>,
  action: EventAction,
  physical_resource_id: string | null,
  error: RecordedFailure | null = null,
): NewEvent => ({
  logical_id,
  resource_type,
  action,
  status: error ? 'failed' : 'succeeded',
  physical_resource_id,
  error,
})

/** Returns the failure of a resource to record. Logs an unexpected error. */
export function operationFailure(
  { services, formation }: Pick<OperationAttempt, 'services' | 'formation'>,
  error: unknown,
  logicalId: string,
): RecordedFailure {
  const failure = recordedFailure(error)
  if (failure.code === 'INTERNAL_ERROR')
    services.log.error(
      { err: (error as Error).cause ?? error, formation_id: formation.id, logical_id: logicalId },
      'formation resource failed',
    )
  return failure
}
