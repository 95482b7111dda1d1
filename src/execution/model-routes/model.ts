import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { FAILURE_CLASSES } from '../providers/model-messages.ts'

/** Requests that one call may make over all targets of its route. */
const MAX_ATTEMPTS = 10

const RouteTarget = z.strictObject({
  ai_provider_id: z.string().min(1).max(255).describe('AI provider of the project'),
  model: z.string().min(1).max(255).describe('Model of the provider'),
  timeout_seconds: z
    .int()
    .min(1)
    .max(600)
    .nullable()
    .default(null)
    .describe('Longest time of one attempt; null is MODEL_CALL_TIMEOUT_MS'),
  max_retries: z.int().min(0).max(9).default(0).describe('Further attempts before the next target'),
})

export type RouteTarget = z.output<typeof RouteTarget>

const attemptsOf = (targets: readonly RouteTarget[]): number =>
  targets.reduce((total, { max_retries }) => total + 1 + max_retries, 0)

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name to show, unique in the project'),
  targets: z
    .array(RouteTarget)
    .min(1)
    .max(10)
    .refine(targets => attemptsOf(targets) <= MAX_ATTEMPTS, {
      error: ({ input }) =>
        `add up to ${attemptsOf(input as RouteTarget[])} attempts, retries included; at most ${MAX_ATTEMPTS} are allowed`,
    })
    .describe('Providers and models in the order of their priority'),
  retry_on: z
    .array(z.enum(FAILURE_CLASSES))
    .min(1)
    .refine(classes => new Set(classes).size === classes.length, 'must not repeat a class')
    .describe('Classes of failures after which a call is repeated or goes to the next target; default all'),
  failure_threshold: z
    .int()
    .min(1)
    .max(100)
    .describe('Consecutive failures of a target after which calls skip it; default 3'),
  cooldown_seconds: z
    .int()
    .min(1)
    .max(3600)
    .describe('How long calls skip such a target before one of them tries it again; default 60'),
}

export const ModelRoute = record('ModelRoute', fields)

export const ModelRouteInput = createBody('ModelRouteInput', fields, ['name', 'targets'], {
  name: 'answers',
  targets: [{ ai_provider_id: 'aip_01k5p3vd7r9hj2x8m4qcw6tz0e', model: 'gpt-5-mini' }],
})

export const ModelRoutePatch = patchBody('ModelRoutePatch', fields)

export const modelRouteKind = kind({
  name: 'model_route',
  prefix: 'route',
  table: 'model_routes',
  missing: 'MODEL_ROUTE_NOT_FOUND',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'ai_provider', column: 'ai_provider_ids', many: true, on_delete: 'block' },
  ],
  record: ModelRoute,
  hidden: { ai_provider_ids: z.array(z.string()) },
  events: ['created', 'updated', 'deleted'],
  unique: { model_routes_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})

export type ModelRouteRow = z.output<typeof modelRouteKind.row>

/** The providers that targets name, each once. */
export const providersNamed = (targets: readonly RouteTarget[]): string[] => [
  ...new Set(targets.map(target => target.ai_provider_id)),
]

/** How the calls of a turn went: kept on its generation, whatever becomes of its content. */
export const RoutingRecord = z
  .object({
    route_id: z.string().nullable().describe('Route of the last call; null where another project shares the agent'),
    target_index: z.int().nullable().describe('Target that answered last; null while none has'),
    fallbacks: z.int().describe('Targets left behind by all calls: those that failed, and those skipped as failing'),
    attempts: z
      .array(
        z.object({
          step: z.int().describe('Step of the turn, from 1'),
          target_index: z.int().describe('Target of the route, from 0'),
          ai_provider_id: z.string().nullable().describe('Null where another project shares the agent'),
          model: z.string(),
          error_class: z
            .enum(FAILURE_CLASSES)
            .nullable()
            .describe('Null for an answer, and for a last failure of no class'),
          provider_status_code: z.int().nullable().describe('Status of a failure, where the vendor gave one'),
        }),
      )
      .describe('The newest 500 attempts, oldest first'),
  })
  .meta({ id: 'Routing' })

export type RoutingRecord = z.output<typeof RoutingRecord>
