import { z } from 'zod'
import { type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { type ActorRow, actorKind } from './model.ts'

/** The actor of an external id, kept from being deleted until the transaction ends; by actors_external_id. */
export const findByExternalId = (db: Queryable, projectId: string, externalId: string): Promise<ActorRow | null> =>
  db.maybeOne(actorKind.sql`
    select ${actorKind.columns} from actors t
    where t.project_id = ${projectId} and t.external_id = ${externalId} for key share of t`)

const count = sql.type(z.object({ count: z.int() }))

/** Messages that name the actor, by conversation_messages_actor. */
export const countMessages = (db: Queryable, id: string): Promise<number> =>
  db.oneFirst(count`select count(*) from conversation_messages where actor_id = ${id}`)

/** Gives everything of this area that names one actor to another. */
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
