import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { tagsFilter } from '../../core/api/filters.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { booleanQuery, listTable, pageOf, tagCondition, textFilter } from '../../core/api/lists.ts'
import { ndjsonStream } from '../../core/api/ndjson.ts'
import { type Context, itemOperation, type Operation, operation, result } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { allOf, sql, substring } from '../../core/db/sql.ts'
import { canSeeProject, visibleRows } from '../../core/iam/access.ts'
import { reachOf } from '../../core/iam/authority.ts'
import { MemoryInput, WrittenMemory } from '../entries/model.ts'
import type { MatchedMemory, Written } from '../entries/write.ts'
import { responseStatus, submitFact } from '../entries/write-request.ts'
import { canReachMemory, withinReach } from '../reach.ts'
import { memoryStoreKind } from '../stores/model.ts'
import {
  AssignAnswer,
  AssignInput,
  currentCondition,
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
import { invalidateMemory, memoriesAfter } from './store.ts'
import { embedNewText, updateMemory } from './update-memory.ts'

const tag = 'Memory'
const path = '/memories/{memory_id}'
const memories = resource(memoryKind, { path: '/memories', tag })

/**
 * An operation on a memory asks for its action on the store too: a memory is never more visible than its store. Those that a
 * turn does not read are none to it.
 */
const within = (item: Operation): Operation => ({
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
  summary: 'State a fact and read the memory that it resolved into',
  description:
    'The same as a memory entry, answered with the memory: 201 when it is new, else 200. The action is asked for on the store and on the memory with its tags, and on the one that the fact resolves into. Replacing one that `supersedes` names, or that only the thresholds of the request find, needs `memories:UpdateMemory` on it and on the store; being shown such a one needs `memories:GetMemory`.',
  tag,
  action: 'memories:CreateMemory',
  alsoActions: ['memories:UpdateMemory', 'memories:GetMemory'],
  creates: memoryKind,
  under: { kind: memoryStoreKind, field: 'memory_store_id' },
  body: MemoryInput,
  answers: { 201: WrittenMemory, 200: WrittenMemory },
  raises: ['RESOURCE_NOT_FOUND', 'ACTOR_NOT_FOUND', 'QUOTA_STORAGE_EXCEEDED', 'QUOTA_EXCEEDED'],
  transaction: false,
  async run(context) {
    const { body, project } = context
    context.allow('memories:CreateMemory', { kind: memoryKind, project_id: project, tags: body.tags ?? {} })
    const resolves = ({ memory: row, replaced, chosen }: MatchedMemory) => {
      context.allow('memories:CreateMemory', { kind: memoryKind, row })
      // The answer shows what the caller did not write.
      if (chosen && !replaced) {
        context.allow('memories:GetMemory', { kind: memoryKind, row })
        context.allow('memories:GetMemory', storePolicyTarget(row))
      }
    }
    const shown = ({ entry, memory }: Written) => ({
      ...memoryKind.present(memory as MemoryRow),
      action: entry.action,
      entry_id: entry.id,
    })
    const written = await submitFact(context, { resolves, named: ({ memory_id }) => memory_id, shown })
    return result(responseStatus(written.entry), shown(written))
  },
})

const include_invalidated = booleanQuery.default(false).describe('Also those that no longer hold')

const list = operation({
  id: 'listMemories',
  method: 'get',
  path: '/memories',
  summary: 'List the memories of a store, newest first',
  description: 'The action is asked for on the store and on each memory with its tags.',
  tag,
  action: 'memories:ListMemories',
  lists: memoryKind,
  query: z.object({
    memory_store_id: z.string().min(1).max(255).describe('Store whose memories are listed'),
    include_invalidated,
    actor_id: ownerFilter.schema,
    query: textFilter.describe('Part of the content, whatever the case'),
    tags: tagsFilter.schema,
  }),
  answers: { 200: pageOf(Memory) },
  raises: ['RESOURCE_NOT_FOUND'],
  async run(context) {
    const { allow, caller, db, project, query } = context
    const { memory_store_id: id } = query
    const store = isIdOf(memoryStoreKind, id) ? await memoryStoreKind.find(db, id) : null
    if (!store || !canSeeProject(caller, store.project_id) || (project !== null && project !== store.project_id))
      return raise('RESOURCE_NOT_FOUND', { meta: { id } })
    allow('memories:ListMemories', { kind: memoryStoreKind, row: store })
    // memories_store serves the order.
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
        tagCondition(sql.fragment`t.tags`, query.tags),
      ],
      present: row => memoryKind.present(row),
    })
  },
})

const change = (method: 'patch' | 'put') =>
  itemOperation(memoryKind, {
    id: method === 'put' ? 'replaceMemory' : 'updateMemory',
    method,
    path,
    summary: 'Change the fields given of a memory that holds',
    description: 'Another text is embedded anew and noted in the ledger; it is not compared with other memories.',
    tag,
    action: 'memories:UpdateMemory',
    body: MemoryPatch,
    answers: { 200: Memory },
    raises: ['QUOTA_EXCEEDED'],
    prepare: embedNewText,
    run: async context => memoryKind.present(await updateMemory(context)),
  })

const retract = memories.action('retract', {
  summary: 'End a memory without a replacement',
  description: 'The memory stays readable with the time until which it held, and is no longer found by searches.',
  action: 'memories:UpdateMemory',
  answers: { 200: Memory },
  async run({ resource, tx }) {
    const stored = await memoryKind.lock(tx, resource.id)
    requireCurrent(stored)
    const retired = await invalidateMemory(tx, stored.id)
    tx.emit(memoryKind, 'retracted', retired)
    return memoryKind.present(retired)
  },
})

/** Lines read at once. */
const EXPORT_PAGE = 500

const exportStore = itemOperation(memoryStoreKind, {
  id: 'exportMemoryStore',
  method: 'get',
  path: '/memory-stores/{memory_store_id}/export',
  summary: 'Stream the memories of a store, oldest first',
  description: 'One JSON object a line. Memories that were made after the export began are not part of it.',
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
      tagCondition(sql.fragment`t.tags`, query.tags),
    ])
    return ndjsonStream<MemoryRow>(
      context,
      {
        read: (after, limit) => memoriesAfter(services.pool, where, after, limit),
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
  summary: 'Give memories without an end user to one: turns of others no longer read them',
  description:
    'All of them or none. The action is asked for on the store and on each memory with its tags. A memory that belongs to another end user is refused.',
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
  ...[memories.get(), change('patch'), change('put'), memories.remove(), ...memories.tags(), retract].map(within),
  exportStore,
  assign,
]
