import type { Footprint } from '#control/storage/footprint.ts'
import { sql } from '#core/db/sql.ts'

/** Bytes of memory texts, including invalidated memories; vectors are counted separately. Index memories_project. */
export const memoryFootprint: Footprint = project => ({
  bytes: sql.fragment`select sum(octet_length(m.content)) from memories m where m.project_id = ${project}`,
  chunks: sql.fragment`select count(*) from memories m where m.project_id = ${project}`,
})
