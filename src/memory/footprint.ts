import type { Footprint } from '../control/storage/footprint.ts'
import { sql } from '../core/db/sql.ts'

/** Texts of memories, also of those that no longer hold; vectors count for themselves. By memories_project. */
export const memoryFootprint: Footprint = project => ({
  bytes: sql.fragment`select sum(octet_length(m.content)) from memories m where m.project_id = ${project}`,
  chunks: sql.fragment`select count(*) from memories m where m.project_id = ${project}`,
})
