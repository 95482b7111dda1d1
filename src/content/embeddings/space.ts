import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { CODE_VERSION } from '../vectors/codes.ts'
import { embedderOf } from './embedder.ts'
import type { EmbeddingModel } from './model.ts'

/** Vectors of one space can be compared. `id` is the row of embedding_spaces. */
export type Space = EmbeddingModel & { id: number }

const spaces = new WeakMap<Services, Promise<Space>>()

/** The space new vectors belong to, made when it is missing; null while embeddings are not configured. */
export async function currentSpace(services: Services): Promise<Space | null> {
  const { model } = embedderOf(services)
  if (!model) return null
  let known = spaces.get(services)
  if (!known) {
    known = spaceOf(services.pool, model)
    spaces.set(services, known)
    known.catch(() => spaces.delete(services))
  }
  return known
}

/** Served by the unique index over (provider, model, dimensions, code_version). */
async function spaceOf(db: Queryable, model: EmbeddingModel): Promise<Space> {
  const { provider, model: name, dimensions } = model
  // The update changes nothing; it makes the statement answer the row that is there.
  const id = (await db.oneFirst(sql.unsafe`
    insert into embedding_spaces (provider, model, dimensions, code_version)
    values (${provider}, ${name}, ${dimensions}, ${CODE_VERSION})
    on conflict (provider, model, dimensions, code_version) do update set provider = excluded.provider
    returning id`)) as number
  return { ...model, id }
}
