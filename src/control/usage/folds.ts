import { z } from 'zod'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { withoutTenant } from '#core/db/tenant-context.ts'
import { WriteBehind } from '#core/db/write-behind.ts'
import { workQueue } from '#core/queues/queue.ts'
import { handler, schedule } from '#core/work/handler.ts'
import { isolateFailures } from '#core/work/sweeps.ts'

/**
 * Folds of usage: events that a transaction noted in unfolded_usage are added to the sums after its commit. A process folds
 * the projects whose usage it wrote; a sweep folds what lost processes left. Readers add up both parts, so a late fold
 * only makes them slower.
 */

/** Most events of a project in one fold, about 1 MB. */
const MAX_FOLDED = 1000

const FoldRow = z.object({
  project_id: z.string(),
  /** Number of events; null while another transaction folds or deletes the project. */
  folded: z.int().nullable(),
})

/** Folds at most MAX_FOLDED events of each project (index unfolded_usage_pkey). Locks the projects against other folds and deletes. */
const foldProjects = (db: Queryable, projects: readonly string[]) =>
  db.any(sql.type(FoldRow)`
    select p.id as project_id, fold_usage(p.id, ${MAX_FOLDED}) as folded from unnest(${sql.array(projects, 'text')}) p (id)`)

/** Folds the events of a project. Returns false if another transaction is folding or deleting it. */
export async function foldProject(db: Queryable, projectId: string): Promise<boolean> {
  for (;;) {
    const [{ folded }] = await foldProjects(db, [projectId])
    if (folded !== MAX_FOLDED) return folded !== null
  }
}

/** Time in which usage gathers before it is folded. */
const GATHER_MS = 500
/** Most projects of one statement, and most that wait. */
const BATCH = 20
const MAX_WAITING = 20_000
const RETRY_MS = 1000

function openFolds({ pool, log }: Services) {
  const waiting = new Set<string>()
  let isClosing = false
  const folds = new WriteBehind<string>({
    what: 'usage folds',
    log,
    most: MAX_WAITING,
    gatherMs: GATHER_MS,
    batch: BATCH,
    retryMs: RETRY_MS,
    async write(projects) {
      // Before the statement: usage that is written while it runs waits for the next one.
      for (const project of projects) waiting.delete(project)
      const rows = await withoutTenant(() => foldProjects(pool, projects))
      for (const { project_id, folded } of rows) if (folded === null || folded === MAX_FOLDED) add(project_id)
    },
    dropped: () => {},
  })

  function add(project: string): void {
    // The sweep folds projects that find no place.
    if (isClosing || waiting.size >= MAX_WAITING || waiting.has(project)) return
    waiting.add(project)
    folds.add(project)
  }
  return {
    add,
    close(): Promise<void> {
      isClosing = true
      return folds.close()
    },
  }
}

const usageFolds = processSingleton(openFolds, folds => folds.close())

/** Folds the usage of projects within about half a second. Called after the commit. */
export function foldSoon(services: Services, projects: Iterable<string>): void {
  const folds = usageFolds(services)
  for (const project of projects) folds.add(project)
}

const foldQueue = workQueue('usage.fold', {
  message: z.object({}),
  concern: 'delivery',
  retry: { limit: 0 },
})

const projectRow = sql.type(FoldRow.pick({ project_id: true }))

/** Finds the first project after another one with usage that is not folded (index unfolded_usage_pkey). */
const nextUnfolded = (db: Queryable, after: string): Promise<string | null> =>
  db.maybeOneFirst(projectRow`
    select project_id from unfolded_usage where project_id > ${after} order by project_id limit 1`)

/** Projects take turns: one with much to fold delays no other. */
export const foldHandler = handler(foldQueue, { concurrency: 1 }, async (_message, { services, stopping }) => {
  const { pool } = services
  for (let isComplete = false; !isComplete; ) {
    isComplete = true
    for (let after = ''; !stopping.aborted; ) {
      const project_id = await nextUnfolded(pool, after)
      if (project_id === null) break
      await isolateFailures(services, { project_id }, async () => {
        const [{ folded }] = await foldProjects(pool, [project_id])
        if (folded === MAX_FOLDED) isComplete = false
      })
      after = project_id
    }
    if (stopping.aborted) return
  }
})

const SWEEP_SECONDS = 5

export const foldSchedule = schedule(
  'usage folds',
  SWEEP_SECONDS,
  foldQueue,
  {},
  sql.fragment`exists (select from unfolded_usage)`,
)
