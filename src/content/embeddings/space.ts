import { z } from 'zod'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { CODE_VERSION } from '../vectors/codes.ts'
import { embedderOf } from './embedder.ts'
import type { EmbeddingModel } from './model.ts'

/** Vectors of one space can be compared. `id` is the row of embedding_spaces. */
export type Space = EmbeddingModel & { id: number }

const spaces = processSingleton(() => ({ current: null as Promise<Space> | null }))

/** The space new vectors belong to, made when it is missing; null while embeddings are not configured. */
export async function currentSpace(services: Services): Promise<Space | null> {
  const { model } = embedderOf(services)
  if (!model) return null
  const known = spaces(services)
  if (!known.current) {
    known.current = spaceOf(services.pool, model)
    known.current.catch(() => {
      known.current = null
    })
  }
  return known.current
}

const id = sql.type(z.object({ id: z.int() }))

/** Served by the unique index over (provider, model, dimensions, code_version). */
async function spaceOf(db: Queryable, model: EmbeddingModel): Promise<Space> {
  const { provider, model: name, dimensions } = model
  // The update changes nothing; it makes the statement return the row that is there.
  const space = await db.oneFirst(id`
    insert into embedding_spaces (provider, model, dimensions, code_version)
    values (${provider}, ${name}, ${dimensions}, ${CODE_VERSION})
    on conflict (provider, model, dimensions, code_version) do update set provider = excluded.provider
    returning id`)
  return { ...model, id: space }
}
