import type { Values } from '#core/api/kind.ts'
import { countStatement, type Queryable, voidStatement } from '#core/db/sql.ts'
import type { ExistingRow } from '#core/resources/resource.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type ActorRow, actorKind } from './model.ts'

/** Returns the actor with an external id, with a lock against its deletion. By actors_external_id. */
export const findByExternalId = (db: Queryable, projectId: string, externalId: string): Promise<ActorRow | null> =>
  db.maybeOne(actorKind.sql`
    select ${actorKind.columns} from actors t
    where t.project_id = ${projectId} and t.external_id = ${externalId} for key share of t`)

/** Returns the number of messages of an actor. By conversation_messages_actor. */
export const countMessages = (db: Queryable, id: string): Promise<number> =>
  db.oneFirst(countStatement`select count(*) from conversation_messages where actor_id = ${id}`)

/** Reassigns messages, turns and conversations of an actor to another one. */
export const reassignActor = (db: Queryable, from: string, to: string) =>
  db.query(voidStatement`
    with messages as (update conversation_messages set actor_id = ${to} where actor_id = ${from}),
      turns as (update conversation_turns set actor_id = ${to} where actor_id = ${from}),
      deleted_messages as (
        insert into deleted_messages (actor_id, document_id, deleted_at)
        select ${to}, document_id, deleted_at from deleted_messages where actor_id = ${from}
        on conflict (actor_id, document_id) do update set deleted_at = excluded.deleted_at),
      deleted_conversations as (
        insert into deleted_conversations (actor_id, conversation_id)
        select ${to}, conversation_id from deleted_conversations where actor_id = ${from} on conflict do nothing)
    update conversations set actor_id = ${to}, updated_at = now() where actor_id = ${from}`)

/**
 * Inserts an actor, or returns the actor of the project with the external id unchanged. The actor cannot be deleted
 * until the transaction ends. Emits nothing.
 */
export async function findOrCreateActor(
  tx: Tx,
  fields: Values<ActorRow> & { project_id: string },
): Promise<ActorRow | ExistingRow<ActorRow>> {
  const { project_id, external_id } = fields
  // Repeated only if the existing actor is deleted between the insert and the read.
  for (let attempt = 0; attempt < 5; attempt++) {
    const made = await actorKind.insertUnlessTaken(tx, fields)
    if (made) return made
    const existing = await findByExternalId(tx, project_id, external_id as string)
    if (existing) return { existing }
  }
  throw new Error(`external id neither free nor taken in project ${project_id} after 5 attempts`)
}
