import { containsFilter, tagsFilter } from '#core/api/filters.ts'
import type { Operation } from '#core/api/operation.ts'
import { resource } from '#core/resources/resource.ts'
import { MemoryStoreInput, MemoryStorePatch, memoryStoreKind } from './model.ts'
import { insertStore } from './store-presence.ts'
import { effectiveThresholds } from './thresholds.ts'

const stores = resource(memoryStoreKind, { path: '/memory-stores', tag: 'Memory', module: 'memories' })

/** PATCH and PUT behave alike. */
const updateWith = (method: 'patch' | 'put') =>
  stores.update({
    method,
    summary: 'Update a memory store',
    body: MemoryStorePatch,
    check: next => void effectiveThresholds(next),
  })

export const memoryStoreOperations: Operation[] = [
  stores.create({
    body: MemoryStoreInput,
    validate: ({ body }) => void effectiveThresholds(body),
    check: ({ body }) => void effectiveThresholds(body),
    make: ({ body, project, tx }) => insertStore(tx, { ...body, project_id: project }),
  }),
  // Indexes: memory_stores_project for the order, memory_stores_tags for tags.
  stores.list({ filters: { name: containsFilter('name'), tags: tagsFilter } }),
  stores.get(),
  updateWith('patch'),
  updateWith('put'),
  stores.remove({
    summary: 'Delete a memory store',
    description:
      'Deletes the store with its memories, entries and rules. Agents keep its ID and find no memories in it.',
  }),
  ...stores.tags(),
]
