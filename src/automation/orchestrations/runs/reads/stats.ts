import { z } from 'zod'
import { orchestrationKind } from '#automation/orchestrations/definition/model.ts'
import { silentMs } from '#control/system/status.ts'
import { isAllowed } from '#core/api/access.ts'
import { type Context, combined, type Operation, operation } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { listWorkers } from '#core/work/inspection.ts'
import { WORKER_KINDS } from '#core/work/settings.ts'
import { requireDriver } from '../operations.ts'
import {
  claimLatencyOf,
  countWorkByProject,
  listClaimWaits,
  listProjectIds,
  measureClaimLatency,
  type ProjectQueue,
} from './stats-store.ts'

const ACTION = 'orchestrations:GetQueueStats'

/** Period over which the latency is measured. */
const WINDOW_SECONDS = 300

const latency = z.number().nullable().describe('Milliseconds. Null if no node execution started.')

const Stats = z
  .object({
    driver: z.literal('postgres').describe('Queue driver'),
    queue_depth: z
      .int()
      .describe('Node executions waiting for a worker, and runs waiting for a run slot or an advance'),
    claimed_tasks: z.int().describe('Node executions claimed by workers'),
    oldest_queued_age_seconds: z.number().nullable().describe('Age of the oldest waiting item, in seconds'),
    claim_latency_ms: z
      .object({
        p50: latency,
        p95: latency,
        window_seconds: z.int().describe('Length of the measured period, in seconds'),
      })
      .describe('Time from when a node execution is ready until a worker claims it'),
    per_project: z
      .array(
        z
          .object({
            project_id: z.string(),
            queued: z.int().describe('Items waiting for workers'),
            claimed: z.int().describe('Items claimed by workers'),
          })
          .meta({ id: 'OrchestrationProjectQueue' }),
      )
      .describe('Queued and claimed items by project'),
    missing_workers: z
      .array(z.enum(WORKER_KINDS))
      .describe('Kinds of work of the deployment, such as `generation`, that no live worker runs'),
  })
  .meta({ id: 'OrchestrationQueueStats' })

type StatsContext = Context<{ project_id?: string }>

/** What a database has of the statistics. */
type Facts = {
  queues: readonly ProjectQueue[]
  missing_workers: readonly (typeof WORKER_KINDS)[number][]
}

/** Returns the projects whose statistics the caller may read; null for all. */
async function readableProjects({ caller, project, services }: StatsContext): Promise<readonly string[] | null> {
  if (project !== null) return [project]
  if (caller.layers.length === 0) return null
  return (await listProjectIds(services.pool)).filter(project_id =>
    isAllowed(caller, ACTION, { kind: orchestrationKind, project_id }),
  )
}

/** Reads the statistics of a database, with the waits as `waitsOf` reads them; null without a project that the caller may read. */
async function readStats<T>(
  context: StatsContext,
  waitsOf: (db: Queryable, projects: readonly string[] | null, windowSeconds: number) => Promise<T>,
): Promise<(Facts & { waits: T }) | null> {
  const { services, project, allow } = context
  requireDriver(context)
  if (project !== null) allow(ACTION, { kind: orchestrationKind, project_id: project })
  const queues = await countWorkByProject(services.pool, project)
  const projects = await readableProjects(context)
  if (projects?.length === 0) return null
  const visible = projects && new Set(projects)
  return {
    queues: queues.filter(({ project_id }) => visible?.has(project_id) ?? true),
    waits: await waitsOf(services.pool, projects, WINDOW_SECONDS),
    missing_workers: await missingWorkers(services),
  }
}

/** @throws FORBIDDEN if no database has a project that the caller may read */
function presentStats(
  facts: readonly Facts[],
  { p50, p95 }: Pick<z.output<typeof Stats>['claim_latency_ms'], 'p50' | 'p95'>,
): z.output<typeof Stats> {
  if (facts.length === 0) raise('FORBIDDEN', { meta: { action: ACTION } })
  const queues = facts.flatMap(each => each.queues).sort((a, b) => (a.project_id < b.project_id ? -1 : 1))
  const sum = (key: 'queued' | 'claimed') => queues.reduce((total, queue) => total + queue[key], 0)
  const ages = queues.flatMap(({ oldest_seconds }) => oldest_seconds ?? [])
  return {
    driver: 'postgres',
    queue_depth: sum('queued'),
    claimed_tasks: sum('claimed'),
    oldest_queued_age_seconds: ages.length === 0 ? null : Math.max(...ages),
    claim_latency_ms: { p50, p95, window_seconds: WINDOW_SECONDS },
    per_project: queues
      .filter(({ queued, claimed }) => queued + claimed > 0)
      .map(({ project_id, queued, claimed }) => ({ project_id, queued, claimed })),
    missing_workers: WORKER_KINDS.filter(kind => facts.some(each => each.missing_workers.includes(kind))),
  }
}

/** Returns the kinds of work whose workers are all gone or silent. */
async function missingWorkers({ pool, config }: Services): Promise<(typeof WORKER_KINDS)[number][]> {
  const live = (await listWorkers(pool)).filter(({ age_ms }) => age_ms < silentMs(config))
  return WORKER_KINDS.filter(kind => !live.some(({ kinds }) => kinds.includes(kind)))
}

export const statsOperations: Operation[] = [
  operation({
    id: 'getOrchestrationQueueStats',
    method: 'get',
    path: '/orchestrations/queue/stats',
    summary: 'Get orchestration queue statistics',
    description:
      'All web processes return the same figures. Without a project, the figures cover all projects in which the caller is allowed the action.',
    tag: 'Orchestrations',
    action: ACTION,
    about: orchestrationKind,
    query: z.object({
      project_id: z.string().min(1).max(255).optional().describe('ID of the project. Default: all projects.'),
    }),
    answers: { 200: Stats },
    raises: ['QUEUE_DRIVER_MISCONFIGURED'],
    across: combined<{ project_id?: string }, (Facts & { waits: readonly number[] }) | null>(
      context => readStats(context, listClaimWaits),
      async (cells, { services }) => {
        const facts = cells.flatMap(each => each ?? [])
        const latency = await claimLatencyOf(
          services.pool,
          facts.flatMap(({ waits }) => waits),
        )
        return presentStats(facts, latency)
      },
    ),
    async run(context) {
      const facts = await readStats(context, measureClaimLatency)
      return presentStats(facts ? [facts] : [], facts?.waits ?? { p50: null, p95: null })
    },
  }),
]
