import { filterSchema } from '#core/api/filters.ts'
import type { Operation } from '#core/api/operation.ts'
import { resource } from '#core/resources/resource.ts'
import { usageFilters, usageQuery } from './filters.ts'
import { usageKind } from './model.ts'

const tag = 'Usage'

const events = resource(usageKind, { path: '/usage/events', tag, noun: 'UsageEvent', nouns: 'UsageEvents' })

export const usageOperations: Operation[] = [
  // usage_events_project serves the order.
  {
    ...events.list({ action: 'usage:ListUsageEvents', filters: usageFilters }),
    query: usageQuery(filterSchema(usageFilters).shape),
    replica: true,
  },
]
