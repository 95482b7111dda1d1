import { z } from 'zod'
import { type Queryable, sql } from '#core/db/sql.ts'
import { footprintOf } from './footprint.ts'

const StorageSnapshot = z.object({ bytes: z.number(), chunk_count: z.number() })
export type StorageSnapshot = z.output<typeof StorageSnapshot>

/** Retention of snapshots. Quotas read only the newest one, and usage stores its own quantities. */
const RETENTION_DAYS = 40

/**
 * Measures a project, stores the result as its snapshot of a UTC day and deletes expired snapshots, in one statement
 * (index storage_snapshots_pkey). Each registered footprint documents the rows that it reads.
 */
export const measureProject = (db: Queryable, projectId: string, day: string): Promise<StorageSnapshot> =>
  db.one(sql.type(StorageSnapshot)`
    with dropped as (
      delete from storage_snapshots where project_id = ${projectId} and day < ${day}::date - ${RETENTION_DAYS}::int
    )
    insert into storage_snapshots (project_id, day, bytes, chunk_count)
    select ${projectId}, ${day}::date, f.bytes, f.chunk_count from (${footprintOf(sql.fragment`${projectId}`)}) f
    on conflict (project_id, day) do update
      set bytes = excluded.bytes, chunk_count = excluded.chunk_count, created_at = now()
    returning bytes, chunk_count`)

/**
 * Lists projects after an id (indexes projects_pkey and storage_snapshots_pkey).
 * @param missing lists only projects without a snapshot of this UTC day; null lists all
 */
export const listProjectsAfter = (
  db: Queryable,
  after: string,
  missing: string | null,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(sql.type(z.object({ id: z.string() }))`
    select p.id from projects p
    where p.id > ${after} and ${
      missing === null
        ? sql.fragment`true`
        : sql.fragment`not exists (select 1 from storage_snapshots s where s.project_id = p.id and s.day = ${missing}::date)`
    }
    order by p.id limit ${limit}`)

/** Returns the newest snapshot of a project with its UTC day; null without one (index storage_snapshots_pkey). */
export const newestSnapshot = (db: Queryable, projectId: string): Promise<{ day: string; bytes: number } | null> =>
  db.maybeOne(sql.type(z.object({ day: z.string(), bytes: z.number() }))`
    select day, bytes from storage_snapshots where project_id = ${projectId} order by day desc limit 1`)
