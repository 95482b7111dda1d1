import { z } from 'zod'
import { orchestrationKind } from '#automation/orchestrations/definition/model.ts'
import { silentMs } from '#control/system/status.ts'
import { isAllowed } from '#core/api/access.ts'
import { type Context, type Operation, operation } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { listWorkers } from '#core/work/inspection.ts'
import { WORKER_KINDS } from '#core/work/settings.ts'
import { requireDriver } from '../operations.ts'
import { countWorkByProject, listProjectIds, measureClaimLatency } from './stats-store.ts'

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

/**
 * Returns the projects whose statistics the caller may read; null for all.
 * @throws FORBIDDEN if there is none
 */
async function readableProjects({ caller, project, services }: Context): Promise<readonly string[] | null> {
  if (project !== null) return [project]
  if (caller.layers.length === 0) return null
  const projects = (await listProjectIds(services.pool)).filter(project_id =>
    isAllowed(caller, ACTION, { kind: orchestrationKind, project_id }),
  )
  return projects.length > 0 ? projects : raise('FORBIDDEN', { meta: { action: ACTION } })
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
    async run(context) {
      const { services, project, allow } = context
      requireDriver(context)
      if (project !== null) allow(ACTION, { kind: orchestrationKind, project_id: project })
      const allQueues = await countWorkByProject(services.pool, project)
      const projects = await readableProjects(context)
      const visible = projects && new Set(projects)
      const queues = allQueues.filter(({ project_id }) => visible?.has(project_id) ?? true)
      const sum = (key: 'queued' | 'claimed') => queues.reduce((total, queue) => total + queue[key], 0)
      const ages = queues.flatMap(({ oldest_seconds }) => oldest_seconds ?? [])
      const { p50, p95 } = await measureClaimLatency(services.pool, projects, WINDOW_SECONDS)
      return {
        driver: 'postgres',
        queue_depth: sum('queued'),
        claimed_tasks: sum('claimed'),
        oldest_queued_age_seconds: ages.length === 0 ? null : Math.max(...ages),
        claim_latency_ms: { p50, p95, window_seconds: WINDOW_SECONDS },
        per_project: queues
          .filter(({ queued, claimed }) => queued + claimed > 0)
          .map(({ project_id, queued, claimed }) => ({ project_id, queued, claimed })),
        missing_workers: await missingWorkers(services),
      }
    },
  }),
]
