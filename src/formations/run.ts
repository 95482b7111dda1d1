import { type RecordedFailure, recordedFailure } from '../core/api/errors.ts'
import { voidStatement } from '../core/db/sql.ts'
import type { Tx } from '../core/db/writer.ts'
import type { Caller } from '../core/iam/caller.ts'
import { type ActiveClaim, ClaimLostError } from '../core/jobs/work-item.ts'
import type { Services } from '../core/process/services.ts'
import { type EventAction, type FormationRow, formationKind } from './model.ts'
import { tellOfFormation } from './news.ts'
import { openAnswer, sealedAnswer } from './sealed.ts'
import {
  changeTracked,
  type FormationEventRow,
  formationAttempts,
  insertEvents,
  isSuperseded,
  keepAnswer,
  type NewEvent,
  type OperationClaim,
  type OperationRow,
  type ResourceChange,
  type TrackedRow,
} from './store.ts'

/** One try of an operation: whose rights it has, what it has done, and how it notes what it does. */
export class Run {
  readonly services: Services
  readonly formation: FormationRow
  readonly operation: OperationRow
  readonly caller: Caller
  /** The same without a binding to the project, for what only admins of the deployment do. */
  readonly unbound: Caller
  readonly hold: ActiveClaim<OperationClaim>
  /** What it has done, in earlier tries too. */
  readonly events: NewEvent[]
  /** Values that only the answer of the request may show, by `<logical id>.<attribute>`. */
  readonly once: Map<string, string>
  readonly #leaseMs: number
  /** Events that are written with the next change. */
  #waiting: NewEvent[] = []
  #seq: number
  /** Values of `once` that are written. */
  #kept: number

  constructor(options: {
    services: Services
    formation: FormationRow
    operation: OperationRow
    caller: Caller
    unbound: Caller
    hold: ActiveClaim<OperationClaim>
    events: readonly FormationEventRow[]
    leaseMs: number
  }) {
    this.services = options.services
    this.formation = options.formation
    this.operation = options.operation
    this.caller = options.caller
    this.unbound = options.unbound
    this.hold = options.hold
    this.events = [...options.events]
    this.#seq = options.events.at(-1)?.seq ?? 0
    const { services, operation, projectId } = this
    const { sealed_answer } = operation
    this.once = new Map(
      sealed_answer === null ? [] : Object.entries(openAnswer(services, operation.id, projectId, sealed_answer)),
    )
    this.#kept = this.once.size
    this.#leaseMs = options.leaseMs
  }

  get projectId(): string {
    return this.formation.project_id
  }

  /**
   * Runs a transaction that only the worker which holds the operation may make; what `note` was told goes into its last
   * statement. It is not run again when its connection is lost, because it may have been committed: the next try of the
   * operation reads what there is. Raises Superseded once another worker has the operation.
   */
  async write<T>(work: (tx: Tx, note: Note) => Promise<T>): Promise<T> {
    const { services, hold, operation, formation } = this
    hold.signal.throwIfAborted()
    const noted: NewEvent[] = []
    let value: T
    try {
      value = await services.write(async tx => {
        noted.length = 0
        const result = await work(tx, (event, change) => {
          noted.push(event)
          if (change) tx.alongside(guard => changeTracked(change.id, change.values, guard))
        })
        const events = [...this.#waiting, ...noted]
        if (events.length > 0) {
          tx.alongside(guard => insertEvents(hold.claim, this.#seq + 1, events, guard))
          tellOfFormation(tx, formation.id)
        } else if (!(await formationAttempts.renew(tx, hold.claim, this.#leaseMs))) throw new ClaimLostError()
        if (this.once.size > this.#kept) {
          const sealed = sealedAnswer(this, Object.fromEntries(this.once))
          tx.alongside(guard => keepAnswer(operation.id, sealed, guard))
        }
        return result
      })
    } catch (error) {
      throw isSuperseded(error) ? new ClaimLostError() : error
    }
    this.#seq += this.#waiting.length + noted.length
    this.#waiting = []
    this.#kept = this.once.size
    this.events.push(...noted)
    return value
  }

  /** Ends the operation together with `work`: nothing of it is left to do. Raises Superseded. */
  async settle(work: (tx: Tx) => Promise<void>): Promise<void> {
    const { services, hold, formation } = this
    hold.signal.throwIfAborted()
    await services.write(async tx => {
      await formationKind.lock(tx, formation.id)
      if (this.#waiting.length > 0)
        await tx.query(voidStatement`${insertEvents(hold.claim, this.#seq + 1, this.#waiting)}`)
      if (!(await formationAttempts.end(tx, hold.claim))) throw new ClaimLostError()
      await work(tx)
      tellOfFormation(tx, formation.id, true)
    })
  }

  /** Notes an event with the next change. */
  later(event: NewEvent): void {
    this.events.push(event)
    this.#waiting.push(event)
  }

  /** Whether an earlier try, or this one, has done something with a resource. */
  did(tracked: Pick<TrackedRow, 'logical_id' | 'resource_type'>, ...actions: readonly EventAction[]): boolean {
    return this.events.some(
      ({ action, logical_id, resource_type }) =>
        actions.includes(action) && logical_id === tracked.logical_id && resource_type === tracked.resource_type,
    )
  }
}

/** Notes an event, with what changes of the tracked resource. */
export type Note = (event: NewEvent, change?: { id: string; values: ResourceChange }) => void

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

/** A failure of a resource, as it is recorded; what was not foreseen goes to the log. */
export function operationFailure(
  { services, formation }: Pick<Run, 'services' | 'formation'>,
  error: unknown,
  logicalId: string,
): RecordedFailure {
  const failure = recordedFailure(error)
  if (failure.code === 'INTERNAL_ERROR')
    services.log.error(
      { err: (error as Error).cause ?? error, formation_id: formation.id, logical_id: logicalId },
      'resource of a formation failed',
    )
  return failure
}
