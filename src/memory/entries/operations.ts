import { equalsFilter, type Filters, filterConditions, filterSchema, oneOf } from '#core/api/filters.ts'
import { pageOf, pageResult } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation, result } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { reachOf } from '#core/iam/authority.ts'
import { ownerColumn, ownerFilter } from '../facts/model.ts'
import { canReachMemory, withinReach } from '../reach.ts'
import { memoryStoreKind } from '../stores/model.ts'
import { effectiveThresholds } from '../stores/thresholds.ts'
import {
  DryRun,
  ENTRY_ACTIONS,
  MECHANISMS,
  MemoryEntry,
  MemoryEntryInput,
  type MemoryEntryRow,
  memoryEntryKind,
} from './model.ts'
import type { MatchedMemory, Written } from './write.ts'
import { responseStatus, storeOfFact, submitFact } from './write-request.ts'

const tag = 'Memory'

const create = operation({
  id: 'createMemoryEntry',
  method: 'post',
  path: '/memory-entries',
  summary: 'Write a fact',
  description:
    'The fact creates a memory, replaces a similar one, or is skipped as a duplicate. Returns 201 with the entry for a new memory, else 200. The action is also required with the tags of the resulting memory. Replacing a memory by `supersedes`, or because of thresholds in the request, requires `memories:UpdateMemory` on the memory and on the store. With `dry_run` nothing is written.',
  tag,
  action: 'memories:CreateMemoryEntry',
  alsoActions: ['memories:UpdateMemory'],
  creates: memoryEntryKind,
  under: storeOfFact,
  body: MemoryEntryInput,
  validate: ({ body }) => void effectiveThresholds(body),
  answers: { 201: MemoryEntry, 200: MemoryEntry.or(DryRun) },
  raises: ['RESOURCE_NOT_FOUND', 'ACTOR_NOT_FOUND', 'QUOTA_STORAGE_EXCEEDED', 'QUOTA_EXCEEDED'],
  transaction: false,
  async run(context) {
    const { dry_run: dryRun, ...body } = context.body
    if (body.tags)
      context.allow(create.action as string, entryTarget(context.body.memory_store_id, context.project, body.tags))
    // The entry reveals the resulting memory, so the caller must be allowed to write with its tags.
    const onMatch = ({ memory: { memory_store_id, project_id, tags } }: MatchedMemory) =>
      context.allow(create.action as string, entryTarget(memory_store_id, project_id, tags))
    const present = ({ entry }: Written) => memoryEntryKind.present(entry)
    const written = await submitFact({ ...context, body }, { dryRun, onMatch, present })
    const { entry } = written
    if (!dryRun) return result(responseStatus(entry), present(written))
    const { action, memory_id, superseded_memory_id, similarity, declared } = entry
    return result(200, { dry_run: true, action, memory_id, superseded_memory_id, similarity, declared })
  },
})

/** Returns a store as policy target with the tags of the fact to write. */
const entryTarget = (id: string, project_id: string | null, tags: Record<string, string>) => ({
  kind: memoryStoreKind,
  row: { id, project_id, tags },
})

/** Filters of which one is required, because each has an index with the order. */
const scopes = {
  memory_store_id: equalsFilter('memory_store_id'),
  memory_id: equalsFilter('memory_id'),
  generation_id: equalsFilter('generation_id'),
  conversation_id: equalsFilter('conversation_id'),
} satisfies Filters

const filters = {
  ...scopes,
  memory_rule_id: equalsFilter('memory_rule_id'),
  mechanism: oneOf('mechanism', MECHANISMS),
  action: oneOf('action', ENTRY_ACTIONS),
  actor_id: ownerFilter,
} satisfies Filters

const list = operation({
  id: 'listMemoryEntries',
  method: 'get',
  path: '/memory-entries',
  summary: 'List memory entries',
  description:
    'The ledger of submitted facts with their outcomes, newest first, by store, memory, generation or conversation.',
  tag,
  action: 'memories:ListMemoryEntries',
  lists: memoryStoreKind,
  across: null,
  query: filterSchema(filters),
  answers: { 200: pageOf(MemoryEntry) },
  run(context) {
    const { caller, query, visible } = context
    if (!Object.keys(scopes).some(name => query[name as keyof typeof scopes] !== undefined))
      raiseInvalid({
        code: 'REQUIRED',
        path: 'memory_store_id',
        message: `is required if none of ${Object.keys(scopes).slice(1).join(', ')} is set`,
      })
    return pageResult<MemoryEntryRow>(context, {
      columns: memoryEntryKind.columns,
      from: sql.fragment`memory_entries t join memory_stores s on s.id = t.memory_store_id`,
      rows: visible({ project: sql.fragment`t.project_id`, id: sql.fragment`s.id`, tags: sql.fragment`s.tags` }).rows,
      filters: [...filterConditions(filters, query), withinReach(ownerColumn(sql.fragment`t`), reachOf(caller))],
      time: sql.fragment`t.created_at`,
      order: sql.fragment`t.created_at desc, t.id desc`,
      key: sql.fragment`t.id`,
      present: row => memoryEntryKind.present(row),
    })
  },
})

const get = itemOperation(memoryEntryKind, {
  id: 'getMemoryEntry',
  method: 'get',
  path: '/memory-entries/{memory_entry_id}',
  summary: 'Get a memory entry',
  description: 'The submitted fact, its author and its outcome.',
  tag,
  action: 'memories:GetMemoryEntry',
  answers: { 200: MemoryEntry },
  async run({ caller, resource }) {
    if (!canReachMemory(reachOf(caller), resource)) raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    return memoryEntryKind.present(resource)
  },
})

export const memoryEntryOperations: Operation[] = [create, list, get]
