import type { z } from 'zod'
import { removeVectors, VECTOR_SOURCES, vectorOwnerUpdate } from '#content/index/vectors/store.ts'
import { redactEvents, redactFields } from '#control/events/redact.ts'
import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { reachOf } from '#core/iam/authority.ts'
import type { Tx } from '#core/writes/writer.ts'
import { deleteEntriesOfMemories } from '../entries/erase-store.ts'
import { deleteEntriesOfActor, entryOwnerUpdate, moveEntries } from '../entries/store.ts'
import { resolveFactActor } from '../entries/write-request.ts'
import { canReachMemory } from '../reach.ts'
import type { MemoryStoreRow } from '../stores/model.ts'
import { lockStores } from './lock-store.ts'
import { type AssignAnswer, type AssignInput, type MemoryRow, memoryKind } from './model.ts'
import { deleteMemories } from './store.ts'

type AssignContext = Context<Record<string, never>, z.output<typeof AssignInput>, MemoryStoreRow>

/**
 * Assigns memories of a store to an end user; all or none.
 * @throws RESOURCE_NOT_FOUND for memories that are not in the store, ACTOR_NOT_FOUND, VALIDATION_FAILED for memories of
 *   another end user
 */
export async function assignMemories(context: AssignContext): Promise<z.output<typeof AssignAnswer>> {
  const { allow, body, caller, resource: store, tx } = context
  const actor_id = (await resolveFactActor(tx, caller, store.project_id, body.actor_id)) as string
  await lockStores(tx, [store.id])
  const ids = [...new Set(body.memory_ids)]
  const rows = await lockMemories(
    tx,
    store.id,
    ids.filter(id => isIdOf(memoryKind, id)),
  )
  const reached = new Set(rows.filter(row => canReachMemory(reachOf(caller), row)).map(({ id }) => id))
  const missing = ids.filter(id => !reached.has(id))
  if (missing.length > 0) raise('RESOURCE_NOT_FOUND', { meta: { id: missing[0], missing } })
  for (const row of rows) {
    allow('memories:UpdateMemory', { kind: memoryKind, row })
    if (row.actor_id !== null && row.actor_id !== actor_id)
      raiseInvalid({
        code: 'INVALID_VALUE',
        path: 'memory_ids',
        message: `contains ${row.id}, which belongs to another end user`,
      })
  }
  const assigned = await setOwner(
    tx,
    actor_id,
    rows.filter(row => row.actor_id === null).map(({ id }) => id),
  )
  for (const row of assigned) tx.emit(memoryKind, 'updated', row)
  return { assigned: assigned.length }
}

const lockMemories = (db: Queryable, storeId: string, ids: readonly string[]): Promise<readonly MemoryRow[]> =>
  db.any(memoryKind.sql`
    select ${memoryKind.columns} from memories t
    where t.id = any(${sql.array([...ids], 'text')}) and t.memory_store_id = ${storeId} order by t.id for update of t`)

const setOwner = (db: Queryable, actorId: string, ids: readonly string[]): Promise<readonly MemoryRow[]> =>
  db.any(memoryKind.sql`
    with vectors as (${vectorOwnerUpdate(actorId, VECTOR_SOURCES.memory, sql.fragment`select unnest(${sql.array([...ids], 'text')})`)}),
      entries as (${entryOwnerUpdate(actorId, ids)})
    update memories t set actor_id = ${actorId}, updated_at = now() where t.id = any(${sql.array([...ids], 'text')})
    returning ${memoryKind.columns}`)

/** Lists stores with memories of an end user. Index memories_actor. */
const listStoresOfActor = (db: Queryable, actorId: string): Promise<readonly string[]> =>
  db.anyFirst(idStatement`select distinct memory_store_id as id from memories where actor_id = ${actorId}`)

const memoryIdsOf = (actorId: string): Fragment => sql.fragment`select id from memories where actor_id = ${actorId}`

/** Moves the memories and entries of an end user to another one. */
export async function moveMemories(tx: Tx, from: string, to: string): Promise<void> {
  await lockStores(tx, await listStoresOfActor(tx, from))
  await tx.query(voidStatement`
    with vectors as (${vectorOwnerUpdate(to, VECTOR_SOURCES.memory, memoryIdsOf(from))})
    update memories set actor_id = ${to}, updated_at = now() where actor_id = ${from}`)
  await moveEntries(tx, from, to)
}

/** Maximum number of delete events for the memories of a deleted end user. */
const MAX_EVENTS = 1000

/** Deletes the memories and entries of an end user and redacts their events; returns the numbers of both. */
export async function deleteMemoriesOf(tx: Tx, actorId: string): Promise<{ memories: number; memory_entries: number }> {
  await lockStores(tx, await listStoresOfActor(tx, actorId))
  const ids = await tx.anyFirst(idStatement`${memoryIdsOf(actorId)}`)
  if (ids.length > 0) await removeVectors(tx, { source: VECTOR_SOURCES.memory, ref_ids: ids })
  const resolved = ids.length > 0 ? await deleteEntriesOfMemories(tx, ids) : []
  const memory_entries = resolved.length + (await deleteEntriesOfActor(tx, actorId))
  const deleted = await deleteMemories(tx, ids)
  await redactEvents(tx, [{ resource_type: memoryKind.name, ids, without: redactFields('content', 'metadata') }])
  for (const row of deleted.slice(0, MAX_EVENTS))
    tx.emit(memoryKind, 'deleted', row, { data: { ...memoryKind.present(row), content: null, metadata: null } })
  return { memories: deleted.length, memory_entries }
}
