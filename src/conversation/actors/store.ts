import { UniqueIntegrityConstraintViolationError } from 'slonik'
import { raise } from '../../core/api/errors.ts'
import { jsonb, type Queryable, sql } from '../../core/db/sql.ts'
import { Actor, type ActorRow } from './model.ts'

const actor = sql.type(Actor)

/** What a new actor is made of. */
export type NewActor = Pick<
  ActorRow,
  'id' | 'project_id' | 'name' | 'external_id' | 'instructions' | 'agent_id' | 'metadata'
>

/** Inserts an actor; null when its external id is taken. Serves find-or-create by actors_external_id. */
export const insertActor = (db: Queryable, row: NewActor): Promise<ActorRow | null> =>
  db.maybeOne(actor`
    insert into actors (id, project_id, name, external_id, instructions, agent_id, metadata)
    values (${row.id}, ${row.project_id}, ${row.name}, ${row.external_id}, ${row.instructions}, ${row.agent_id},
      ${jsonb(row.metadata)})
    on conflict (project_id, external_id) where external_id is not null do nothing
    returning *`)

/** The actor of an external id, kept from being deleted until the transaction ends; by actors_external_id. */
export const findActorByExternalId = (db: Queryable, projectId: string, externalId: string): Promise<ActorRow | null> =>
  db.maybeOne(actor`select * from actors where project_id = ${projectId} and external_id = ${externalId} for key share`)

/** Writes every writable column. Raises NAME_CONFLICT when the external id is another actor's. */
export async function updateActor(db: Queryable, row: ActorRow): Promise<ActorRow> {
  try {
    return await db.one(actor`
      update actors set name = ${row.name}, external_id = ${row.external_id}, instructions = ${row.instructions},
        agent_id = ${row.agent_id}, chat_id = ${row.chat_id}, metadata = ${jsonb(row.metadata)},
        tags = ${jsonb(row.tags)}, updated_at = now()
      where id = ${row.id} returning *`)
  } catch (error) {
    if (error instanceof UniqueIntegrityConstraintViolationError)
      raise('NAME_CONFLICT', {
        message: 'external_id is taken by another actor of the project',
        meta: { field: 'external_id' },
      })
    throw error
  }
}

export const setActorTags = (db: Queryable, id: string, tags: Record<string, string>): Promise<ActorRow> =>
  db.one(actor`update actors set tags = ${jsonb(tags)}, updated_at = now() where id = ${id} returning *`)

/** Messages that name the actor, by conversation_messages_actor. */
export const countActorMessages = async (db: Queryable, id: string): Promise<number> =>
  (await db.oneFirst(sql.unsafe`select count(*) from conversation_messages where actor_id = ${id}`)) as number

export const deleteActor = (db: Queryable, id: string) => db.query(sql.unsafe`delete from actors where id = ${id}`)

/** Gives everything of this area that names one actor to another. */
export const moveActor = (db: Queryable, from: string, to: string) =>
  db.query(sql.unsafe`
    with messages as (update conversation_messages set actor_id = ${to} where actor_id = ${from}),
      turns as (update conversation_turns set actor_id = ${to} where actor_id = ${from})
    update conversations set actor_id = ${to}, updated_at = now() where actor_id = ${from}`)

/** Keeps an actor of the project from being deleted until the transaction ends; false when there is none. */
export const shareActor = (db: Queryable, id: string, projectId: string): Promise<boolean> =>
  db.exists(sql.unsafe`select 1 from actors where id = ${id} and project_id = ${projectId} for key share`)

/** The actor of a project, kept from being deleted or changed in its keys until the transaction ends. */
export const lockActor = (db: Queryable, id: string, projectId: string): Promise<ActorRow | null> =>
  db.maybeOne(actor`select * from actors where id = ${id} and project_id = ${projectId} for key share`)

/** Keeps an agent of the project from being deleted until the transaction ends; false when there is none. */
export const shareAgent = (db: Queryable, id: string, projectId: string): Promise<boolean> =>
  db.exists(sql.unsafe`select 1 from agents where id = ${id} and project_id = ${projectId} for key share`)
