import { containsFilter, tagsFilter } from '../../core/api/filters.ts'
import type { Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { MemoryStoreInput, MemoryStorePatch, memoryStoreKind } from './model.ts'
import { insertStore } from './store-presence.ts'
import { effectiveThresholds } from './thresholds.ts'

const stores = resource(memoryStoreKind, { path: '/memory-stores', tag: 'Memory', module: 'memories' })

/** PATCH and PUT are the same. */
const change = (method: 'patch' | 'put') =>
  stores.update({
    method,
    summary: 'Change the fields given of a memory store',
    body: MemoryStorePatch,
    check: next => void effectiveThresholds(next),
  })

export const memoryStoreOperations: Operation[] = [
  stores.create({
    body: MemoryStoreInput,
    check: ({ body }) => void effectiveThresholds(body),
    make: ({ body, project, tx }) => insertStore(tx, { ...body, project_id: project }),
  }),
  // memory_stores_project serves the order; memory_stores_tags its filter.
  stores.list({ filters: { name: containsFilter('name'), tags: tagsFilter } }),
  stores.get(),
  change('patch'),
  change('put'),
  stores.remove({
    summary: 'Delete a memory store with its memories, entries and rules',
    description: 'Agents that name it keep its id and find nothing there.',
  }),
  ...stores.tags(),
]
