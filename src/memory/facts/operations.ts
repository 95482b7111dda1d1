import { z } from 'zod'
import { canSeeProject, visibleRows } from '#core/api/access.ts'
import { tagsFilter } from '#core/api/filters.ts'
import { isIdOf } from '#core/api/kind.ts'
import { booleanQuery, listTable, pageOf, textFilter } from '#core/api/lists.ts'
import { ndjsonStream } from '#core/api/ndjson.ts'
import { type Context, itemOperation, type Operation, operation, result } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { allOf, sql, substring } from '#core/db/sql.ts'
import { reachOf } from '#core/iam/authority.ts'
import { resource } from '#core/resources/resource.ts'
import { eraseMemories } from '../entries/erase.ts'
import { MemoryInput, WrittenMemory } from '../entries/model.ts'
import type { MatchedMemory, Written } from '../entries/write.ts'
import { responseStatus, storeOfFact, submitFact } from '../entries/write-request.ts'
import { canReachMemory, withinReach } from '../reach.ts'
import { memoryStoreKind } from '../stores/model.ts'
import { memoriesAccess, memoryAccess } from './end-user.ts'
import {
  AssignAnswer,
  AssignInput,
  currentCondition,
  hasTags,
  Memory,
  MemoryPatch,
  type MemoryRow,
  memoryKind,
  ownerColumn,
  ownerFilter,
  requireCurrent,
  storePolicyTarget,
} from './model.ts'
import { assignMemories } from './ownership.ts'
import { invalidateMemory, listMemoriesAfter } from './store.ts'
import { embedNewText, updateMemory } from './update-memory.ts'

const tag = 'Memory'
const path = '/memories/{memory_id}'
const memories = resource(memoryKind, { path: '/memories', tag })

/**
 * Adds to an operation on a memory the permission check on its store: a memory is never more visible than its store.
 * Memories outside the reach of a turn are not found.
 */
const withStoreCheck = (item: Operation): Operation => ({
  ...item,
  run(context) {
    const { allow, caller, resource } = context as unknown as Context<unknown, unknown, MemoryRow>
    if (!canReachMemory(reachOf(caller), resource)) raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    allow(item.action as string, storePolicyTarget(resource))
    return item.run(context)
  },
})

const create = operation({
  id: 'createMemory',
  method: 'post',
  path: '/memories',
  summary: 'Create a memory',
  description:
    'Writes a fact like a memory entry and returns the resulting memory, with 201 if it is new, else 200. The action is required on the store, on the new memory with its tags, and on the resulting memory. Replacing a memory by `supersedes`, or because of thresholds in the request, requires `memories:UpdateMemory` on the memory and on the store. Returning an existing memory because of thresholds in the request requires `memories:GetMemory`.',
  tag,
  action: 'memories:CreateMemory',
  alsoActions: ['memories:UpdateMemory', 'memories:GetMemory'],
  creates: memoryKind,
  under: storeOfFact,
  body: MemoryInput,
  answers: { 201: WrittenMemory, 200: WrittenMemory },
  raises: ['RESOURCE_NOT_FOUND', 'ACTOR_NOT_FOUND', 'QUOTA_STORAGE_EXCEEDED', 'QUOTA_EXCEEDED'],
  transaction: false,
  async run(context) {
    const { body, project } = context
    context.allow('memories:CreateMemory', { kind: memoryKind, project_id: project, tags: body.tags ?? {} })
    const onMatch = ({ memory: row, replaced, chosen }: MatchedMemory) => {
      context.allow('memories:CreateMemory', { kind: memoryKind, row })
      // The response contains a memory that the caller did not write.
      if (chosen && !replaced) {
        context.allow('memories:GetMemory', { kind: memoryKind, row })
        context.allow('memories:GetMemory', storePolicyTarget(row))
      }
    }
    const present = ({ entry, memory }: Written) => ({
      ...memoryKind.present(memory as MemoryRow),
      action: entry.action,
      entry_id: entry.id,
    })
    const written = await submitFact(context, { onMatch, resourceIdOf: ({ memory_id }) => memory_id, present })
    return result(responseStatus(written.entry), present(written))
  },
})

const include_invalidated = booleanQuery
  .default(false)
  .describe('Whether to include invalidated memories. Default false.')

const list = operation({
  id: 'listMemories',
  method: 'get',
  path: '/memories',
  summary: 'List memories of a store',
  description:
    'Newest first. The action is required on the store, and on each memory with its tags. For end users, the memories that belong to them, in the stores that their agents read.',
  tag,
  action: 'memories:ListMemories',
  lists: memoryKind,
  across: null,
  endUser: memoriesAccess,
  query: z.object({
    memory_store_id: z
      .string()
      .min(1)
      .max(255)
      .optional()
      .describe('ID of the memory store; required except for end users, whose stores follow from their agents'),
    include_invalidated,
    actor_id: ownerFilter.schema,
    query: textFilter.describe('Part of the content, case-insensitive'),
    tags: tagsFilter.schema,
  }),
  answers: { 200: pageOf(Memory) },
  raises: ['RESOURCE_NOT_FOUND'],
  async run(context) {
    const { allow, caller, db, project, query } = context
    if (caller.end_user) return listOfEndUser(context)
    const { memory_store_id: id } = query
    if (id === undefined) return raiseInvalid({ code: 'REQUIRED', path: 'memory_store_id', message: 'is required' })
    const store = isIdOf(memoryStoreKind, id) ? await memoryStoreKind.find(db, id) : null
    if (!store || !canSeeProject(caller, store.project_id) || (project !== null && project !== store.project_id))
      return raise('RESOURCE_NOT_FOUND', { meta: { id } })
    allow('memories:ListMemories', { kind: memoryStoreKind, row: store })
    // Index memories_store for the order.
    return listTable<MemoryRow>(context, {
      table: memoryKind.table,
      columns: memoryKind.columns,
      tags: true,
      filters: [
        sql.fragment`t.memory_store_id = ${id}`,
        !query.include_invalidated && currentCondition,
        withinReach(ownerColumn(sql.fragment`t`), reachOf(caller)),
        query.actor_id !== undefined && ownerFilter.where(query.actor_id),
        query.query !== undefined && sql.fragment`t.content ilike ${substring(query.query)}`,
        hasTags(query.tags),
      ],
      present: row => memoryKind.present(row),
    })
  },
})

/** Lists the memories of an end user; a memory is never more visible than its store. */
const listOfEndUser = (context: Pick<Context, 'caller' | 'db' | 'page' | 'project' | 'visible'>) =>
  listTable<MemoryRow>(context, {
    table: memoryKind.table,
    columns: memoryKind.columns,
    tags: true,
    filters: [
      sql.fragment`t.memory_store_id in (
        select s.id from memory_stores s where ${
          visibleRows(
            context.caller,
            { action: 'memories:ListMemories', type: memoryStoreKind.name, project: context.project },
            { project: sql.fragment`s.project_id`, id: sql.fragment`s.id`, tags: sql.fragment`s.tags` },
          ).rows
        })`,
    ],
    present: row => memoryKind.present(row),
  })

/** Returns the deletion of memories, by which an end user also erases the copies of a memory. */
const erasesForEndUsers = (remove: Operation): Operation => ({
  ...remove,
  async run(context) {
    const { caller, resource, services, tx } = context as unknown as Context<unknown, unknown, MemoryRow>
    if (!caller.end_user) return remove.run(context)
    await eraseMemories(tx, services, resource.project_id, [resource])
  },
})

const updateWith = (method: 'patch' | 'put') =>
  itemOperation(memoryKind, {
    id: method === 'put' ? 'replaceMemory' : 'updateMemory',
    method,
    path,
    summary: 'Update a memory',
    description:
      'Only current memories can be updated. A new text is embedded and recorded as a memory entry, but not compared with other memories.',
    tag,
    action: 'memories:UpdateMemory',
    body: MemoryPatch,
    answers: { 200: Memory },
    raises: ['QUOTA_EXCEEDED'],
    prepare: embedNewText,
    run: async context => memoryKind.present(await updateMemory(context)),
  })

const retract = memories.action('retract', {
  summary: 'Retract a memory',
  description: 'Invalidates the memory without a replacement. It remains readable, but searches no longer find it.',
  action: 'memories:UpdateMemory',
  answers: { 200: Memory },
  async run({ resource, tx }) {
    const stored = await memoryKind.lock(tx, resource.id)
    requireCurrent(stored)
    const invalidated = await invalidateMemory(tx, stored.id)
    tx.emit(memoryKind, 'retracted', invalidated)
    return memoryKind.present(invalidated)
  },
})

/** Memories read per statement. */
const EXPORT_PAGE = 500

const exportStore = itemOperation(memoryStoreKind, {
  id: 'exportMemoryStore',
  method: 'get',
  path: '/memory-stores/{memory_store_id}/export',
  summary: 'Export memories of a store',
  description:
    'Streams one JSON object per line, oldest first. Memories created after the start of the export are not included.',
  tag,
  action: 'memories:ListMemories',
  query: z.object({ include_invalidated, tags: tagsFilter.schema }),
  answers: { 200: Memory },
  produces: 'application/x-ndjson',
  internal: true,
  async run(context) {
    const { caller, query, resource: store, services } = context
    const { rows } = visibleRows(
      caller,
      { action: 'memories:ListMemories', type: memoryKind.name, project: store.project_id },
      { project: sql.fragment`t.project_id`, id: sql.fragment`t.id`, tags: sql.fragment`t.tags` },
    )
    const where = allOf([
      sql.fragment`t.memory_store_id = ${store.id} and t.created_at <= ${services.clock.now().toISOString()}::timestamptz`,
      rows,
      withinReach(ownerColumn(sql.fragment`t`), reachOf(caller)),
      !query.include_invalidated && currentCondition,
      hasTags(query.tags),
    ])
    return ndjsonStream<MemoryRow>(
      context,
      {
        read: (after, limit) => listMemoriesAfter(services.pool, where, after, limit),
        pageSize: EXPORT_PAGE,
        present: row => memoryKind.present(row),
      },
      { 'Content-Disposition': `attachment; filename="memories-${store.id}.ndjson"` },
    )
  },
})

const assign = itemOperation(memoryStoreKind, {
  id: 'assignMemories',
  method: 'post',
  path: '/memory-stores/{memory_store_id}/assign',
  summary: 'Assign memories to an end user',
  description:
    'Assigns memories without an end user, all or none; turns of other end users no longer read them. The action is required on the store, and on each memory with its tags. Memories of another end user are refused.',
  tag,
  action: 'memories:UpdateMemory',
  body: AssignInput,
  answers: { 200: AssignAnswer },
  raises: ['ACTOR_NOT_FOUND', 'RESOURCE_NOT_FOUND'],
  run: assignMemories,
})

export const memoryOperations: Operation[] = [
  list,
  create,
  ...[
    memories.get(),
    updateWith('patch'),
    updateWith('put'),
    erasesForEndUsers(
      memories.remove({
        description:
          'The deletion cannot be undone. Ledger entries are retained, except for an end user, whose deletion also erases the text in entries and events.',
        endUser: memoryAccess,
      }),
    ),
    ...memories.tags(),
    retract,
  ].map(withStoreCheck),
  exportStore,
  assign,
]
