import { z } from 'zod'
import { settledWithin } from '../base/event-loop.ts'
import type { CellRead } from '../base/metrics.ts'
import type { Services } from '../base/services.ts'
import { addressOf } from '../db/database-url.ts'
import { type Queryable, sql } from '../db/sql.ts'
import { CELL_WAIT_MS, HOME, requireCell } from './cell.ts'
import { type DirectoryCell, NO_KEY } from './cell-directory.ts'
import { type CopiesFacts, NO_COPIES, readCopies } from './copies.ts'

/** Returns a read of each cell, for gauges; without a label in a deployment without cells. */
export function readsOfCells<T>(
  services: Services,
  read: (services: Services) => Promise<readonly T[]>,
): readonly CellRead<T>[] {
  if (!services.cells) return [{ read: () => read(services) }]
  return services.cells.served().map(cell => ({ cell: cell.name, read: async () => read(requireCell(cell)) }))
}

const CellFacts = z.strictObject({
  projects: z.int(),
  bytes: z.int(),
  migrations: z.int(),
  release: z.string().nullable(),
})

/** Size of a cell, and the last release that migrated it. */
export type CellFacts = z.output<typeof CellFacts>

/** Reads the size of a cell. The bytes include indexes, and the tables of pg-boss. */
export const readCellFacts = (db: Queryable): Promise<CellFacts> =>
  db.one(sql.type(CellFacts)`
    select (select count(*)::int from projects) as projects,
      (select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class where relkind = 'r'
        and relnamespace in (current_schema()::regnamespace,
          (select relnamespace from pg_class where oid = to_regclass('pgboss.queue')))) as bytes,
      (select count(*)::int from migrations) as migrations,
      (select to_jsonb(m) ->> 'release' from migrations m order by id desc limit 1) as release`)

const NO_FACTS = { projects: null, bytes: null, migrations: null, release: null }

/** A cell for people. */
export type DescribedCell = Pick<DirectoryCell, 'name' | 'number' | 'state'> &
  (CellFacts | typeof NO_FACTS) &
  CopiesFacts & {
    /** Null if no configured key opens its URL. */
    address: string | null
    /** Null for home. */
    added_at: string | null
    changed_at: string | null
    /** Why its facts are null; null if they are known. */
    failure: unknown
  }

/**
 * Describes cells, home first, within five seconds. Facts of a cell that does not answer are null.
 * @param others the cells besides home
 * @param inCell runs a read with the database of a cell
 */
export async function describeCells(
  home: Pick<Services, 'config' | 'pool'>,
  others: readonly DirectoryCell[],
  inCell: (
    cell: { name: string; number: number; url: string },
    read: (db: Queryable) => Promise<CellFacts>,
  ) => Promise<CellFacts>,
): Promise<DescribedCell[]> {
  const url = home.config.DATABASE_URL
  const listed = [{ ...HOME, state: 'open' as const, url, created_at: null, updated_at: null }, ...others]
  const copies = others.length === 0 ? null : inTime(readCopies(home, others))
  return Promise.all(
    listed.map(async ({ name, number, state, url, created_at, updated_at }) => {
      const read =
        url === null ? { failure: new Error(NO_KEY) } : await inTime(inCell({ name, number, url }, readCellFacts))
      return {
        name,
        number,
        address: url && addressOf(url),
        state,
        ...(read.value ?? NO_FACTS),
        ...((await copies)?.value?.get(name) ?? NO_COPIES),
        added_at: created_at,
        changed_at: updated_at,
        failure: read.failure ?? null,
      }
    }),
  )
}

/** Returns the result of a read that ends in time, otherwise its failure. */
async function inTime<T>(read: Promise<T>): Promise<{ value?: T; failure?: unknown }> {
  const settled = read.then(
    value => ({ value }),
    failure => ({ failure }),
  )
  return (
    (await settledWithin<{ value?: T; failure?: unknown }>(CELL_WAIT_MS, settled)) ?? {
      failure: new Error(`no answer within ${CELL_WAIT_MS / 1000} s`),
    }
  )
}

const CellProject = z.strictObject({
  id: z.string(),
  name: z.string(),
  rows: z.int(),
  bytes: z.int().nullable(),
})

/** A project of a cell, with what has been counted of it: its counted rows, and the bytes of its last storage snapshot. */
export type CellProject = z.output<typeof CellProject>

/** Lists the projects of a cell, those with the most rows first. */
export const listCellProjects = (db: Queryable): Promise<readonly CellProject[]> =>
  db.any(sql.type(CellProject)`
    select p.id, p.name, coalesce(c.count, 0)::bigint as rows, s.bytes
    from projects p
    left join (select scope, sum(count) as count from row_count_shards group by scope) c on c.scope = p.id
    left join lateral (
      select bytes from storage_snapshots where project_id = p.id order by day desc limit 1) s on true
    order by rows desc, p.id`)
