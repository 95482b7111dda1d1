import { z } from 'zod'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { CODE_VERSION } from '../vectors/codes.ts'
import { embedderOf } from './embedder.ts'
import type { EmbeddingModel } from './model.ts'

/** Embedding space: vectors of the same space are comparable. `id` is the row of embedding_spaces. */
export type Space = EmbeddingModel & { id: number }

const spaces = processSingleton(() => ({ current: null as Promise<Space> | null }))

/** Returns the space of new vectors, inserting it if necessary; null if embeddings are not configured. */
export async function currentSpace(services: Services): Promise<Space | null> {
  const { model } = embedderOf(services)
  if (!model) return null
  const cache = spaces(services)
  if (!cache.current) {
    cache.current = upsertSpace(services.pool, model)
    cache.current.catch(() => {
      cache.current = null
    })
  }
  return cache.current
}

const idRow = sql.type(z.object({ id: z.int() }))

/** Index: unique (provider, model, dimensions, code_version). */
async function upsertSpace(db: Queryable, model: EmbeddingModel): Promise<Space> {
  const { provider, model: name, dimensions } = model
  // The update is a no-op that makes the statement return an existing row.
  const id = await db.oneFirst(idRow`
    insert into embedding_spaces (provider, model, dimensions, code_version)
    values (${provider}, ${name}, ${dimensions}, ${CODE_VERSION})
    on conflict (provider, model, dimensions, code_version) do update set provider = excluded.provider
    returning id`)
  return { ...model, id }
}
