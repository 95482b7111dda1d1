import type { Queryable } from '../../core/db.ts'
import { codeOf } from './codes.ts'
import { type Near, ranked } from './scan.ts'
import { type SourceNumber, vectorsOfContainer } from './store.ts'

const CANDIDATES = 200

/**
 * The rows of one container that are nearest to a vector, with their cosines, nearest first; exact in containers of up to
 * 200 vectors.
 * @param of.vector L2-normalized
 * @param of.k how many rows at most
 */
export async function nearest(
  db: Queryable,
  of: {
    project_id: string
    source: SourceNumber
    container_id: string
    space_id: number
    vector: Float32Array
    k: number
  },
): Promise<Near[]> {
  const { vector, k, ...container } = of
  const found = await vectorsOfContainer(db, { ...container, code: codeOf(vector), limit: CANDIDATES })
  return ranked(found, vector).slice(0, k)
}
