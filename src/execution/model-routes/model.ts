import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'
import { FAILURE_CLASSES } from '../providers/model-messages.ts'

/** Maximum number of attempts of one call over all targets of its route. */
const MAX_ATTEMPTS = 10

const RouteTarget = z.strictObject({
  ai_provider_id: z.string().min(1).max(255).describe('ID of an AI provider of the project'),
  model: z.string().min(1).max(255).describe('Model of the provider'),
  timeout_seconds: z
    .int()
    .min(1)
    .max(600)
    .nullable()
    .default(null)
    .describe('Timeout of one attempt, in seconds; null for MODEL_CALL_TIMEOUT_MS. At most 600.'),
  max_retries: z.int().min(0).max(9).default(0).describe('Retries before the next target'),
})

export type RouteTarget = z.output<typeof RouteTarget>

const countAttempts = (targets: readonly RouteTarget[]): number =>
  targets.reduce((total, { max_retries }) => total + 1 + max_retries, 0)

const fields = {
  name: z.string().trim().min(1).max(255).describe('Display name, unique in the project'),
  targets: z
    .array(RouteTarget)
    .min(1)
    .max(10)
    .refine(targets => countAttempts(targets) <= MAX_ATTEMPTS, {
      error: ({ input }) =>
        `must have at most ${MAX_ATTEMPTS} attempts in total, retries included, but have ${countAttempts(input as RouteTarget[])}`,
    })
    .describe('Providers and models in order of priority. At most 10.'),
  retry_on: z
    .array(z.enum(FAILURE_CLASSES))
    .min(1)
    .refine(classes => new Set(classes).size === classes.length, 'must not repeat a class')
    .describe(
      'Failure classes that lead to the next target; `provider_error`, `timeout` and `rate_limited` also to retries. `auth` - the vendor refuses the credential; `credit` - the account has none left; `not_found` - the model does not exist or is not available to the account; `context_length` - the request is too long; `refusal` - the request or the answer is withheld. Default `provider_error`, `timeout` and `rate_limited`.',
    ),
  failure_threshold: z
    .int()
    .min(1)
    .max(100)
    .describe('Consecutive failures after which a target is skipped. Default 3, at most 100.'),
  cooldown_seconds: z
    .int()
    .min(1)
    .max(3600)
    .describe('Seconds for which a failing target is skipped before a probe. Default 60, at most 3600.'),
}

const ModelRoute = record('ModelRoute', fields)

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

/** Returns the provider ids of targets without duplicates. */
export const targetProviderIds = (targets: readonly RouteTarget[]): string[] => [
  ...new Set(targets.map(target => target.ai_provider_id)),
]

/** Routing of the calls of a turn; kept on its generation after content is erased. */
export const RoutingRecord = z
  .object({
    route_id: z
      .string()
      .nullable()
      .describe('ID of the route of the last call; null for an agent shared by another project'),
    target_index: z.int().nullable().describe('Index of the target that answered last; null without an answer'),
    fallbacks: z.int().describe('Number of targets that failed or were skipped, over all calls'),
    attempts: z
      .array(
        z.object({
          step: z.int().describe('Step of the turn, starting at 1'),
          target_index: z.int().describe('Index of the target, starting at 0'),
          ai_provider_id: z.string().nullable().describe('Null for an agent shared by another project'),
          model: z.string(),
          served_model: z.string().optional().describe('Model that the vendor names in its answer, if it names one'),
          error_class: z.enum(FAILURE_CLASSES).nullable().describe('Null for an answer, and for a failure of no class'),
          provider_status_code: z.int().nullable().describe('HTTP status of a failure, if the vendor returned one'),
          provider_code: z.string().optional().describe('Error code of the vendor, if it returned one'),
          provider_request_id: z
            .string()
            .optional()
            .describe('ID of the failed request at the vendor, if it returned one'),
        }),
      )
      .describe('The newest 500 attempts, oldest first'),
  })
  .meta({ id: 'Routing' })

export type RoutingRecord = z.output<typeof RoutingRecord>
