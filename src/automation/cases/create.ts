import { raiseInvalid } from '../../core/api/errors.ts'
import type { Values } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { requireReferences } from '../../core/api/references.ts'
import type { ExistingRow } from '../../core/api/resource.ts'
import { RerunAfter } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { requirePlaybook } from './change.ts'
import { caseExecutions } from './executions.ts'
import { type CaseInput, type CaseRow, caseKind } from './model.ts'
import { allocateNumbers, findCaseByExternalId, lockExternalId, lockNextNumber } from './store.ts'
import { actorOf, appendTimeline, byCaller } from './timeline.ts'

/** Age after which an allocated number is dropped: it would follow higher numbers. */
const MAX_NUMBER_AGE_MS = 10_000

type PendingAllocation = { count: number; done: Promise<void> | null }

/**
 * Case numbers for concurrent creates. A create that takes the next number locks it until it commits, which would
 * serialize concurrent creates. The waiting creates share one statement that allocates a number for each of them.
 */
class CaseNumbers {
  readonly #db: Queryable
  readonly #allocated = new Map<string, { number: number; at: number }[]>()
  readonly #pending = new Map<string, PendingAllocation>()

  constructor(db: Queryable) {
    this.#db = db
  }

  take(project: string): number | null {
    const allocated = this.#allocated.get(project) ?? []
    for (let each = allocated.shift(); each; each = allocated.shift())
      if (performance.now() - each.at < MAX_NUMBER_AGE_MS) return each.number
    this.#allocated.delete(project)
    return null
  }

  /** Allocates one more number. Concurrent callers share one statement. */
  allocate(project: string): Promise<void> {
    const pending = this.#pending.get(project) ?? { count: 0, done: null }
    this.#pending.set(project, pending)
    pending.count++
    pending.done ??= this.#run(project, pending)
    return pending.done
  }

  async #run(project: string, pending: PendingAllocation): Promise<void> {
    // Callers in the same turn of the event loop join the allocation.
    await new Promise(setImmediate)
    const { count } = pending
    this.#pending.delete(project)
    const last = await allocateNumbers(this.#db, project, count)
    const at = performance.now()
    const allocated = this.#allocated.get(project) ?? []
    for (let number = last - count + 1; number <= last; number++) allocated.push({ number, at })
    this.#allocated.set(project, allocated)
  }
}

const caseNumbers = processSingleton(services => new CaseNumbers(services.pool))

/**
 * Returns the number of a new case. One of several concurrent creates locks the next number until it commits; the
 * others run again with numbers that were allocated for them.
 * @throws RerunAfter while another transaction has locked the next number
 */
async function allocateNumber(tx: Queryable, services: Pick<Services, 'state'>, project: string): Promise<number> {
  const numbers = caseNumbers(services)
  const number = numbers.take(project) ?? (await lockNextNumber(tx, project))
  if (number === null) throw new RerunAfter(() => numbers.allocate(project))
  return number
}

/** Inserts a case, or returns the existing case with the external id unchanged. Emits nothing. */
async function insertOrFindCase(
  { tx, services }: Pick<CaseCreation, 'tx' | 'services'>,
  values: Values<CaseRow> & { project_id: string },
): Promise<CaseRow | ExistingRow<CaseRow>> {
  const { project_id, external_id } = values
  if (external_id != null) {
    const existing = await findCaseByExternalId(tx, project_id, external_id)
    if (existing) return { existing }
    // A concurrent create with the same external id waits here for the other's commit.
    await lockExternalId(tx, project_id, external_id)
    const concurrent = await findCaseByExternalId(tx, project_id, external_id)
    if (concurrent) return { existing: concurrent }
  }
  return caseKind.insert(tx, { ...values, number: await allocateNumber(tx, services, project_id) })
}

export type CaseCreation = Pick<Context, 'tx' | 'services' | 'caller' | 'allow'> & { project: string }

/**
 * Creates a case, or returns the existing case with its external id. With `start_execution`, starts an execution of the
 * playbook of a new case in the same transaction.
 * @throws ACTOR_NOT_FOUND, RESOURCE_NOT_FOUND, VALIDATION_FAILED, and errors of the execution start
 */
export async function createCase(
  context: CaseCreation,
  { project_id: _project, start_execution = false, input, ...fields }: CaseInput,
): Promise<CaseRow | ExistingRow<CaseRow>> {
  const { tx, services, caller, project } = context
  if (input !== undefined && !start_execution)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'input', message: 'is allowed only with start_execution' })
  if (start_execution && fields.playbook_id == null)
    raiseInvalid({ code: 'REQUIRED', path: 'playbook_id', message: 'is required with start_execution' })
  await requireReferences(tx, caseKind, project, fields)
  await requirePlaybook(tx, project, fields.playbook_id)
  const values = { ...fields, project_id: project, created_by: actorOf(caller) }
  const created = await insertOrFindCase({ tx, services }, values)
  if ('existing' in created) return created
  tx.emit(caseKind, 'created', created)
  const { title, priority, external_id } = created
  appendTimeline(tx, created, byCaller(caller), [{ kind: 'created', data: { title, priority, external_id } }])
  if (!start_execution) return created
  const [executions] = caseExecutions.all()
  return executions.start(context, created, input ?? {})
}
