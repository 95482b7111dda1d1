import { z } from 'zod'
import { srn } from '#core/api/kind.ts'
import { AppError } from '#core/base/errors.ts'
import { type FaultPoint, injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { workQueue } from '#core/queues/queue.ts'
import { handler, RequeueError, schedule } from '#core/work/handler.ts'
import { yieldAfter } from '#core/work/sweeps.ts'
import { newAuditEntry } from '#core/writes/audit-entry.ts'
import type { Tx } from '#core/writes/writer.ts'
import { projectKind } from '#identity/projects/model.ts'
import { measureBacklog, type RetentionSetting } from './backlog.ts'
import { type Counts, sumCounts } from './erasure.ts'

/** A project with a retention setting; records older than `cutoff` expire. */
export type ExpiringProject = { id: string; cutoff: string }

const expiringRow = sql.type(z.object({ id: z.string(), cutoff: z.string() }))

/**
 * Lists projects after an id that have the setting and no legal hold. Indexes projects_retention,
 * projects_trace_retention, projects_conversation_retention, projects_run_retention.
 */
const listExpiringProjects = (db: Queryable, setting: RetentionSetting, at: Date, after: string, limit: number) => {
  const column = sql.identifier([setting])
  return db.any(expiringRow`
    select id, ${at.toISOString()}::timestamptz - least(${column}, 100000) * interval '1 day' as cutoff from projects
    where ${column} is not null and id > ${after} and (content_hold_until is null or content_hold_until <= now())
    order by id limit ${limit}`)
}

/**
 * Returns the handler and the schedule of a sweep for records past the retention of their project. A stopping worker
 * leaves the rest of a sweep to another one.
 */
export function retentionSweep(name: string, run: (services: Services, stopping: AbortSignal) => Promise<void>) {
  const queue = workQueue(name, {
    message: z.object({}),
    concern: 'snapshot',
    retry: { limit: 5, delaySeconds: 30, backoff: true, maxDelaySeconds: 1800 },
  })
  return {
    handler: handler(queue, { concurrency: 1 }, async (_message, { services, stopping }) => {
      // A message may remain of a worker whose sweep was switched on.
      if (services.config.CONTENT_RETENTION_SWEEP_DISABLED) return
      await run(services, stopping)
      if (stopping.aborted) throw new RequeueError('the worker is shutting down')
    }),
    schedule: schedule(
      name,
      ({ CONTENT_RETENTION_SWEEP_DISABLED: disabled, CONTENT_RETENTION_SWEEP_INTERVAL_MS: ms }) =>
        disabled ? 0 : Math.ceil(ms / 1000),
      queue,
      {},
    ),
  }
}

/**
 * Processes records page by page until there are no more or the worker stops. Yields the result of each page, so that
 * the caller can sweep several projects in turn.
 */
export async function* inPages<T, R>(
  stopping: AbortSignal,
  { size, find }: { size: number; find(after: T | null): Promise<readonly T[]> },
  work: (found: readonly T[]) => Promise<R>,
): AsyncGenerator<R, void> {
  let after: T | null = null
  while (!stopping.aborted) {
    const found: readonly T[] = await find(after)
    if (found.length > 0) yield await work(found)
    if (found.length < size) return
    after = found[found.length - 1]
  }
}

/** Projects that are swept in turn. */
const PROJECTS = 200
/** Pages of a project before the next project has its turn. */
const PAGES_PER_TURN = 10
/** Time between two measurements of a backlog during a sweep. */
const MEASURE_MS = 300_000

type SweepTask = {
  setting: RetentionSetting
  /** Log line for a project in which records were swept. */
  done: string
  /** Sweeps a project page by page until nothing is left, and yields the counts of each page. */
  sweep(project: ExpiringProject): AsyncGenerator<Counts, void>
  /** Select of the records of a project that the sweep would read, for the size of a backlog. */
  expired(project: ExpiringProject): Fragment
}

/**
 * Sweeps every project that has the setting until no expired record is left or the worker stops, some pages of each
 * project in turn, so that a large project does not delay the others. A failure in one project does not stop the others.
 * The backlog of a project is measured at the end and every five minutes.
 */
export async function sweepProjects(services: Services, stopping: AbortSignal, task: SweepTask): Promise<void> {
  const { pool, clock } = services
  for (let after = ''; !stopping.aborted; ) {
    const projects: readonly ExpiringProject[] = await listExpiringProjects(
      pool,
      task.setting,
      clock.now(),
      after,
      PROJECTS,
    )
    let unfinished = projects.map(project => new ProjectSweep(services, stopping, task, project))
    while (unfinished.length > 0) {
      const remaining: ProjectSweep[] = []
      for (const sweep of unfinished) if (!(await sweep.runPages(PAGES_PER_TURN))) remaining.push(sweep)
      unfinished = remaining
    }
    if (projects.length < PROJECTS) return
    after = projects[projects.length - 1].id
  }
}

/** The sweep of one project. */
class ProjectSweep {
  readonly #services: Services
  readonly #stopping: AbortSignal
  readonly #task: SweepTask
  readonly #project: ExpiringProject
  readonly #pages: AsyncGenerator<Counts, void>
  #counts: Counts = {}
  #ms = 0
  readonly #startedAt = performance.now()
  #measuredAt = this.#startedAt

  constructor(services: Services, stopping: AbortSignal, task: SweepTask, project: ExpiringProject) {
    this.#services = services
    this.#stopping = stopping
    this.#task = task
    this.#project = project
    this.#pages = task.sweep(project)
  }

  /** Processes up to `most` pages. Returns whether the sweep of the project has ended. Never throws. */
  async runPages(most: number): Promise<boolean> {
    try {
      for (let page = 0; page < most; page++) {
        const started = performance.now()
        const { done, value } = await this.#pages.next()
        const ms = performance.now() - started
        this.#ms += ms
        if (!done) this.#counts = sumCounts(this.#counts, value)
        if (done || this.#stopping.aborted) {
          this.#report()
          if (!this.#stopping.aborted) await this.#measure()
          return true
        }
        await yieldAfter(ms, this.#stopping)
      }
      if (performance.now() - this.#measuredAt > MEASURE_MS) await this.#measure()
      return false
    } catch (error) {
      this.#log(error, 'retention sweep failed')
      this.#report()
      await this.#measure()
      return true
    }
  }

  #log(error: unknown, text: string): void {
    this.#services.log.error({ err: error, project_id: this.#project.id, setting: this.#task.setting }, text)
  }

  #report(): void {
    if (Object.values(this.#counts).some(count => count > 0))
      this.#services.log.info(
        { project_id: this.#project.id, ...this.#counts, ms: Math.round(this.#ms) },
        this.#task.done,
      )
  }

  /**
   * Measures the records that are expired now, which may be more than at the start of the sweep. Logs a failure, such as a
   * timeout with a long backlog: the sweep continues without the measurement.
   */
  async #measure(): Promise<void> {
    this.#measuredAt = performance.now()
    const { id, cutoff } = this.#project
    const now = new Date(Date.parse(cutoff) + performance.now() - this.#startedAt).toISOString()
    await measureBacklog(this.#services, id, this.#task.setting, this.#task.expired({ id, cutoff: now })).catch(error =>
      this.#log(error, 'backlog measurement failed'),
    )
  }
}

/**
 * Processes several records in one transaction or, when that fails, each record in a separate one. Records that fail
 * alone are skipped. Returns the results of the committed transactions.
 * @throws CONTENT_ON_HOLD when a legal hold began meanwhile
 */
export async function togetherOrApart<T>(
  services: Services,
  ids: readonly string[],
  work: (tx: Tx, ids: readonly string[]) => Promise<T>,
): Promise<T[]> {
  try {
    return [await services.write(tx => work(tx, ids))]
  } catch (error) {
    if (error instanceof AppError && error.code === 'CONTENT_ON_HOLD') throw error
    if (ids.length > 1) {
      const results: T[] = []
      for (const id of ids) results.push(...(await togetherOrApart(services, [id], work)))
      return results
    }
    if (!(error instanceof AppError) || error.status >= 500)
      services.log.error({ err: error, id: ids[0] }, 'expired record skipped')
    return []
  }
}

/** Adds an audit entry for a page of records deleted by retention. */
export function auditExpiry(
  tx: Tx,
  { clock }: Pick<Services, 'clock'>,
  { id, cutoff }: ExpiringProject,
  action: string,
  counts: Counts,
): void {
  tx.audit(
    newAuditEntry({
      project_id: id,
      action,
      resource_srn: srn(id, projectKind.name, id),
      resource_public_id: id,
      detail: { kind: 'retention_sweep', before: cutoff, counts },
      created_at: clock.now().toISOString(),
    }),
  )
}

/**
 * Deletes the expired records of a project page by page, in transactions of at most `most` by `sizeOf`.
 * @param fault fault point after each transaction
 */
export const expirePages = <T extends { id: string }>(
  services: Services,
  stopping: AbortSignal,
  {
    size,
    find,
    sizeOf,
    most,
    fault,
  }: {
    size: number
    find(after: T | null): Promise<readonly T[]>
    sizeOf(record: T): number
    most: number
    fault: FaultPoint
  },
  remove: (tx: Tx, ids: readonly string[]) => Promise<Counts>,
): AsyncGenerator<Counts, void> =>
  inPages(stopping, { size, find }, async found => {
    let done: Counts = {}
    for (const ids of splitBySize(found, sizeOf, most)) {
      done = sumCounts(done, ...(await togetherOrApart(services, ids, remove)))
      await injectFault(services, fault)
      if (stopping.aborted) break
    }
    return done
  })

/** Splits records into transactions of at most `most` by `sizeOf`, in order; a record is never split. Returns their IDs. */
function splitBySize<T extends { id: string }>(
  records: readonly T[],
  sizeOf: (record: T) => number,
  most: number,
): string[][] {
  const groups: string[][] = []
  let total = Number.POSITIVE_INFINITY
  for (const record of records) {
    const size = sizeOf(record)
    if (total + size > most) {
      groups.push([])
      total = 0
    }
    total += size
    groups[groups.length - 1].push(record.id)
  }
  return groups
}
