import { nearestRows } from '#content/index/vectors/scan.ts'
import { type NewVector, VECTOR_SOURCES } from '#content/index/vectors/store.ts'
import type { Services } from '#core/base/services.ts'

/** Where vectors of a test are. */
export type Place = { project: string; space: { id: number; dimensions: number } }

export const unit = (values: Iterable<number>): Float32Array => {
  const list = [...values]
  const length = Math.hypot(...list)
  return Float32Array.from(list, value => value / length)
}

/** The vector of a chunk. */
export const vectorOf = (
  { project, space }: Place,
  ref_id: string,
  vector: Float32Array,
  more: Partial<NewVector> = {},
): NewVector => ({
  project_id: project,
  source: VECTOR_SOURCES.document,
  container_id: 'doc_a',
  ref_id,
  segment: 0,
  space_id: space.id,
  vector,
  ...more,
})

/** The chunks nearest to a vector, as a search for ten reads them. */
export const nearestTo = (
  services: Services,
  { project, space }: Place,
  vector: Float32Array,
  more: Partial<Parameters<typeof nearestRows>[1]> = {},
) =>
  nearestRows(services, {
    projects: [project],
    space,
    source: VECTOR_SOURCES.document,
    filter: null,
    vector,
    limit: 10,
    ...more,
  })
