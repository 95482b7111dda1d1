import { z } from 'zod'
import { raise } from '../../../core/api/errors.ts'
import { type Context, type Operation, operation } from '../../../core/api/operation.ts'
import { isAllowed } from '../../../core/iam/access.ts'
import { orchestrationKind } from '../../orchestrations/model.ts'
import { requireDriver } from '../operations.ts'
import { projectIds, projectQueues, startLatency } from './stats-store.ts'

const ACTION = 'orchestrations:GetQueueStats'

/** What the latency is measured over. */
const WINDOW_SECONDS = 300

const latency = z.number().nullable().describe('Milliseconds; null when no attempt began')

const Stats = z
  .object({
    driver: z.literal('postgres').describe('What keeps the queues'),
    queue_depth: z
      .int()
      .describe('Attempts of nodes that wait for a worker, and runs that wait for room or to be looked at'),
    claimed_tasks: z.int().describe('Attempts of nodes that workers hold'),
    oldest_queued_age_seconds: z.number().nullable().describe('How long the oldest of what waits has done so'),
    claim_latency_ms: z
      .object({ p50: latency, p95: latency, window_seconds: z.int().describe('Seconds that are looked at') })
      .describe('From the time at which attempts could begin to that at which a worker had them'),
    per_project: z
      .array(
        z
          .object({
            project_id: z.string(),
            queued: z.int().describe('Waiting for workers'),
            claimed: z.int().describe('Claimed by workers'),
          })
          .meta({ id: 'OrchestrationProjectQueue' }),
      )
      .describe('Waiting work by project'),
  })
  .meta({ id: 'OrchestrationQueueStats' })

/** The projects whose figures the caller may see; null for all. Raises FORBIDDEN where there is none. */
async function projectsOf({ caller, project, services }: Context): Promise<readonly string[] | null> {
  if (project !== null) return [project]
  if (caller.layers.length === 0) return null
  const projects = (await projectIds(services.pool)).filter(project_id =>
    isAllowed(caller, ACTION, { kind: orchestrationKind, project_id }),
  )
  return projects.length > 0 ? projects : raise('FORBIDDEN', { meta: { action: ACTION } })
}

export const statsOperations: Operation[] = [
  operation({
    id: 'getOrchestrationQueueStats',
    method: 'get',
    path: '/orchestrations/queue/stats',
    summary: 'See what waits for the workers of orchestrations',
    description:
      'Every web process answers the same. Without a project the figures are those of all projects in which the caller has the action.',
    tag: 'Orchestrations',
    action: ACTION,
    about: orchestrationKind,
    query: z.object({ project_id: z.string().min(1).max(255).optional().describe('Project to look at; default all') }),
    answers: { 200: Stats },
    raises: ['QUEUE_DRIVER_MISCONFIGURED'],
    async run(context) {
      const { services, project, allow } = context
      requireDriver(context)
      if (project !== null) allow(ACTION, { kind: orchestrationKind, project_id: project })
      const known = await projectQueues(services.pool, project)
      const projects = await projectsOf(context)
      const shown = projects && new Set(projects)
      const queues = known.filter(({ project_id }) => shown?.has(project_id) ?? true)
      const sum = (key: 'queued' | 'claimed') => queues.reduce((total, queue) => total + queue[key], 0)
      const ages = queues.flatMap(({ oldest_seconds }) => oldest_seconds ?? [])
      const { p50, p95 } = await startLatency(services.pool, projects, WINDOW_SECONDS)
      return {
        driver: 'postgres',
        queue_depth: sum('queued'),
        claimed_tasks: sum('claimed'),
        oldest_queued_age_seconds: ages.length === 0 ? null : Math.max(...ages),
        claim_latency_ms: { p50, p95, window_seconds: WINDOW_SECONDS },
        per_project: queues
          .filter(({ queued, claimed }) => queued + claimed > 0)
          .map(({ project_id, queued, claimed }) => ({ project_id, queued, claimed })),
      }
    },
  }),
]
