import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { fallbacksTotal } from './call.ts'
import { routeCloning } from './clone.ts'
import { modelRouteErrors } from './errors.ts'
import { helperMetrics } from './helper-call.ts'
import { modelRouteKind } from './model.ts'
import { modelRouteOperations } from './operations.ts'
import { deleteOldFailures } from './store.ts'

/** Retention of breaker rows, far above the longest cooldown. */
const BREAKER_RETENTION_MS = 86_400_000

export default module('model-routes', {
  tags: { 'Model routes': 'Ordered lists of providers and models with failover.' },
  errors: modelRouteErrors,
  kinds: [modelRouteKind],
  resourceTypes: [
    resourceType(modelRouteKind, {
      defaults: { retry_on: ['provider_error', 'timeout', 'rate_limited'], failure_threshold: 3, cooldown_seconds: 60 },
    }),
  ],
  operations: modelRouteOperations,
  metrics: [fallbacksTotal, ...helperMetrics],
  sweeps: [
    {
      name: 'failures of model targets',
      when: '53 3 * * *',
      run: ({ pool, clock }, stopping) =>
        deleteInBatches(
          limit => deleteOldFailures(pool, new Date(clock.now().getTime() - BREAKER_RETENTION_MS), limit),
          stopping,
        ),
    },
  ],
  extensions: [cloneables.with(routeCloning)],
})
