import type { Footprint } from '#control/storage/footprint.ts'
import { sql } from '#core/db/sql.ts'

/**
 * Bytes of files: stored ones, or declared ones until content is stored. Files of conversation messages are not
 * counted. Index files_path.
 */
export const fileFootprint: Footprint = project => ({
  bytes: sql.fragment`
    select sum(f.size) from files f
    where f.project_id = ${project}
      and not exists (select 1 from documents d where d.file_id = f.id and d.kind = 'message')`,
})

/**
 * Bytes of chunk texts. Index document_chunks_project; octet_length does not fetch a text that is stored out of line.
 */
export const chunkFootprint: Footprint = project => ({
  bytes: sql.fragment`select sum(octet_length(c.content)) from document_chunks c where c.project_id = ${project}`,
  chunks: sql.fragment`select count(*) from document_chunks c where c.project_id = ${project}`,
})

/** Bytes of all vectors of a project, four per dimension. Index-only scan of knowledge_vectors_scan. */
export const vectorFootprint: Footprint = project => ({
  bytes: sql.fragment`
    select sum(v.count * s.dimensions * 4)
    from (
      select k.space_id, count(*) as count from knowledge_vectors k where k.project_id = ${project} group by k.space_id
    ) v join embedding_spaces s on s.id = v.space_id`,
})
