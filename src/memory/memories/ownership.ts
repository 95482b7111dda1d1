import type { z } from 'zod'
import { removeVectors, VECTOR_SOURCES, vectorsGivenTo } from '../../content/vectors/store.ts'
import { redactEvents, redactFields } from '../../control/events/redact.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { reachOf } from '../../core/iam/authority.ts'
import { deleteEntriesOf } from '../entries/erase-store.ts'
import { deleteEntriesOfActor, entriesGivenTo, moveEntries } from '../entries/store.ts'
import { claimedActor } from '../entries/write-request.ts'
import { canReachMemory } from '../reach.ts'
import type { MemoryStoreRow } from '../stores/model.ts'
import { lockStores } from './lock-store.ts'
import { type AssignAnswer, type AssignInput, type MemoryRow, memoryKind } from './model.ts'
import { deleteMemories } from './store.ts'

/** Whose memories are: they are given to an end user, move with one that is merged, and go with one that is deleted. */

type Assigning = Context<Record<string, never>, z.output<typeof AssignInput>, MemoryStoreRow>

/**
 * Marks memories of a store as those of an end user; all or none.
 * @throws RESOURCE_NOT_FOUND for one that the store does not have, ACTOR_NOT_FOUND, VALIDATION_FAILED for one that is
 *   somebody else's
 */
export async function assignMemories(context: Assigning): Promise<z.output<typeof AssignAnswer>> {
  const { allow, body, caller, resource: store, tx } = context
  const actor_id = (await claimedActor(tx, caller, store.project_id, body.actor_id)) as string
  await lockStores(tx, [store.id])
  const ids = [...new Set(body.memory_ids)]
  const rows = await memoriesOf(
    tx,
    store.id,
    ids.filter(id => isIdOf(memoryKind, id)),
  )
  const missing = ids.filter(id => !rows.some(row => row.id === id && canReachMemory(reachOf(caller), row)))
  if (missing.length > 0) raise('RESOURCE_NOT_FOUND', { meta: { id: missing[0], missing } })
  for (const row of rows) {
    allow('memories:UpdateMemory', { kind: memoryKind, row })
    if (row.actor_id !== null && row.actor_id !== actor_id)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'memory_ids', message: `${row.id} is of another end user` })
  }
  const marked = await giveTo(
    tx,
    actor_id,
    rows.filter(row => row.actor_id === null).map(({ id }) => id),
  )
  for (const row of marked) tx.emit(memoryKind, 'updated', row)
  return { assigned: marked.length }
}

const memoriesOf = (db: Queryable, storeId: string, ids: readonly string[]): Promise<readonly MemoryRow[]> =>
  db.any(memoryKind.sql`
    select ${memoryKind.columns} from memories t
    where t.id = any(${sql.array([...ids], 'text')}) and t.memory_store_id = ${storeId} order by t.id for update of t`)

const giveTo = (db: Queryable, actorId: string, ids: readonly string[]): Promise<readonly MemoryRow[]> =>
  db.any(memoryKind.sql`
    with vectors as (${vectorsGivenTo(actorId, VECTOR_SOURCES.memory, sql.fragment`select unnest(${sql.array([...ids], 'text')})`)}),
      entries as (${entriesGivenTo(actorId, ids)})
    update memories t set actor_id = ${actorId}, updated_at = now() where t.id = any(${sql.array([...ids], 'text')})
    returning ${memoryKind.columns}`)

/** Stores with memories of an end user, by memories_actor. */
const storesWithMemoriesOf = (db: Queryable, actorId: string): Promise<readonly string[]> =>
  db.anyFirst(idStatement`select distinct memory_store_id as id from memories where actor_id = ${actorId}`)

const ofActor = (actorId: string): Fragment => sql.fragment`select id from memories where actor_id = ${actorId}`

/** Gives the memories of an end user, and what the ledger says of them, to another. */
export async function moveMemories(tx: Tx, from: string, to: string): Promise<void> {
  await lockStores(tx, await storesWithMemoriesOf(tx, from))
  await tx.query(voidStatement`
    with vectors as (${vectorsGivenTo(to, VECTOR_SOURCES.memory, ofActor(from))})
    update memories set actor_id = ${to}, updated_at = now() where actor_id = ${from}`)
  await moveEntries(tx, from, to)
}

/** Memories of a deleted end user that events tell of at most. */
const TOLD = 1000

/** Deletes the memories of an end user, with what the ledger and events say of them. Returns how many of both. */
export async function deleteMemoriesOf(tx: Tx, actorId: string): Promise<{ memories: number; memory_entries: number }> {
  await lockStores(tx, await storesWithMemoriesOf(tx, actorId))
  const ids = await tx.anyFirst(idStatement`${ofActor(actorId)}`)
  if (ids.length > 0) await removeVectors(tx, { source: VECTOR_SOURCES.memory, ref_ids: ids })
  const resolved = ids.length > 0 ? await deleteEntriesOf(tx, ids) : []
  const memory_entries = resolved.length + (await deleteEntriesOfActor(tx, actorId))
  const deleted = await deleteMemories(tx, ids)
  await redactEvents(tx, [{ resource_type: memoryKind.name, ids, without: redactFields('content', 'metadata') }])
  for (const row of deleted.slice(0, TOLD))
    tx.emit(memoryKind, 'deleted', row, { data: { ...memoryKind.present(row), content: null, metadata: null } })
  return { memories: deleted.length, memory_entries }
}
